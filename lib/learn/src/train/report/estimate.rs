//! Estimates the resources of a run: memory from small batches, time from a few real updates, which are then discarded.

mod amp;

pub(super) use amp::measured_products;

use super::absent::memory_of;
use super::predict::predict;
use crate::config::Precision;
use crate::recompute::RecomputePlan;
use crate::task::{self, ConfiguredTask};
use crate::train::Progress;
use crate::train::step::Trainer;
use amp::AmpTimes;
use dist::Solo;
use serde::Serialize;
use std::ops::Range;
use std::time::{Duration, Instant};
use tensor::Device;
use tensor::product::bf16;
use unix::space::human_bytes;
use unix::{Error, Exit, Result};

/// Number of updates measured, after the same number of warm-up updates.
const MEASURED: u64 = 4;

/// Estimated resources of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Estimate {
    /// Task name.
    pub task: String,
    /// Number of elements in the trained parameters.
    pub parameters: usize,
    /// Number of elements in the frozen parameters.
    pub frozen_parameters: usize,
    /// Number of samples per epoch.
    pub samples: u64,
    /// Total number of updates.
    pub updates: u64,
    /// Total number of epochs.
    pub epochs: f64,
    /// Peak memory of tensors during an update, in bytes.
    pub memory_bytes: usize,
    /// Plan of which blocks are recomputed (`training.mem_budget`); null where no update was measured.
    pub plan: Option<RecomputePlan>,
    /// Size of one checkpoint in bytes.
    pub checkpoint_bytes: usize,
    /// Times of updates with and without `training.amp` on the CPU; null where they were not measured.
    pub amp: Option<AmpTimes>,
    /// Times and cost; null where they were not measured.
    #[serde(flatten)]
    pub times: Times,
}

/// Estimated times and cost of a run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Times {
    /// Median time per update in seconds.
    pub seconds_per_update: Option<f64>,
    /// Time per validation in seconds.
    pub seconds_per_validation: Option<f64>,
    /// Time of the whole run in seconds.
    pub seconds: Option<f64>,
    /// Cost of the whole run; null if no price is known ([`crate::config::Cost::rate`]).
    pub cost: Option<f64>,
}

/// Predicts the memory that an update requires. If that much is available, runs a few updates and one validation like a
/// real run, and extrapolates. The cost is that of a device called `name`.
pub fn dry_run(configured: &ConfiguredTask, device: Device, name: &str) -> Result<Estimate> {
    tensor::parallel::inside(|| {
        let mut trainer = start(configured, device)?;
        let estimate = predicted(configured, &mut trainer, device)?;
        match estimate.lacks_memory(device) {
            Some(_) => Ok(estimate),
            None => measured(configured, &mut trainer, (device, name), estimate),
        }
    })
}

/// Estimates everything except the times, using small batches.
pub(super) fn without_times(configured: &ConfiguredTask, device: Device) -> Result<Estimate> {
    tensor::parallel::inside(|| predicted(configured, &mut start(configured, device)?, device))
}

fn start(configured: &ConfiguredTask, device: Device) -> Result<Trainer<'_>> {
    can_be_tried(configured, device)?;
    let (task, mut params) = configured.open()?;
    configured.init(&mut params, None)?;
    Trainer::new(
        configured,
        device,
        &Solo,
        (task, params),
        &Progress::new(&configured.config.training),
    )
}

fn predicted(
    configured: &ConfiguredTask,
    trainer: &mut Trainer<'_>,
    device: Device,
) -> Result<Estimate> {
    let memory = predict(configured, trainer, device)?;
    Estimate::of(configured, trainer, memory)
}

/// Bytes of memory that a run could use: those that nothing uses, and those of this process. None for GPUs, whose memory
/// other processes may use.
pub(super) fn available(device: Device) -> Option<u64> {
    let free = unix::memory::available().filter(|_| device == Device::Cpu)?;
    Some(free + unix::memory::resident().unwrap_or(0))
}

