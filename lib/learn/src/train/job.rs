//! A training job, and the configuration keys that do not affect its result.

use super::memory::MemoryAdaptation;
use crate::task::ConfiguredTask;
use dist::Collective;
use serde_json::Value;
use std::path::PathBuf;
use tensor::Device;

/// Where an attempt resumes. `Never` and `From` apply until the run has a checkpoint that descends from an attempt with
/// the same value; after that they act like `Auto`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resume {
    /// The newest good checkpoint of the run; update 0 if there is none.
    Auto,
    /// Update 0; refused if the run has checkpoints.
    Never,
    /// This checkpoint, from this run or another with the same configuration.
    From(PathBuf),
}

/// A training job.
pub struct TrainJob<'a> {
    /// Task and its configuration.
    pub task: ConfiguredTask,
    /// The run directory.
    pub run: PathBuf,
    /// Where the run resumes.
    pub resume: Resume,
    /// Whether to accept a configuration or data that differ from those recorded in the checkpoint.
    pub accept_changes: bool,
    /// Whether to retry a blocked run.
    pub retry: bool,
    /// Device to train on.
    pub device: Device,
    /// Reason for choosing this device, as text for users.
    pub why_device: String,
    /// The ranks of the run.
    pub ranks: &'a dyn Collective,
    /// How the run is adapted to the memory of the device, beside what its checkpoint says.
    pub memory: MemoryAdaptation,
}

impl<'a> TrainJob<'a> {
    /// Price of an hour of the job; 0 if it is unknown.
    pub(super) fn rate_per_hour(&self) -> f64 {
        self.task.config.cost.rate(&self.why_device, self.ranks.size())
    }

    /// Creates a job for `task` in the run directory `run`, which resumes from its newest checkpoint if it has one.
    pub fn new(
        task: ConfiguredTask,
        run: PathBuf,
        device: Device,
        ranks: &'a dyn Collective,
    ) -> Self {
        Self {
            task,
            run,
            resume: Resume::Auto,
            accept_changes: false,
            retry: false,
            device,
            why_device: "asked for".into(),
            ranks,
            memory: MemoryAdaptation::default(),
        }
    }
}

/// Keys that may change between attempts: they affect how the run is executed, but not its result.
const OPERATIONAL: [&str; 18] = [
    "name",
    "optimizer.shard",
    "training.compile",
    "training.mem_budget",
    "training.adapt_to_memory",
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

/// Returns the configuration without [`OPERATIONAL`] keys.
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
