//! Estimates what a run will need from a few real updates, which are then discarded.

use crate::recompute::Plan;
use crate::task::{self, Configured};
use crate::train::step::Trainer;
use dist::Solo;
use serde::Serialize;
use std::time::{Duration, Instant};
use tensor::Device;
use unix::Result;

/// Number of updates measured, after as many warm-up updates.
const MEASURED: u64 = 4;

/// What a run will need.
#[derive(Clone, Debug, Serialize)]
pub struct Estimate {
    /// The task.
    pub task: String,
    /// Elements of the trained parameters.
    pub parameters: usize,
    /// Elements of the frozen parameters.
    pub frozen_parameters: usize,
    /// Samples per epoch.
    pub samples: u64,
    /// Updates of the run.
    pub updates: u64,
    /// Epochs of the run.
    pub epochs: f64,
    /// Peak memory of tensors during an update, in bytes.
    pub memory_bytes: usize,
    /// Which blocks of the model are recomputed (`training.mem_budget`).
    pub plan: Option<Plan>,
    /// Size of one checkpoint in bytes.
    pub checkpoint_bytes: usize,
    /// Seconds per update, the median of a few.
    pub seconds_per_update: f64,
    /// Seconds per validation.
    pub seconds_per_validation: f64,
    /// Seconds for the whole run.
    pub seconds: f64,
    /// Cost of the run at `cost.rate_per_hour`.
    pub cost: f64,
}

/// Runs a few updates and a validation like a real run, and extrapolates.
pub fn dry_run(task: &Configured, device: Device) -> Result<Estimate> {
    measure(task, device, MEASURED)
}

/// Measures `updates` updates after as many warm-up updates.
pub(in crate::train) fn measure(
    task: &Configured,
    device: Device,
    updates: u64,
) -> Result<Estimate> {
    tensor::parallel::inside(|| measure_inside(task, device, updates))
}

fn measure_inside(configured: &Configured, device: Device, updates: u64) -> Result<Estimate> {
    let config = &configured.config;
    let training = &config.training;
    let (task, mut params) = configured.open()?;
    configured.init(&mut params, false)?;
    let mut trainer = Trainer::new(configured, device, &Solo, (task, params))?;
    device.reset_peak();
    let mut times: Vec<Duration> = Vec::new();
    for update in 0..2 * updates {
        let started = Instant::now();
        let (_, timing) = trainer.step(update, 0)?.wait(started)?;
        tensor::kernel::finish(device)?;
        if update >= updates {
            // Batches are prepared concurrently; a slow loader shows up in the log of a run.
            times.push(started.elapsed().saturating_sub(timing.data_wait));
        }
    }
    times.sort();
    let seconds_per_update = times[times.len() / 2].as_secs_f64();
    let memory_bytes = device.usage().peak;
    let started = Instant::now();
    configured.check_monitor(&trainer.validate()?)?;
    let seconds_per_validation = started.elapsed().as_secs_f64();
    let validations = training.updates.div_ceil(training.validate_every);
    let seconds =
        seconds_per_update * training.updates as f64 + seconds_per_validation * validations as f64;
    let samples = training.updates * training.samples_per_update();
    let epoch = task::samples(&*trainer.task);
    let files = trainer.learner.files(&Solo)?.unwrap_or_default();
    let tensors = files.into_iter().flat_map(|(_, tensors)| tensors);
    Ok(Estimate {
        task: configured.spec.name.into(),
        parameters: trainer.learner.params.trained.count(),
        frozen_parameters: trainer.learner.params.frozen.count(),
        samples: epoch,
        updates: training.updates,
        epochs: samples as f64 / epoch as f64,
        memory_bytes,
        plan: trainer.numerics.recompute.plan(),
        checkpoint_bytes: tensors.map(|(_, t)| t.bytes()).sum(),
        seconds_per_update,
        seconds_per_validation,
        seconds,
        cost: seconds / 3600.0 * config.cost.rate_per_hour,
    })
}
