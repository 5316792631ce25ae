//! Checkpoints: folders that are whole, or are passed over.
//!
//! `RUN/ckpt/step-00001200/` holds `manifest.json` and one safetensors file for each part of the
//! state (`model`, `ema`, `optim-0-of-1`, …). A save writes a temporary folder beside it, hashing at
//! the same time: every file fsynced, then the folder, the manifest last, the folder fsynced again, renamed,
//! and its parent fsynced; then everything is read back before anything older goes. Interrupted at any
//! instruction, a reader sees the old checkpoints or the new one. `latest` and `best` are links for people; loading lists the folders.
//!
//! [`Saver`] does it beside training; [`load_newest`] finds where to go on.

mod adopt;
mod average;
mod condition;
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
mod pattern;
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

pub use adopt::{Adopted, adopt};
pub use average::average;
pub use condition::Condition;
pub use diff::{Change, Difference, FieldDifference, TensorDifference, diff};
pub use export::export;
pub use find::{all_in, manifest_of, one_in};
pub(crate) use hold::hold;
pub use import::import;
pub use keep::{KeepRules, best};
pub use list::{Entry, list};
pub use listing::{Listing, listing};
pub use load::{Loaded, load, load_newest};
pub use manifest::{FileEntry, Manifest, TensorEntry};
pub use pattern::matches;
pub use prune::{Pruned, monitor_of, prune, summary};
pub use saver::{Done, Saved, Saver};
pub use shards::reshard;
pub(crate) use shards::{parts, split};
pub use statistics::{Statistics, statistics};
pub use verify::{Damage, Report, verify};
pub use write::write;

use std::collections::BTreeMap;

use crate::task::{Dependencies, Direction};
use serde_json::Value;
use tensor::Tensor;
use unix::Result;
use unix::lease::Fence;

/// Bytes that are copied or hashed at a time: large enough that calls do not count, small enough to stay in the cache
/// between two hashes.
const PIECE: usize = 1 << 20;

/// The tensors of each file by the file's stem (`model`, `ema`, `optim-0-of-1`); names and order are
/// kept.
pub type Tensors = BTreeMap<String, Vec<(String, Tensor)>>;

/// What a checkpoint holds.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// The tensors.
    pub tensors: Tensors,
    /// Updates done.
    pub update: u64,
    /// Everything else that training needs to go on exactly.
    pub progress: Value,
    /// Results of the last validation by name.
    pub metrics: Value,
    /// The one of them that tells which checkpoint is the best; empty for none.
    pub monitor: String,
    /// Whether a larger or a smaller value of it is better.
    pub direction: Direction,
    /// Seed of the run.
    pub seed: u64,
    /// Ranks that trained it; 0 for none.
    pub world: u64,
    /// Name of the training stage.
    pub stage: String,
    /// The resolved configuration, without secrets.
    pub config: Value,
    /// Hash of the configuration.
    pub config_hash: String,
    /// Hash of the data.
    pub data_hash: String,
    /// The trained models that a user of the model needs as well, by name.
    pub dependencies: Dependencies,
    /// What forbids to write it, should another process have taken the run over.
    pub fence: Option<Fence>,
    /// What must hold before it gets its name.
    pub condition: Option<Condition>,
}

impl State {
    /// A state like the one that `manifest` tells of: same stage, configuration and data, without tensors
    /// and results. What training would need to go on is not in it, and `progress` says why.
    fn like(manifest: &Manifest, update: u64, progress: Value) -> Self {
        Self {
            update,
            progress,
            metrics: Value::Object(serde_json::Map::new()),
            monitor: manifest.monitor.clone(),
            direction: manifest.direction,
            seed: manifest.seed,
            stage: manifest.stage.clone(),
            config: manifest.config.clone(),
            config_hash: manifest.config_hash.clone(),
            data_hash: manifest.data_hash.clone(),
            dependencies: manifest.dependencies.clone(),
            ..Self::default()
        }
    }

    /// Errors: 75 when another process has taken the run over.
    fn may_be_written(&self) -> Result<()> {
        self.fence.as_ref().map_or(Ok(()), Fence::look)
    }
}
