//! What is to be trained, and what of its configuration makes it what it is.

use crate::task::Configured;
use dist::Collective;
use serde_json::Value;
use std::path::PathBuf;
use tensor::Device;

/// Where a start begins. `Never` and `From` hold until the run has a checkpoint that descends from such a
/// start; then they mean `Auto`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resume {
    /// From the newest good checkpoint of the run, or anew when there is none.
    Auto,
    /// Anew; refused where the run has checkpoints.
    Never,
    /// From this checkpoint, of this run or another with the same configuration.
    From(PathBuf),
}

/// What is to be trained.
pub struct Job<'a> {
    /// The task and its configuration.
    pub task: Configured,
    /// The run directory.
    pub run: PathBuf,
    /// From where to go on.
    pub resume: Resume,
    /// Whether to go on with a configuration or data that are not those of the checkpoint.
    pub accept_changes: bool,
    /// Whether to try again what failed in a way that another start would repeat.
    pub retry: bool,
    /// Where to compute.
    pub device: Device,
    /// Why there, for people.
    pub why_device: String,
    /// The ranks of the run.
    pub ranks: &'a dyn Collective,
}

impl<'a> Job<'a> {
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

/// Keys that may change from start to start: they decide how the run is made, not what it becomes.
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

/// The configuration without what may change from start to start.
pub(super) fn identity(resolved: &Value) -> Value {
    let mut identity = resolved.clone();
    for key in OPERATIONAL {
        let (path, last) = key.rsplit_once('.').unwrap_or(("", key));
        let pointer = if path.is_empty() { String::new() } else { format!("/{path}") };
        if let Some(map) = identity.pointer_mut(&pointer).and_then(Value::as_object_mut) {
            map.remove(last);
        }
    }
    identity
}
