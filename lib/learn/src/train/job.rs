//! A training job, and which keys of its configuration determine the result.

use crate::task::Configured;
use dist::Collective;
use serde_json::Value;
use std::path::PathBuf;
use tensor::Device;

/// Where an attempt resumes. `Never` and `From` apply until the run has a checkpoint that descends from such an
/// attempt; after that they mean `Auto`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resume {
    /// From the newest good checkpoint of the run, or at update 0 if there is none.
    Auto,
    /// At update 0; refused if the run has checkpoints.
    Never,
    /// From this checkpoint, of this run or another with the same configuration.
    From(PathBuf),
}

/// A training job.
pub struct TrainJob<'a> {
    /// The task and its configuration.
    pub task: Configured,
    /// The run directory.
    pub run: PathBuf,
    /// Where it resumes.
    pub resume: Resume,
    /// Whether to accept a configuration or data that differ from those of the checkpoint.
    pub accept_changes: bool,
    /// Whether to try again although the run is blocked.
    pub retry: bool,
    /// The device.
    pub device: Device,
    /// Why this device was chosen, as text for users.
    pub why_device: String,
    /// The ranks of the run.
    pub ranks: &'a dyn Collective,
}

impl<'a> TrainJob<'a> {
    /// A run of `task` in the directory `run`, resumed from its newest checkpoint if it has one.
    pub fn new(task: Configured, run: PathBuf, device: Device, ranks: &'a dyn Collective) -> Self {
        Self {
            task,
            run,
            resume: Resume::Auto,
            accept_changes: false,
            retry: false,
            device,
            why_device: "asked for".into(),
            ranks,
        }
    }
}

/// Keys that may change between attempts: they affect how the run is executed, not its result.
const OPERATIONAL: [&str; 16] = [
    "optimizer.shard",
    "training.compile",
    "training.mem_budget",
    "training.attempts_without_progress",
    "training.verify_every",
    "training.hash_every",
    "training.threads",
    "training.time_limit",
    "training.prefetch",
    "training.workers",
    "training.log_every",
    "checkpoint.keep_last",
    "checkpoint.keep_best",
    "checkpoint.keep_every",
    "checkpoint.failed_saves",
    "cost",
];

/// The configuration without [`OPERATIONAL`] keys.
pub(super) fn without_operational(resolved: &Value) -> Value {
    let mut kept = resolved.clone();
    for key in OPERATIONAL {
        let (path, last) = key.rsplit_once('.').unwrap_or(("", key));
        let pointer = if path.is_empty() { String::new() } else { format!("/{path}") };
        if let Some(map) = kept.pointer_mut(&pointer).and_then(Value::as_object_mut) {
            map.remove(last);
        }
    }
    kept
}
