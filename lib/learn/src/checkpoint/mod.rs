//! Crash-safe checkpoints: a checkpoint is either complete or ignored.
//!
//! `RUN/ckpt/step-00001200/` holds `manifest.json` and one safetensors file for each part of the state (`model`, `ema`,
//! `optim-0-of-1`, …). A save writes a temporary directory next to it and hashes the files while writing. All files are
//! fsynced, then the directory, the manifest, and the directory again; finally the directory is renamed and its parent
//! fsynced. Everything is read back and verified before any older checkpoint is removed. After a crash at any point, a
//! reader sees the old checkpoints or the new one. The links `latest` and `best` are for users only; loading lists the
//! directory.
//!
//! [`Saver`] saves concurrently with training; [`load_newest`] finds the checkpoint to resume from.

mod adopt;
mod average;
mod diff;
mod export;
mod find;
mod hold;
mod image;
mod import;
mod keep;
mod list;
mod listing;
mod load;
mod manifest;
mod problem;
mod prune;
mod saver;
mod shards;
mod snapshot;
mod statistics;
mod supersede;
mod tensor_file;
mod trash;
mod verify;
mod write;

pub use adopt::{AdoptOutcome, adopt};
pub use average::average;
pub(crate) use diff::value_differences;
pub use diff::{Change, Difference, FieldDifference, TensorDifference, diff};
pub use export::export;
pub use find::{all_in, manifest_of, one_in};
pub(crate) use hold::hold;
pub use import::import;
pub use keep::{KeepRules, best};
pub use list::{Entry, list};
pub use listing::{Listing, listing};
pub use load::{Loaded, load, load_at, load_newest};
pub use manifest::{FileEntry, Manifest, TensorEntry};
pub use prune::{Pruned, monitor_of, prune, summary};
pub use saver::{Done, Saved, Saver};
pub use shards::reshard;
pub(crate) use shards::{parts, split};
pub use statistics::{Statistics, statistics};
pub use verify::{Damage, VerifyReport, verify};
pub use write::write;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::dependency::Dependencies;
use crate::score::Direction;
use serde_json::Value;
use tensor::Tensor;
use unix::Result;
use unix::lease::Fence;

/// Chunk size in bytes for copying and hashing: large enough to make the call overhead negligible, small enough to stay
/// in cache between two hashes.
const PIECE: usize = 1 << 20;

/// Tensors by file stem (`model`, `ema`, `optim-0-of-1`). Names and order are preserved.
pub type Tensors = BTreeMap<String, Vec<(String, Tensor)>>;

/// Condition checked after all files of a checkpoint except the manifest have been written. If it returns an error, no
/// checkpoint is created. It may block while waiting for other threads.
pub type Condition = Arc<dyn Fn(&[FileEntry]) -> Result<()> + Send + Sync>;

/// State stored in a checkpoint.
#[derive(Clone, Default)]
pub struct State {
    /// Tensors by file stem.
    pub tensors: Tensors,
    /// Updates completed.
    pub update: u64,
    /// Training-loop state that an exact resume requires.
    pub progress: Value,
    /// Metrics of the last validation by name.
    pub metrics: Value,
    /// The metric that selects the best checkpoint; empty for none.
    pub monitor: String,
    /// Whether `monitor` is minimised or maximised.
    pub direction: Direction,
    /// Seed of the run.
    pub seed: u64,
    /// Number of ranks that trained the model; 0 for none.
    pub world: u64,
    /// Name of the task.
    pub task: String,
    /// The resolved configuration, without secrets.
    pub config: Value,
    /// Hash of the configuration.
    pub config_hash: String,
    /// Hash of the data.
    pub data_hash: String,
    /// Other trained models that using this model requires, by name.
    pub dependencies: Dependencies,
    /// Aborts the save once another process has taken over the run.
    pub fence: Option<Fence>,
    /// Condition that must hold before the checkpoint is published.
    pub condition: Option<Condition>,
}

impl State {
    /// Returns a state with the task, configuration and data hash of `manifest` but without tensors and metrics.
    /// Training cannot resume from it; `progress` records its origin.
    fn like(manifest: &Manifest, update: u64, progress: Value) -> Self {
        Self {
            update,
            progress,
            metrics: Value::Object(serde_json::Map::new()),
            monitor: manifest.monitor.clone(),
            direction: manifest.direction,
            seed: manifest.seed,
            task: manifest.task.clone(),
            config: manifest.config.clone(),
            config_hash: manifest.config_hash.clone(),
            data_hash: manifest.data_hash.clone(),
            dependencies: manifest.dependencies.clone(),
            ..Self::default()
        }
    }

    /// Checks the fence. Errors: 75 when another process has taken over the run.
    fn may_be_written(&self) -> Result<()> {
        self.fence.as_ref().map_or(Ok(()), Fence::check_now)
    }
}
