//! Where the checkpoints of a run started from; this makes `--resume PATH` and `--resume never` repeatable.
//!
//! An attempt that applies either of them records it in the progress of every checkpoint that it and later attempts
//! write. When the same command is given again, e.g. after a requeue, the newest checkpoint descends from it, and the
//! attempt resumes there, as with `auto`.

use crate::checkpoint::Manifest;
use crate::train::job::{Resume, TrainJob, without_operational};
use serde::{Deserialize, Serialize};
use std::path::{Path, absolute};
use unix::publish::hash_file;
use unix::small::require_file;

/// The `--resume` that a checkpoint descends from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// `never`, or the absolute path of the checkpoint.
    resume: String,
    /// BLAKE3 of that checkpoint's manifest.
    manifest: Option<String>,
}

impl Origin {
    /// The origin that `resume` asks for; None for `auto`.
    pub(in crate::train) fn of(resume: &Resume) -> Option<Self> {
        match resume {
            Resume::Auto => None,
            Resume::Never => Some(Self { resume: "never".into(), manifest: None }),
            Resume::From(path) => {
                let full = absolute(path).unwrap_or_else(|_| path.clone());
                // It may have been pruned since; then only the path identifies it.
                let file = path.join("manifest.json");
                let manifest = require_file(&file).and_then(|_| hash_file(&file)).ok();
                Some(Self { resume: full.display().to_string(), manifest })
            }
        }
    }

    /// Whether both name the same path, or the same checkpoint under different paths.
    fn is_same(&self, other: &Self) -> bool {
        Path::new(&self.resume) == Path::new(&other.resume)
            || self.manifest.is_some() && self.manifest == other.manifest
    }
}

/// Whether an attempt resumes from the checkpoint of `manifest` although `--resume` names another: it descends
/// from the same `--resume`, with the same configuration. Always for `auto`.
pub(in crate::train) fn continues(job: &TrainJob, manifest: &Manifest) -> bool {
    let Some(wanted) = Origin::of(&job.resume) else { return true };
    let recorded =
        manifest.progress.get("origin").and_then(|value| Origin::deserialize(value).ok());
    recorded.is_some_and(|recorded| wanted.is_same(&recorded))
        && without_operational(&manifest.config) == without_operational(&job.task.resolved)
}
