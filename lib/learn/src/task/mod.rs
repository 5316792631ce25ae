//! The interface between the engine and a task.
//!
//! A task says what a sample is, what is minimised and how a model is scored; the engine ([`crate::train`]) does
//! everything else and knows a task only as `dyn Task`. [`Define`] is the other half: the types of a task's
//! configuration, from which [`Configured::load`] makes the object that the engine opens.

mod batch;

pub use batch::{Batch, Predictions};

use crate::config::Config;
use crate::forward::Forward;
use crate::params::ParamSet;
use crate::score::Scores;
use data::inputs::InputFile;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;
use tensor::{Tensor, Var};
use unix::config::{self, Violations};
use unix::{Error, Result};

/// Tensors that belong to a model and are not trained: normalisation, above all.
pub type Buffers = Vec<(String, Tensor)>;

/// The trained models that a model depends on, by name: the `codec` whose latents it reads.
pub type Dependencies = BTreeMap<String, Dependency>;

/// A trained model that another one depends on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dependency {
    /// Its run directory or checkpoint when it was used; absent where that is not known.
    pub path: Option<PathBuf>,
    /// Hash of its configuration, weights and buffers: what it is replaced by must have the same.
    pub hash: String,
}

/// Whether a larger or a smaller value of a metric is better.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// Smaller is better: losses, errors.
    #[default]
    Minimize,
    /// Larger is better: accuracy, F1.
    Maximize,
}

impl Direction {
    /// Whether `a` is strictly better than `b`; a NaN never is.
    pub fn is_better(self, a: f64, b: f64) -> bool {
        match self {
            Self::Minimize => a < b,
            Self::Maximize => a > b,
        }
    }
}

/// What is fixed about a task.
#[derive(Debug)]
pub struct Spec {
    /// Its name on the command line, in logs and in checkpoints.
    pub name: &'static str,
    /// The metric of [`Task::evaluate`] that tells which checkpoint is best.
    pub metric: &'static str,
    /// Whether larger or smaller values of it are better.
    pub direction: Direction,
    /// A small configuration to start from, as `train-stage TASK --example` prints it.
    pub example: &'static str,
}

impl Spec {
    /// What is fixed about the task `name`.
    pub const fn new(
        name: &'static str,
        metric: &'static str,
        direction: Direction,
        example: &'static str,
    ) -> Self {
        Self { name, metric, direction, example }
    }
}

/// The loss of a micro-batch.
pub struct Loss {
    /// Sum over the samples, each times its weight, f32 [1]. The engine divides it by the sum of
    /// [`Batch::weight`] over the micro-batches and ranks of the update.
    pub sum: Var,
    /// Parts of it by name, for the log: sums as `sum` is, f32 [1]. The names are the same for every batch.
    pub terms: Vec<(&'static str, Tensor)>,
}

impl From<Var> for Loss {
    fn from(sum: Var) -> Self {
        Self { sum, terms: Vec::new() }
    }
}

/// What the engine asks of a task whose data is open.
pub trait Task: Send + Sync {
    /// Samples of each source, and its weight: one, or several that are mixed. Samples are numbered over
    /// all sources, in this order.
    fn sources(&self) -> Vec<(u64, f64)>;

    /// Hash of everything that is learned from, by the hashes that [`Task::input_files`] are verified against:
    /// a run only resumes with the same data.
    fn data_hash(&self) -> String;

    /// The files that training and validation read, each once.
    fn input_files(&self) -> Vec<InputFile> {
        Vec::new()
    }

    /// The batch of `samples`, of which the first has place `first` among the samples of micro-batch
    /// `micro_batch`, those of all ranks together: a function of its arguments alone.
    fn batch(&self, micro_batch: u64, first: u64, samples: &[u64]) -> Result<Batch>;

    /// The loss of a batch.
    fn loss(&self, forward: &Forward, batch: &Batch) -> Result<Loss>;

    /// Samples of the validation split.
    fn validation_samples(&self) -> u64;

    /// Adds these samples of the validation split to `scores`; `forward` records no gradients.
    fn evaluate(&self, forward: &Forward, samples: &[u64], scores: &mut Scores) -> Result<()>;

