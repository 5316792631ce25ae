//! Checks everything that a run needs before it starts, point by point: all points are checked, whatever fails.

mod point;

pub use point::{CheckPoint, Outcome};

use super::absent::{self, Absent, AbsentEstimate};
use super::estimate::{self, Estimate, measured_products};
use crate::config::Precision;
use crate::task::{self, Opened, Task};
use crate::train::guard::not_of_checkpoint;
use crate::train::job::{Resume, TrainJob};
use crate::train::start::resume;
use crate::{checkpoint, dependency::Dependencies};
use data::inputs::verify_all;
use point::{Found, Points};
use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;
use std::time::Duration;
use tensor::Device;
use tensor::kernel::cuda::Gpu;
use unix::run_dir::RunDir;
use unix::space::{ensure_space, human_bytes};
use unix::time::format_duration;
use unix::{Context, Error, Exit, Result};

/// Result of the checks: every point, and an estimate of the run.
pub struct DryRun {
    /// The points, in the order in which a run would meet them.
    pub points: Vec<CheckPoint>,
    /// Estimate of the run; None if its data cannot be opened or an update failed.
    pub estimate: Option<CheckedEstimate>,
}

/// An estimate of a run on the device that is used, or on one that is absent.
pub enum CheckedEstimate {
    /// On this machine.
    Here(Estimate),
    /// On absent GPUs.
    Absent(AbsentEstimate),
}

impl CheckedEstimate {
    /// Number of elements in the parameters.
    pub fn parameters(&self) -> usize {
        match self {
            Self::Here(estimate) => estimate.parameters,
            Self::Absent(estimate) => estimate.parameters,
        }
    }

    fn checkpoint_bytes(&self) -> u64 {
        match self {
            Self::Here(estimate) => estimate.checkpoint_bytes as u64,
            Self::Absent(estimate) => estimate.checkpoint_bytes as u64,
        }
    }
}

/// Checks a run on this machine, with its estimate for the device of the job or for absent GPUs.
pub fn check(job: &TrainJob, on: Option<Absent>) -> DryRun {
    // Before anything of this process is there.
    let free = free_memory(job.device);
    let mut points = Points::default();
    points.add("configuration", Ok(format!("{}: {}", job.task.spec.name, job.task.name()).into()));
    let opened = match job.task.open() {
        Ok(opened) => Some(opened),
        Err(error) => {
            points.fail("data", vec![of_run(job, error)]);
            points.skip(&["input files", "samples", "initial values"], "the data cannot be opened");
            None
        }
    };
    if let Some((task, params)) = &opened {
        let [train, validation] = [task::samples(&**task), task.validation_samples()];
        let text = format!("{train} samples for training, {validation} for validation");
        points.add("data", Ok(text.into()));
        verify_inputs(job, &**task, &mut points);
        read_samples(&**task, &mut points);
        for (name, found) in task.check() {
            points.add(name, found.map(Found::from));
        }
        let initial = match &job.task.config.init {
            Some(init) => init.check(params),
            None => Ok(format!("random, from seed {}", job.task.config.seed)),
        };
        points.add("initial values", initial.map(Found::from));
    }
    points.add("resume", resume_point(job, opened.as_ref()));
    points.add("run directory", writable(&job.run).map(Found::from));
    drop(opened);
    points.add("device", device(job, on));
    let estimate = match on {
        None => estimate::without_times(&job.task, job.device).map(CheckedEstimate::Here),
        Some(on) => tensor::parallel::inside(|| absent::estimate(&job.task, on))
            .map(CheckedEstimate::Absent),
    };
    let estimate = match estimate {
        Ok(estimate) => estimate,
        Err(error) => {
            match points.have_failed() {
                // It has probably been reported as another point.
                true => points.skip(&["memory"], &error.to_string()),
                false => points.fail("memory", vec![error]),
            }
            points.skip(&["disk space", "cost"], "no update can be estimated");
            return DryRun { points: points.0, estimate: None };
        }
    };
    points.add("memory", memory(job, &estimate, free));
    points.add("disk space", disk_space(job, &estimate));
    points.add("cost", Ok(cost(job, &estimate)));
    DryRun { points: points.0, estimate: Some(estimate) }
}

