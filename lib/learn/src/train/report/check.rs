//! Checks data, disk space and memory before a run. (The configuration was validated when it was loaded.)

use super::estimate::{self, Estimate};
use crate::checkpoint;
use crate::task::ConfiguredTask;
use crate::train::guard::not_of_checkpoint;
use data::inputs::verify_all;
use std::path::Path;
use tensor::Device;
use unix::space::{ensure_space, human_bytes};
use unix::{Error, Exit, Result};

/// Result of the checks: all problems found, and an estimate of the run if it could be measured.
pub struct DryRun {
    /// Problems, each with advice on how to fix it.
    pub problems: Vec<Error>,
    /// Estimate of the run; None if its data cannot be opened or an update failed.
    pub estimate: Option<Estimate>,
}

/// Checks the data, the run directory, disk space and memory for a run.
pub fn check(task: &ConfiguredTask, device: Device, run: &Path) -> DryRun {
    let mut problems = bad_inputs(task, run);
    let estimate = match estimate::without_times(task, device) {
        Ok(estimate) => Some(estimate),
        Err(error) => {
            // If the data cannot be opened, the error has already been reported above.
            if problems.is_empty() {
                problems.push(error);
            }
            None
        }
    };
    if let Err(error) = writable(run) {
        problems.push(error);
    }
    if let Some(estimate) = &estimate {
        let bytes = checkpoints(task).saturating_mul(estimate.checkpoint_bytes as u64);
        if let Err(error) = ensure_space(&run.join("ckpt"), bytes) {
            problems.push(error);
        }
        if let Some(available) = estimate.lacks_memory(device) {
            problems.push(Error::new(
                Exit::Failure,
                format!(
                    "memory: an update needs {}, the machine has {} available; \
                     lower training.batch_size and raise training.accumulation",
                    human_bytes(estimate.memory_bytes as u64),
                    human_bytes(available)
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