    /// What the model predicts from the inputs of a batch, which may lack the targets. `pass` records no gradients;
    /// the batch is on its device.
    fn predict(&self, forward: &Forward, batch: &Batch) -> Result<Predictions>;

    /// What a user of the model needs beside its parameters.
    fn buffers(&self) -> Buffers {
        Buffers::new()
    }

    /// The trained models that a user of the model needs as well; the manifest of a checkpoint records them.
    fn dependencies(&self) -> Dependencies {
        Dependencies::new()
    }
}

/// Samples of all sources of a task: those of an epoch.
pub fn samples(task: &dyn Task) -> u64 {
    task.sources().iter().map(|(samples, _)| samples).sum()
}

/// A task by its types: the sections of its configuration, and how it is opened.
pub trait Define: Task + Sized + 'static {
    /// What is fixed about it.
    const SPEC: Spec;
    /// Section `data` of the configuration.
    type Data: Section;
    /// Section `model`.
    type Model: Section;
    /// Section `loss`.
    type Loss: Section;

    /// Violations of its sections beyond what their types say, each with the path of its key.
    fn violations(config: &ConfigOf<Self>) -> Violations {
        let _ = config;
        Violations::new()
    }

    /// Opens the data and builds the model with its initial parameters.
    fn open(config: &ConfigOf<Self>) -> Result<(Self, ParamSet)>;
}

/// What a section of a configuration must be able to do.
pub trait Section:
    Clone + Serialize + DeserializeOwned + JsonSchema + Send + Sync + 'static
{
}

impl<T: Clone + Serialize + DeserializeOwned + JsonSchema + Send + Sync + 'static> Section for T {}

/// A section without keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Empty {}

/// The configuration of a task.
pub type ConfigOf<T> = Config<<T as Define>::Data, <T as Define>::Model, <T as Define>::Loss>;

/// A task opened: its data, its model and the initial parameters.
pub type Opened = (Box<dyn Task>, ParamSet);

/// A task with its checked configuration, its data not opened yet.
pub struct Configured {
    /// What is fixed about the task.
    pub spec: &'static Spec,
    /// The sections of the configuration that all tasks share.
    pub config: Config<(), (), ()>,
    /// The whole configuration as it is written to the run, secrets left out.
    pub resolved: Value,
    open: Box<dyn Fn() -> Result<Opened> + Send + Sync>,
}

impl Configured {
    /// Loads the configuration of task `T`, as [`config::load`] does.
    pub fn load<T: Define>(
        files: &[PathBuf],
        overrides: &[String],
        environment: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self> {
        let loaded = load_config::<T>(files, overrides, environment)?;
        Ok(Self::of::<T>(loaded.config, loaded.resolved))
    }

    /// Task `T` with a configuration that was made in code.
    pub fn new<T: Define>(config: ConfigOf<T>) -> Result<Self> {
        let resolved = serde_json::to_value(&config).map_err(Error::bug)?;
        Ok(Self::of::<T>(config, resolved))
    }

    fn of<T: Define>(config: ConfigOf<T>, resolved: Value) -> Self {
        let shared = config.shared();
        let open = move || T::open(&config).map(|(task, params)| (Box::new(task) as _, params));
        Self { spec: &T::SPEC, config: shared, resolved, open: Box::new(open) }
    }

    /// Opens the data and builds the model with random initial parameters.
    pub fn open(&self) -> Result<Opened> {
        (self.open)()
    }

    /// Assigns the initial values of section `init`; where a run `resumes`, only those that its checkpoints do not hold.
    pub fn init(&self, params: &mut ParamSet, resumes: bool) -> Result<()> {
        let needed = !resumes || !self.config.checkpoint.frozen;
        self.config.init.iter().filter(|_| needed).try_for_each(|init| init.apply(params, resumes))
    }
}

/// [`config::load`] of the configuration of task `T`.
pub fn load_config<T: Define>(
    files: &[PathBuf],
    overrides: &[String],
    environment: &dyn Fn(&str) -> Option<String>,
) -> Result<config::Loaded<ConfigOf<T>>> {
    config::load(files, overrides, environment, &|config: &ConfigOf<T>| {
        let mut violations = config.common_violations();
        violations.extend(T::violations(config));
        violations
    })
}
