//! Records the origin of a run's checkpoints, which makes `--resume PATH` and `--resume never` repeatable.
//!
//! An attempt that applies either option records it in the progress, and hence in all checkpoints written by it and by
//! later attempts. When the same command is run again, e.g. after a requeue, the newest checkpoint descends from that
//! option, and the attempt resumes from it, as with `auto`.

use crate::checkpoint::Manifest;
use crate::train::job::{Resume, TrainJob, without_operational};
use serde::{Deserialize, Serialize};
use std::path::{Path, absolute};
use unix::publish::hash_file;
use unix::small::require_file;

/// The `--resume` option that a checkpoint descends from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// `never`, or the absolute path of the checkpoint.
    resume: String,
    /// BLAKE3 hash of that checkpoint's manifest; None if it cannot be read.
    manifest: Option<String>,
}

impl Origin {
    /// Returns the origin for the option `resume`; None for `auto`.
    pub(in crate::train) fn of(resume: &Resume) -> Option<Self> {
        match resume {
            Resume::Auto => None,
            Resume::Never => Some(Self { resume: "never".into(), manifest: None }),
            Resume::From(path) => {
                let full = absolute(path).unwrap_or_else(|_| path.clone());
                // The checkpoint may have been pruned since; then only its path identifies it.
                let file = path.join("manifest.json");
                let manifest = require_file(&file).and_then(|_| hash_file(&file)).ok();
                Some(Self { resume: full.display().to_string(), manifest })
            }
        }
    }

    /// Whether both refer to the same path, or to the same checkpoint under different paths.
    fn is_same(&self, other: &Self) -> bool {
        Path::new(&self.resume) == Path::new(&other.resume)
            || self.manifest.is_some() && self.manifest == other.manifest
    }
}

/// Whether an attempt resumes from the checkpoint of `manifest` regardless of `--resume`: the checkpoint must descend
/// from the same `--resume` and have the same configuration. Always true for `auto`.
pub(in crate::train) fn continues(job: &TrainJob, manifest: &Manifest) -> bool {
    let Some(wanted) = Origin::of(&job.resume) else { return true };
    let recorded =
        manifest.progress.get("origin").and_then(|value| Origin::deserialize(value).ok());
    recorded.is_some_and(|recorded| wanted.is_same(&recorded))
        && without_operational(&manifest.config) == without_operational(&job.task.resolved)
}