/// Returns an error if the smallest batches that [`predict`] tries need more memory than this machine has: they would be
/// killed.
fn can_be_tried(configured: &ConfiguredTask, device: Device) -> Result<()> {
    let Some(available) = available(device) else { return Ok(()) };
    let samples = configured.config.training.batch_size;
    if memory_of(configured, samples.min(2))? < available as f64 {
        return Ok(());
    }
    let needed = memory_of(configured, samples)?;
    Err(Error::new(
        Exit::Failure,
        format!(
            "memory: an update needs about {} (from the shapes of its operations), and even a batch of {} more than the \
             {} that this machine has available; make the model or its samples smaller, or name the GPUs to train on \
             with --on",
            human_bytes(needed as u64),
            samples.min(2),
            human_bytes(available)
        ),
    ))
}

/// Returns the estimate with measured times and memory.
fn measured(
    configured: &ConfiguredTask,
    trainer: &mut Trainer<'_>,
    (device, name): (Device, &str),
    predicted: Estimate,
) -> Result<Estimate> {
    let training = &configured.config.training;
    trainer.set_batches(training.clone())?;
    device.reset_peak();
    let update = seconds_of(trainer, device, 0..2 * MEASURED)?;
    let memory_bytes = device.usage().peak;
    let started = Instant::now();
    configured.check_monitor(&trainer.validate()?)?;
    let validation = started.elapsed().as_secs_f64();
    let validations = training.updates.div_ceil(training.validate_every);
    let seconds = update * training.updates as f64 + validation * validations as f64;
    let times = Times {
        seconds_per_update: Some(update),
        seconds_per_validation: Some(validation),
        seconds: Some(seconds),
        cost: configured.config.cost.of(seconds, name, 1),
    };
    let plan = trainer.numerics.recompute.plan();
    let amp = match (device, training.precision) {
        (Device::Cpu, Precision::Bf16) => Some(with_and_without_amp(trainer, update)?),
        _ => None,
    };
    Ok(Estimate { memory_bytes, plan, times, amp, ..predicted })
}

/// Median time of the last [`MEASURED`] of some updates, in seconds.
fn seconds_of(trainer: &mut Trainer<'_>, device: Device, updates: Range<u64>) -> Result<f64> {
    let warm = updates.end - MEASURED;
    let mut times: Vec<Duration> = Vec::new();
    for update in updates {
        let started = Instant::now();
        let (_, timing) = trainer.step(update, 0)?.wait(started)?;
        tensor::kernel::finish(device)?;
        if update >= warm {
            // Excludes waiting, because batches are prepared concurrently; the log of a run reveals a slow loader.
            times.push(started.elapsed().saturating_sub(timing.data_wait));
        }
    }
    times.sort();
    Ok(times[times.len() / 2].as_secs_f64())
}

/// The times of updates with and without `training.amp` on the CPU, given that of the run.
fn with_and_without_amp(trainer: &mut Trainer<'_>, own: f64) -> Result<AmpTimes> {
    let rounds = trainer.numerics.products.toggle_bf16();
    let other = seconds_of(trainer, Device::Cpu, 2 * MEASURED..3 * MEASURED + 1)?;
    let [f32_seconds, bf16_seconds] = if rounds { [own, other] } else { [other, own] };
    Ok(AmpTimes { instructions: bf16::level()?.name(), f32_seconds, bf16_seconds })
}

impl Estimate {
    /// Creates an estimate without the values that are only known after running an update.
    fn of(configured: &ConfiguredTask, trainer: &Trainer<'_>, memory_bytes: usize) -> Result<Self> {
        let training = &configured.config.training;
        let samples = training.updates * training.samples_per_update();
        let epoch = task::samples(&*trainer.task);
        let files = trainer.learner.files(&Solo)?.unwrap_or_default();
        let tensors = files.into_iter().flat_map(|(_, tensors)| tensors);
        Ok(Self {
            task: configured.spec.name.into(),
            parameters: trainer.learner.params.trained.count(),
            frozen_parameters: trainer.learner.params.frozen.count(),
            samples: epoch,
            updates: training.updates,
            epochs: samples as f64 / epoch as f64,
            memory_bytes,
            plan: None,
            amp: None,
            checkpoint_bytes: tensors.map(|(_, t)| t.bytes()).sum(),
            times: Times::default(),
        })
    }

    /// Returns the available memory in bytes if an update needs more; None for GPUs.
    pub fn lacks_memory(&self, device: Device) -> Option<u64> {
        available(device).filter(|available| *available < self.memory_bytes as u64)
    }
}
