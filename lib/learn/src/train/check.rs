//! All that can be known to be wrong before a run: data, space, memory. (The configuration was
//! checked when it was loaded.)

use super::dry_run::{self, Estimate};
use crate::config::Config;
use crate::stages::{ConfigOf, Stage};
use std::path::Path;
use tensor::Device;
use unix::space::{ensure_space, human_bytes};
use unix::{Error, Exit, Result};

/// Every fault found, and what the run will need when it could be measured.
pub struct Report {
    /// Faults, each with what to do.
    pub faults: Vec<Error>,
    /// What the run will need.
    pub estimate: Option<Estimate>,
}

/// Checks a run.
pub fn check<S: Stage>(config: &ConfigOf<S>, device: Device, run: &Path) -> Report {
    let mut faults = Vec::new();
    let estimate = match dry_run::measure::<S>(config, device, 1) {
        Ok(estimate) => Some(estimate),
        Err(error) => {
            faults.push(error);
            None
        }
    };
    if let Err(error) = writable(run) {
        faults.push(error);
    }
    if let Some(estimate) = &estimate {
        let bytes = checkpoints(config) * estimate.checkpoint_bytes as u64;
        if let Err(error) = ensure_space(&run.join("ckpt"), bytes) {
            faults.push(error);
        }
        if device == Device::Cpu
            && let Some(available) =
                unix::memory::available().filter(|a| *a < estimate.memory_bytes as u64)
        {
            faults.push(Error::new(
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
    Report { faults, estimate }
}

/// Checkpoints that may lie on the disk at once, the one being written included.
fn checkpoints<D, M, L>(config: &Config<D, M, L>) -> u64 {
    let rules = &config.checkpoint;
    let for_ever = match rules.keep_every {
        0 => 0,
        n => config.training.updates / n,
    };
    (rules.keep_last + rules.keep_best) as u64 + for_ever + 1
}

/// Whether the run directory, or the nearest folder above it that exists, can be written to.
fn writable(run: &Path) -> Result<()> {
    let run = std::path::absolute(run).map_err(|cause| Error::create(run, cause))?;
    let folder = run.ancestors().find(|p| p.exists()).unwrap_or(Path::new("/"));
    let probe = folder.join(format!(".longhaul-check-{}", std::process::id()));
    let made = std::fs::OpenOptions::new().write(true).create_new(true).open(&probe);
    made.map_err(|cause| Error::create(&run, cause))?;
    std::fs::remove_file(&probe).map_err(|cause| Error::io(&probe, cause))
}