/// An error of the data, which of a run with checkpoints must be what these were trained on.
fn of_run(job: &TrainJob, error: Error) -> Error {
    let newest = checkpoint::list(&job.run.join("ckpt")).ok().and_then(|mut all| all.pop());
    match newest.and_then(|entry| entry.manifest().map(drop)) {
        Some(()) => not_of_checkpoint(&job.run, error),
        None => error,
    }
}

/// Reads and hashes every input file.
fn verify_inputs(job: &TrainJob, task: &dyn Task, points: &mut Points) {
    let files = task.input_files();
    let changed: Vec<Error> =
        verify_all(&files).into_iter().map(|error| of_run(job, error)).collect();
    match changed.is_empty() {
        true => {
            points.add("input files", Ok(format!("{} with recorded content", files.len()).into()))
        }
        false => points.fail("input files", changed),
    }
}

/// Makes batches of single samples: the first, the last and three between them.
fn read_samples(task: &dyn Task, points: &mut Points) {
    let count = task::samples(task);
    let last = count.saturating_sub(1);
    let which: BTreeSet<u64> = [0, last / 4, last / 2, last - last / 4, last].into();
    let read = |sample: &u64| task.batch(0, 0, &[*sample]).context(|| format!("sample {sample}"));
    let bad: Vec<Error> = which.iter().filter_map(|sample| read(sample).err()).collect();
    match bad.is_empty() {
        true => points.add("samples", Ok(format!("{} of {count} read", which.len()).into())),
        false => points.fail("samples", bad),
    }
}

/// Where the run resumes, and whether its configuration and data are those of the checkpoint.
fn resume_point(job: &TrainJob, opened: Option<&Opened>) -> Result<Found> {
    let found = match (RunDir::open(&job.run), &job.resume) {
        (Ok(run), _) => resume::find(job, &run)?.checkpoint,
        (Err(_), Resume::From(path)) => Some(checkpoint::load_at(path)?),
        (Err(_), _) => None,
    };
    let Some(found) = found else { return Ok("a new run".to_string().into()) };
    let progress = resume::progress_of(job, &found)?;
    // Frozen parameters are compared when the run starts, which reads them.
    let none = Dependencies::new();
    let changes = resume::changes(job, &found, opened.map(|(task, _)| (&**task, &none)))?;
    resume::require_updates(job, &progress, &found)?;
    let (path, all) = (found.path().display(), job.task.config.training.updates);
    let at = format!("update {} of {all}, from {path}", progress.update);
    match changes.is_empty() {
        true if progress.finished => Ok("the run is finished".to_string().into()),
        true => Ok(at.into()),
        false => Ok(Found::warning(format!("{at}; accepted: {}", changes.join("; ")))),
    }
}

/// Writes a file into the run directory, or its nearest existing parent, and removes it.
fn writable(run: &Path) -> Result<String> {
    let run = std::path::absolute(run).map_err(|cause| Error::create(run, cause))?;
    let folder = run.ancestors().find(|p| p.exists()).unwrap_or(Path::new("/"));
    let probe = folder.join(format!(".longhaul-check-{}", std::process::id()));
    let made = std::fs::OpenOptions::new().write(true).create_new(true).open(&probe);
    let mut file = made.map_err(|cause| Error::create(&run, cause))?;
    let written = file.write_all(&[0; 4096]).and_then(|()| file.sync_all());
    let removed = std::fs::remove_file(&probe);
    written.map_err(|cause| Error::create(&run, cause))?;
    removed.map_err(|cause| Error::io(&probe, cause))?;
    Ok(format!("{} can be written", folder.display()))
}

/// The device, and the precision in which it computes.
fn device(job: &TrainJob, on: Option<Absent>) -> Result<Found> {
    let training = &job.task.config.training;
    let (name, is_gpu) = match (on, job.device) {
        (Some(on), _) => (on.to_string(), true),
        (None, Device::Cuda(n)) => {
            let architecture = Gpu::open(n).map_or("", |gpu| gpu.architecture());
            (format!("{}, {}, {architecture}", job.device, job.why_device), true)
        }
        (None, device) => (format!("{device}, {}", job.why_device), device == Device::Emu),
    };
    Ok(match (training.amp, is_gpu) {
        (true, true) => format!("{name}: computes in {}", training.precision.dtype()).into(),
        (true, false) if training.precision == Precision::Bf16 => {
            format!("{name}: computes with {}", measured_products()?).into()
        }
        (true, false) => {
            Found::warning(format!("{name}: computes in f32, training.amp has no effect"))
        }
        (false, false) if training.precision == Precision::Bf16 => {
            format!("{name}: computes in f32; training.amp: {}", measured_products()?).into()
        }
        (false, _) => format!("{name}: computes in f32").into(),
    })
}

