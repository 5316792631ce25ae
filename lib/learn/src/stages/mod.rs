//! The stages of training, a file each: what a sample is, what is minimised, how it is judged.

pub mod codec;
pub mod operator;

use crate::config::Config;
use crate::params::Params;
use crate::pass::Pass;
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

/// One kind of training. The loop knows nothing else of what it trains.
pub trait Stage: Sized + Send + Sync + 'static {
    /// Name on the command line and in files.
    const NAME: &'static str;
    /// The metric by which checkpoints are best; smaller is better.
    const METRIC: &'static str;
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

    /// Samples in an epoch.
    fn samples(&self) -> u64;

    /// Hash of everything that is learned from: a run may only go on with the same.
    fn data_hash(&self) -> String;

    /// The batch of these samples at this update: a function of its arguments alone.
    fn batch(&self, update: u64, samples: &[u64]) -> Result<Self::Batch>;

    /// The loss of a batch.
    fn loss(&self, pass: &Pass, batch: &Self::Batch) -> Result<Var>;

    /// Metrics on the validation split, `METRIC` among them; 0 samples for all.
    fn validate(&self, params: &Params, samples: u64) -> Result<Metrics>;

    /// What a user of the model needs beside its parameters.
    fn constants(&self) -> Constants;
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

/// `count` of `total` numbers, spread evenly; all of them for 0.
pub(crate) fn spread(total: u64, count: u64) -> Vec<u64> {
    let count = if count == 0 { total } else { count.min(total) };
    (0..count).map(|i| i * total / count).collect()
}

/// Opens a split of a data set that must have trajectories.
pub(crate) fn open_split(manifest: &Path, name: SplitName) -> Result<TrajectorySet> {
    let set = TrajectorySet::open(manifest, name, Verify::Sizes)?;
    if set.is_empty() {
        return Err(unix::Error::data(format!(
            "{}: the {name} split is empty; split again with a share for it",
            manifest.display()
        )));
    }
    Ok(set)
}
