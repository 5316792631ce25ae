//! The stages of training, a file each: what a sample is, what is minimised, how it is judged.

pub mod codec;
pub mod operator;
mod sources;
pub mod steady;

pub use sources::{FieldSource, Sources};

use crate::config::Config;
use crate::metrics::Regimes;
use crate::params::Params;
use crate::pass::Pass;
use data::inputs::InputFile;
use data::split::SplitName;
use data::split_set::{TrajectorySet, Verify};
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::path::Path;
use tensor::{Device, Tensor, Var};
use unix::Result;

/// Measured values by name.
pub type Metrics = BTreeMap<String, f64>;

/// Tensors that belong to a model and are not trained: normalisation, above all.
pub type Constants = Vec<(String, Tensor)>;

/// Hashes that belong to a model, by name: of the codec whose latents it reads.
pub type Hashes = BTreeMap<String, String>;

/// One kind of training. The loop knows nothing else of what it trains.
pub trait Stage: Sized + Send + Sync + 'static {
    /// Name on the command line and in files.
    const NAME: &'static str;
    /// The metric by which checkpoints are best, that of [`Stage::judge`]; smaller is better.
    const METRIC: &'static str;
    /// A small configuration to start from, as `train-stage STAGE --example` prints it.
    const EXAMPLE: &'static str;
    /// Sections of the configuration of this stage.
    type Data: Section;
    /// As `Data`.
    type Model: Section;
    /// As `Data`.
    type Loss: Section;
    /// What one forward pass needs, made ahead on another thread.
    type Batch: Batch;

    /// Opens the data and builds the model with its initial parameters.
    fn open(config: &ConfigOf<Self>) -> Result<(Self, Params)>;

    /// Samples of each source, and its weight: one, or several whose samples are mixed. They are
    /// numbered over all sources, in this order.
    fn sources(&self) -> Vec<(u64, f64)>;

    /// Samples of all sources: those of an epoch.
    fn samples(&self) -> u64 {
        self.sources().iter().map(|(samples, _)| samples).sum()
    }

    /// Hash of everything that is learned from, by the hashes that [`Stage::input_files`] are verified against: a
    /// run only resumes with the same data.
    fn data_hash(&self) -> String;

    /// The files that training and validation read, each once.
    fn input_files(&self) -> Vec<InputFile>;

    /// The batch of these samples of a pass, of which the first has place `first` among those of all
    /// ranks: a function of its arguments alone.
    fn batch(&self, pass: u64, first: u64, samples: &[u64]) -> Result<Self::Batch>;

    /// The loss of a batch.
    fn loss(&self, pass: &Pass, batch: &Self::Batch) -> Result<Var>;

    /// Samples of the validation split.
    fn validation_samples(&self) -> u64;

    /// Errors on these samples of the validation split.
    fn judge(&self, params: &Params, samples: &[u64]) -> Result<Regimes>;

    /// What a user of the model needs beside its parameters.
    fn constants(&self) -> Constants;

    /// Hashes that a user of the model must compare; they go into the manifest of a checkpoint.
    fn hashes(&self) -> Hashes {
        Hashes::new()
    }
}

/// What one forward pass needs: made on the host, used on a device.
pub trait Batch: Sized + Send + 'static {
    /// The same on `device`.
    fn to_device(self, device: Device) -> Result<Self>;

    /// All of it, in a fixed order.
    fn tensors(&self) -> Vec<&Tensor>;
}

impl Batch for Tensor {
    fn to_device(self, device: Device) -> Result<Self> {
        Tensor::to_device(&self, device)
    }

    fn tensors(&self) -> Vec<&Tensor> {
        vec![self]
    }
}

/// What a section of a configuration must be able to do.
pub trait Section:
    Clone + Serialize + DeserializeOwned + JsonSchema + Send + Sync + 'static
{
}

impl<T: Clone + Serialize + DeserializeOwned + JsonSchema + Send + Sync + 'static> Section for T {}

/// The configuration of a stage.
pub type ConfigOf<S> = Config<<S as Stage>::Data, <S as Stage>::Model, <S as Stage>::Loss>;

/// Opens a split of a data set that must have trajectories, to be read in every epoch.
pub(crate) fn open_split(manifest: &Path, name: SplitName) -> Result<TrajectorySet> {
    let set = TrajectorySet::open(manifest, name, Verify::Sizes)?;
    if set.is_empty() {
        return Err(unix::Error::data(format!(
            "{}: the {name} split is empty; split again with a share for it",
            manifest.display()
        )));
    }
    set.read_often();
    Ok(set)
}
