//! Where the checkpoints of a run started from: makes `--resume PATH` and `--resume never` repeatable.
//!
//! A start that applies either of them records it in the progress of every checkpoint that it and later
//! starts write. The same command given again, as after a requeue, finds that the newest checkpoint descends
//! from it and resumes there, as `auto` does.

use super::job::{Job, Resume, identity};
use crate::checkpoint::Manifest;
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
    /// What `resume` asks for; none for `auto`.
    pub(super) fn of(resume: &Resume) -> Option<Self> {
        match resume {
            Resume::Auto => None,
            Resume::Never => Some(Self { resume: "never".into(), manifest: None }),
            Resume::From(path) => {
                let full = absolute(path).unwrap_or_else(|_| path.clone());
                // Later it may have been pruned: then the path has to do.
                let file = path.join("manifest.json");
                let manifest = require_file(&file).and_then(|_| hash_file(&file)).ok();
                Some(Self { resume: full.display().to_string(), manifest })
            }
        }
    }

    /// The same path, or the same checkpoint under another path.
    fn is_same(&self, other: &Self) -> bool {
        Path::new(&self.resume) == Path::new(&other.resume)
            || self.manifest.is_some() && self.manifest == other.manifest
    }
}

/// Whether a start resumes from the checkpoint of `manifest` although `--resume` names another: it descends
/// from the same `--resume`, with the same configuration. Always for `auto`.
pub(super) fn continues(job: &Job, manifest: &Manifest) -> bool {
    let Some(wanted) = Origin::of(&job.resume) else { return true };
    let recorded =
        manifest.progress.get("origin").and_then(|value| Origin::deserialize(value).ok());
    recorded.is_some_and(|recorded| wanted.is_same(&recorded))
        && identity(&manifest.config) == identity(&job.task.resolved)
}
