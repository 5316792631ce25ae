//! Checks data, disk space and memory before a run. (The configuration was validated when it was loaded.)

use super::absent::{self, Absent, AbsentEstimate};
use super::estimate::{self, Estimate};
use crate::checkpoint;
use crate::task::ConfiguredTask;
use crate::train::guard::not_of_checkpoint;
use data::inputs::verify_all;
use std::path::Path;
use tensor::Device;
use unix::space::{ensure_space, human_bytes};
use unix::{Error, Exit, Result};

/// Result of the checks: all problems found, and an estimate of the run.
pub struct DryRun {
    /// Problems, each with advice on how to fix it.
    pub problems: Vec<Error>,
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

    /// Returns the bytes that an update needs and those that are available, if these are fewer.
    fn lacks_memory(&self, device: Device) -> Option<[u64; 2]> {
        match self {
            Self::Here(estimate) => {
                let available = estimate.lacks_memory(device)?;
                Some([estimate.memory_bytes as u64, available])
            }
            Self::Absent(estimate) => {
                let [needed, available] = [estimate.memory_bytes, estimate.available_bytes];
                (needed > available).then_some([needed as u64, available as u64])
            }
        }
    }
}

/// Checks the data, the run directory, disk space and memory for a run, here or on absent GPUs.
pub fn check(task: &ConfiguredTask, device: Device, on: Option<Absent>, run: &Path) -> DryRun {
    let mut problems = bad_inputs(task, run);
    let estimate = match on {
        None => estimate::without_times(task, device).map(CheckedEstimate::Here),
        Some(on) => {
            tensor::parallel::inside(|| absent::estimate(task, on)).map(CheckedEstimate::Absent)
        }
    };
    // If the data cannot be opened, the error has already been reported above.
    let estimate = match estimate {
        Err(error) if problems.is_empty() => {
            problems.push(error);
            None
        }
        estimate => estimate.ok(),
    };
    if let Err(error) = writable(run) {
        problems.push(error);
    }
    if let Some(estimate) = &estimate {
        let bytes = checkpoints(task).saturating_mul(estimate.checkpoint_bytes());
        if let Err(error) = ensure_space(&run.join("ckpt"), bytes) {
            problems.push(error);
        }
        if let Some([needed, available]) = estimate.lacks_memory(device) {
            let of = if on.is_some() { "GPU has" } else { "machine has" };
            let [needed, available] = [needed, available].map(human_bytes);
            problems.push(Error::new(
                Exit::Failure,
                format!(
                    "memory: an update needs {needed}, the {of} {available} available; lower \
                     training.batch_size and raise training.accumulation"
                ),
            ));
        }
    }
    DryRun { problems, estimate }
}

/// Reads and hashes every input file, and compares the data with those of the run's newest checkpoint. When the data
/// cannot be opened, only that error is reported.
fn bad_inputs(task: &ConfiguredTask, run: &Path) -> Vec<Error> {
    let newest = checkpoint::list(&run.join("ckpt")).ok().and_then(|mut entries| entries.pop());
    let manifest = newest.as_ref().and_then(|entry| entry.manifest());
    let errors = match task.open() {
        Err(error) => vec![error],
        Ok((task, _)) => {
            let other = manifest.filter(|manifest| manifest.data_hash != task.data_hash());
            let other = other.map(|manifest| {
                Error::data(format!("hash {}, was {}", task.data_hash(), manifest.data_hash))
            });
            verify_all(&task.input_files()).into_iter().chain(other).collect()
        }
    };
    match manifest {
        Some(_) => errors.into_iter().map(|error| not_of_checkpoint(run, error)).collect(),
        None => errors,
    }
}

/// Maximum number of checkpoints on disk at once, including the one being written.
fn checkpoints(task: &ConfiguredTask) -> u64 {
    let rules = &task.config.checkpoint;
    let for_ever = match rules.keep_every {
        0 => 0,
        n => task.config.training.updates / n,
    };
    (rules.keep_last + rules.keep_best) as u64 + for_ever + 1
}

/// Whether the run directory, or its nearest existing parent, is writable.
fn writable(run: &Path) -> Result<()> {
    let run = std::path::absolute(run).map_err(|cause| Error::create(run, cause))?;
    let folder = run.ancestors().find(|p| p.exists()).unwrap_or(Path::new("/"));
    let probe = folder.join(format!(".longhaul-check-{}", std::process::id()));
    let made = std::fs::OpenOptions::new().write(true).create_new(true).open(&probe);
    made.map_err(|cause| Error::create(&run, cause))?;
    std::fs::remove_file(&probe).map_err(|cause| Error::io(&probe, cause))
}