/// Free memory of a GPU; None for other devices.
fn free_memory(device: Device) -> Option<u64> {
    match device {
        Device::Cuda(n) => Some(Gpu::open(n).ok()?.memory().ok()?.0 as u64),
        Device::Cpu | Device::Emu => None,
    }
}

/// Compares the estimate with the memory of absent GPUs, of this machine, or with what is `free` on a GPU of it, whose
/// memory other processes may still give back.
fn memory(job: &TrainJob, estimate: &CheckedEstimate, free: Option<u64>) -> Result<Found> {
    let (needed, available, owner) = match estimate {
        CheckedEstimate::Here(own) => {
            let available = estimate::available(job.device).or(free);
            (own.memory_bytes as u64, available.unwrap_or(u64::MAX), "machine")
        }
        CheckedEstimate::Absent(own) => {
            (own.memory_bytes as u64, own.available_bytes as u64, "GPU")
        }
    };
    let [need, has] = [needed, available].map(human_bytes);
    if needed <= available {
        let of = if available == u64::MAX { String::new() } else { format!(" of {has}") };
        return Ok(format!("an update needs {need}{of}").into());
    }
    let text = format!(
        "memory: an update needs {need}, the {owner} has {has} available; lower training.batch_size and raise \
         training.accumulation"
    );
    match matches!(job.device, Device::Cuda(_)) && matches!(estimate, CheckedEstimate::Here(_)) {
        true => Ok(Found::warning(text)),
        false => Err(Error::new(Exit::Failure, text)),
    }
}

/// Whether the checkpoints that are on disk at once have room, including the one being written.
fn disk_space(job: &TrainJob, estimate: &CheckedEstimate) -> Result<Found> {
    let rules = &job.task.config.checkpoint;
    let for_ever = match rules.keep_every {
        0 => 0,
        n => job.task.config.training.updates / n,
    };
    let count = (rules.keep_last + rules.keep_best) as u64 + for_ever + 1;
    let each = estimate.checkpoint_bytes();
    ensure_space(&job.run.join("ckpt"), count.saturating_mul(each))?;
    Ok(format!("room for {count} checkpoints of {}", human_bytes(each)).into())
}

/// Compares time and cost, as far as they are known, with the budget.
fn cost(job: &TrainJob, estimate: &CheckedEstimate) -> Found {
    let duration =
        |seconds| format_duration(Duration::try_from_secs_f64(seconds).unwrap_or_default());
    let budget = job.task.config.cost.budget;
    let limit = budget.map_or("no budget".into(), |budget| format!("a budget of {budget}"));
    let (seconds, cost) = match estimate {
        CheckedEstimate::Absent(own) => (own.seconds, own.cost),
        CheckedEstimate::Here(_) => (None, None),
    };
    let rate = job.rate_per_hour();
    match (seconds, cost, budget) {
        (Some(seconds), Some(cost), Some(budget)) if cost > budget => {
            Found::warning(format!("{}, cost {cost:.2}, more than {limit}", duration(seconds)))
        }
        (Some(seconds), Some(cost), _) => {
            format!("{}, cost {cost:.2}, {limit}", duration(seconds)).into()
        }
        (None, _, Some(budget)) if rate > 0.0 => {
            format!("{limit} is {} at {rate} an hour", duration(3600.0 * budget / rate)).into()
        }
        (_, _, Some(_)) => Found::warning(format!(
            "{limit} has no effect: cost.rate_per_hour is 0, and no price of the device is known"
        )),
        (Some(seconds), None, None) => format!("{}, {limit}", duration(seconds)).into(),
        (None, _, None) => format!("{limit}; --dry-run measures the time").into(),
    }
}
