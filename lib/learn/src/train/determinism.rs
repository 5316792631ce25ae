//! Checks that repeated training is bit-identical.

use super::Progress;
use super::step::{Files, Trainer};
use crate::task::ConfiguredTask;
use dist::Solo;
use serde::Serialize;
use std::time::Instant;
use tensor::Device;
use unix::{Error, Exit, Result};

/// Updates per repetition; a shorter run is repeated as a whole.
const UPDATES: u64 = 50;

/// Result of repetitions that agree.
#[derive(Clone, Debug, Serialize)]
pub struct Determinism {
    /// Task name.
    pub task: String,
    /// Number of repetitions.
    pub runs: u64,
    /// Updates per repetition.
    pub updates: u64,
    /// Number of tensors compared: parameters, their moving average and the optimizer state.
    pub tensors: usize,
    /// Hash of the parameters, as a run logs it (`training.hash_every`).
    pub parameters: String,
}

/// Trains `runs` times from the same configuration, without a run directory, and compares every tensor that a
/// checkpoint would contain. Errors: 1 if repetitions differ, naming the first differing tensor; errors of the task and
/// the device.
pub fn verify_determinism(task: &ConfiguredTask, device: Device, runs: u64) -> Result<Determinism> {
    tensor::parallel::inside(|| {
        let updates = task.config.training.updates.min(UPDATES);
        let (parameters, first) = train(task, device, updates)?;
        for run in 2..=runs {
            let (_, again) = train(task, device, updates)?;
            if let Some(name) = differing(&first, &again) {
                return Err(Error::new(
                    Exit::Failure,
                    format!(
                        "{name} differs between repetition 1 and {run} of {runs} after {updates} updates with the \
                         same configuration on {device}; training.verify_every finds faulty hardware during a run"
                    ),
                ));
            }
        }
        let tensors = first.iter().map(|(_, tensors)| tensors.len()).sum();
        Ok(Determinism { task: task.spec.name.into(), runs, updates, tensors, parameters })
    })
}

/// Returns the parameter hash after `updates` updates, and all tensors of a checkpoint.
fn train(configured: &ConfiguredTask, device: Device, updates: u64) -> Result<(String, Files)> {
    let (task, mut params) = configured.open()?;
    configured.init(&mut params, None)?;
    let mut trainer = Trainer::new(
        configured,
        device,
        &Solo,
        (task, params),
        &Progress::new(&configured.config.training),
    )?;
    for update in 0..updates {
        trainer.step(update, 0)?.wait(Instant::now())?;
    }
    Ok((trainer.learner.hash()?, trainer.learner.files(&Solo)?.unwrap_or_default()))
}

/// Returns the file and name of the first tensor whose bits differ.
fn differing(a: &Files, b: &Files) -> Option<String> {
    a.iter().zip(b).find_map(|((file, a), (_, b))| {
        let mut pairs = a.iter().zip(b);
        let differs = pairs.find(|((_, a), (_, b))| a.as_bytes() != b.as_bytes());
        differs.map(|((name, _), _)| format!("{file}: {name}"))
    })
}
