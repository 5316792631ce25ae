//! What a run will need, measured on a few real updates that are then thrown away.

use super::learner::{Learner, accumulate};
use super::numerics::Numerics;
use super::validation::validate;
use crate::optim::Schedule;
use crate::recompute::Plan;
use crate::task::{self, Configured};
use data::loader::Mixture;
use dist::Solo;
use serde::Serialize;
use std::time::Instant;
use tensor::Device;
use unix::{Error, Result};

/// Updates measured; as many before that, because the first ones fault their memory in.
const MEASURED: u64 = 4;

/// What a run will need.
#[derive(Clone, Debug, Serialize)]
pub struct Estimate {
    /// The stage.
    pub stage: String,
    /// Numbers in the model.
    pub parameters: usize,
    /// Samples in an epoch.
    pub samples: u64,
    /// Updates in all, and how many epochs they are.
    pub updates: u64,
    /// Epochs in all.
    pub epochs: f64,
    /// Largest tensor memory during an update, in bytes.
    pub memory_bytes: usize,
    /// Which blocks of the model are computed again, where `training.mem_budget` asks for it.
    pub plan: Option<Plan>,
    /// Bytes of one checkpoint.
    pub checkpoint_bytes: usize,
    /// Seconds of one update, the median of a few.
    pub seconds_per_update: f64,
    /// Seconds of one validation.
    pub seconds_per_validation: f64,
    /// Seconds in all.
    pub seconds: f64,
    /// Cost in all, by `cost.rate_per_hour`.
    pub cost: f64,
}

/// Runs a few updates and a validation and extrapolates.
pub fn dry_run(task: &Configured, device: Device) -> Result<Estimate> {
    measure(task, device, MEASURED)
}

/// Measures `updates` updates after as many to warm up.
pub(super) fn measure(task: &Configured, device: Device, updates: u64) -> Result<Estimate> {
    tensor::parallel::inside(|| measure_inside(task, device, updates))
}

fn measure_inside(configured: &Configured, device: Device, updates: u64) -> Result<Estimate> {
    let (task, params) = configured.open()?;
    let config = &configured.config;
    let training = &config.training;
    let schedule = Schedule::new(&config.schedule, training.updates).map_err(Error::config)?;
    let params = params.to_device(device)?;
    let mut learner = Learner::new(params, &config.optimizer, schedule, training, &Solo)?;
    let order = Mixture::new(config.seed, &task.sources(), training.batch_size)?;
    device.reset_peak();
    let numerics = Numerics::new(training, device);
    let mut times = Vec::new();
    for update in 0..2 * updates {
        let mut passes = Vec::new();
        for pass in update * training.accumulation..(update + 1) * training.accumulation {
            passes.push(task.batch(pass, 0, &order.batch(pass))?.to_device(device)?);
        }
        let started = Instant::now();
        let (mut losses, mut sum) = (Vec::new(), None);
        for batch in &passes {
            let (loss, gradients) = learner.gradients(&*task, batch, &numerics)?;
            losses.push(loss);
            match &mut sum {
                None => sum = Some(gradients),
                Some(sum) => accumulate(sum, &gradients),
            }
        }
        let sum = sum.unwrap_or_default();
        learner.update(update, &losses, &sum, &Solo)?.wait()?;
        tensor::kernel::finish(device)?;
        if update >= updates {
            times.push(started.elapsed().as_secs_f64());
        }
    }
    times.sort_by(f64::total_cmp);
    let seconds_per_update = times[times.len() / 2];
    let memory_bytes = device.usage().peak;
    let started = Instant::now();
    validate(&*task, learner.judged(), training.validation_samples, &Solo)?;
    let seconds_per_validation = started.elapsed().as_secs_f64();
    let validations = training.updates.div_ceil(training.validate_every);
    let seconds =
        seconds_per_update * training.updates as f64 + seconds_per_validation * validations as f64;
    let samples = training.updates * training.samples_per_update();
    let files = learner.files(&Solo)?.unwrap_or_default();
    let tensors = files.into_iter().flat_map(|(_, tensors)| tensors);
    Ok(Estimate {
        stage: configured.spec.name.into(),
        parameters: learner.params.count(),
        samples: task::samples(&*task),
        updates: training.updates,
        epochs: samples as f64 / task::samples(&*task) as f64,
        memory_bytes,
        plan: numerics.recompute.plan(),
        checkpoint_bytes: tensors.map(|(_, t)| t.bytes()).sum(),
        seconds_per_update,
        seconds_per_validation,
        seconds,
        cost: seconds / 3600.0 * config.cost.rate_per_hour,
    })
}
