//! Trained models, read from a checkpoint.

use crate::checkpoint::{self, Loaded};
use crate::task::{Buffers, Define, Hashes};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use tensor::Tensor;
use unix::{Error, Result, warn};

/// Which weights of a checkpoint are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Weights {
    /// Their moving average, where the checkpoint has one.
    #[default]
    #[serde(rename = "ema")]
    Average,
    /// As the optimizer left them.
    #[serde(rename = "raw")]
    Raw,
}

impl FromStr for Weights {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "ema" => Ok(Self::Average),
            "raw" => Ok(Self::Raw),
            _ => Err(format!("no weights `{text}`; there are ema and raw")),
        }
    }
}

impl fmt::Display for Weights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Average => "ema",
            Self::Raw => "raw",
        })
    }
}

/// Where the weights of a model came from.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Origin {
    /// The checkpoint.
    pub checkpoint: PathBuf,
    /// Updates done when it was saved.
    pub update: u64,
    /// Which of its weights.
    pub weights: Weights,
    /// Hash of the data it was trained on: of fields that of the split manifest, or of several, with `+`
    /// between them.
    pub data: String,
}

impl Origin {
    /// Whether it was trained on the data of the split manifest with this hash, among others perhaps.
    pub fn was_trained_on(&self, manifest_hash: &str) -> bool {
        self.data.split('+').any(|hash| hash == manifest_hash)
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} weights)", self.checkpoint.display(), self.weights)
    }
}

/// What a trained model is made of.
#[derive(Clone, Debug)]
pub struct Parts {
    /// Where it came from.
    pub origin: Origin,
    /// The resolved configuration of its training.
    pub config: serde_json::Value,
    /// Its parameters by name.
    pub weights: Vec<(String, Tensor)>,
    /// Tensors that were not trained.
    pub buffers: Buffers,
    /// Hashes by name.
    pub hashes: Hashes,
}

impl Parts {
    /// Reads a checkpoint of task `T`; of a run the best one, or the newest good one where that is
    /// damaged or there is none.
    ///
    /// Errors: 66 when there is none, 65 when it is damaged or of another task.
    pub fn read<T: Define>(path: &Path, weights: Weights) -> Result<Self> {
        let found = find(path)?;
        let (file, task) = (found.path().to_path_buf(), &found.manifest.stage);
        let bad = |what: String| Error::data(format!("{}: {what}", file.display()));
        let wanted = T::SPEC.name;
        if task != wanted {
            return Err(bad(format!("a checkpoint of stage {task}; wanted is one of {wanted}")));
        }
        let need = |name: &str| {
            found.tensors(name).ok_or_else(|| bad(format!("there is no {name}.safetensors")))
        };
        let average = match weights {
            Weights::Average => found.tensors("ema"),
            Weights::Raw => None,
        };
        let used = if average.is_some() { Weights::Average } else { Weights::Raw };
        Ok(Self {
            weights: average.map_or_else(|| need("model"), Ok)?,
            buffers: need("buffers")?,
            config: found.manifest.config.clone(),
            hashes: found.manifest.hashes.clone(),
            origin: Origin {
                checkpoint: file,
                update: found.manifest.update,
                weights: used,
                data: found.manifest.data_hash.clone(),
            },
        })
    }

    /// A section of the configuration.
    pub fn section<T: DeserializeOwned>(&self, name: &str) -> Result<T> {
        serde_json::from_value(self.config[name].clone())
            .map_err(|cause| Error::data(format!("its configuration, {name}: {cause}")))
    }
}

/// All parameters of a checkpoint, trained and frozen as far as it holds them; of a run those of the best checkpoint.
/// Errors: 66 when there is none, 65 when it is damaged.
pub fn weights(path: &Path, weights: Weights) -> Result<Vec<(String, Tensor)>> {
    let found = find(path)?;
    let average = found.tensors("ema").filter(|_| weights == Weights::Average);
    let trained = average.or_else(|| found.tensors("model")).ok_or_else(|| {
        Error::data(format!("{}: there is no model.safetensors", found.path().display()))
    })?;
    Ok(trained.into_iter().chain(found.tensors("frozen").unwrap_or_default()).collect())
}

/// The checkpoint that `path` means.
fn find(path: &Path) -> Result<Loaded> {
    let checkpoints = path.join("ckpt");
    if !checkpoints.is_dir() {
        return checkpoint::load(path);
    }
    // Not by the link `best`, which may be missing in a copy or point elsewhere.
    if let Some(best) = checkpoint::best(&checkpoints)? {
        match checkpoint::load(&best) {
            Ok(found) => return Ok(found),
            Err(error) => warn!("{error}; taking the newest good checkpoint"),
        }
    }
    checkpoint::load_newest(&checkpoints)?
        .ok_or_else(|| Error::open(path, "the run has no checkpoint yet"))
}
