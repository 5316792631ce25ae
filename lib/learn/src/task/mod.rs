//! The interface between the engine and a task.
//!
//! A task defines what a sample is, which loss is minimised and how a model is scored. The engine ([`crate::train`])
//! does everything else and sees a task only as `dyn Task`. [`Define`] adds the configuration types of a task;
//! [`ConfiguredTask::load`] uses them to create the object that the engine opens.

mod batch;
mod name;
mod parts;

pub use batch::{Batch, Predictions};
pub use parts::Part;

use crate::checkpoint::Loaded;
use crate::config::{Config, Monitor};
use crate::dependency::Dependencies;
use crate::forward::Forward;
use crate::params::ParamSet;
use crate::score::{Direction, Metrics, Scores};
use data::inputs::InputFile;
use data::loader::Buckets;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;
use tensor::{Tensor, Var};
use unix::config::{self, Violations};
use unix::{Error, Result};

/// Tensors that belong to a model but are not trained (PyTorch's buffers), e.g. normalisation statistics.
pub type Buffers = Vec<(String, Tensor)>;

/// Static properties of a task.
#[derive(Debug)]
pub struct Spec {
    /// Name used on the command line, in logs and in checkpoints.
    pub name: &'static str,
    /// Metric computed by [`Task::evaluate`] that selects the best checkpoint.
    pub metric: &'static str,
    /// Whether `metric` is minimised or maximised.
    pub direction: Direction,
    /// A small example configuration, printed by `train-stage TASK --example`.
    pub example: &'static str,
}

impl Spec {
    /// Creates the properties of the task `name`.
    pub const fn new(
        name: &'static str,
        metric: &'static str,
        direction: Direction,
        example: &'static str,
    ) -> Self {
        Self { name, metric, direction, example }
    }
}

/// Loss of a micro-batch. A loss of several parts with denominators of their own is made by [`Loss::of_parts`].
pub struct Loss {
    /// Weighted sum over the samples, f32 [1]. The engine divides it by the sum of [`Batch::weight`] over all
    /// micro-batches and ranks of the update.
    pub sum: Var,
    /// Loss terms for the log: the same for every batch, unless [`Task::terms`] lists them.
    pub terms: Vec<Term>,
}

/// A loss term for the log.
pub struct Term {
    /// Name of the term.
    pub name: String,
    /// Weighted sum over the samples, f32 [1].
    pub sum: Tensor,
    /// Sum of the weights, f32 [1], if the term covers only some samples of the batch: its mean is taken over these
    /// samples. An update without such samples does not log the term.
    pub weight: Option<Tensor>,
}

impl From<(&str, Tensor)> for Term {
    /// Creates a term that sums over all samples.
    fn from((name, sum): (&str, Tensor)) -> Self {
        Self { name: name.into(), sum, weight: None }
    }
}

impl From<Var> for Loss {
    fn from(sum: Var) -> Self {
        Self { sum, terms: Vec::new() }
    }
}

/// A task with its data opened, as the engine uses it.
pub trait Task: Send + Sync {
    /// Number of samples and weight of each source: one source, or several that are mixed. Samples are numbered
    /// consecutively across all sources, in this order.
    fn sources(&self) -> Vec<(u64, f64)>;

    /// Grouping of samples into batches of similar length, for tasks whose samples differ in length.
    fn buckets(&self) -> Option<Buckets> {
        None
    }

    /// Hash over all training data, computed from the hashes that [`Task::input_files`] are verified against. A run
    /// only resumes with the same data.
    fn data_hash(&self) -> String;

    /// Files read by training and validation, each listed once.
    fn input_files(&self) -> Vec<InputFile> {
        Vec::new()
    }

    /// Creates the batch for `samples`. Its first sample has index `first` in micro-batch `micro_batch`, counted over
    /// all ranks. The result must depend only on the arguments.
    fn batch(&self, micro_batch: u64, first: u64, samples: &[u64]) -> Result<Batch>;

    /// Computes the loss of a batch.
    fn loss(&self, forward: &Forward, batch: &Batch) -> Result<Loss>;

    /// Names of all terms that a loss may have, for tasks whose [variants](Batch::variant) have different terms; an
    /// update logs those that it has. Empty: every batch has the same terms.
    fn terms(&self) -> Vec<String> {
        Vec::new()
    }

    /// Name patterns of the parameters that this update (from 0) leaves as they are, whatever their gradient. Their
    /// optimizer state still takes the gradient. The result must depend only on the argument.
    fn frozen(&self, _update: u64) -> &'static [&'static str] {
        &[]
    }

    /// What the [terms](Term) of a logged update say about the training that its user should know. Each
    /// text is reported once by each attempt.
    fn warning(&self, _terms: &BTreeMap<String, f64>) -> Option<String> {
        None
    }

    /// Number of samples in the validation split.
    fn validation_samples(&self) -> u64;

    /// Adds these validation samples to `scores`; `forward` records no gradients.
    fn evaluate(&self, forward: &Forward, samples: &[u64], scores: &mut Scores) -> Result<()>;

    /// Predicts from the inputs of a batch, which may lack the targets. `forward` records no gradients; the batch is
    /// already on its device.
    fn predict(&self, forward: &Forward, batch: &Batch) -> Result<Predictions>;

    /// Buffers required to use the model, in addition to its parameters.
    fn buffers(&self) -> Buffers {
        Buffers::new()
    }

    /// What `--check` examines besides the points of all tasks: a name, and what was found.
    fn check(&self) -> Vec<(&'static str, Result<String>)> {
        Vec::new()
    }

    /// Other trained models required to use the model; a checkpoint's manifest records them.
    fn dependencies(&self) -> Dependencies {
        Dependencies::new()
    }
}

/// Number of samples in all sources of a task, i.e. in one epoch.
pub fn samples(task: &dyn Task) -> u64 {
    task.sources().iter().map(|(samples, _)| samples).sum()
}

/// Defines the configuration sections of a task and how to open it.
pub trait Define: Task + Sized + 'static {
    /// Static properties of the task.
    const SPEC: Spec;
    /// Section `data` of the configuration.
    type Data: Section;
    /// Section `model` of the configuration.
    type Model: Section;
    /// Section `loss` of the configuration.
    type Loss: Section;

    /// Lists violations in the task's sections that the schema does not express, each with the path of its key.
    fn violations(config: &ConfigOf<Self>) -> Violations {
        let _ = config;
        Violations::new()
    }

    /// Opens the data and builds the model with its initial parameters.
    fn open(config: &ConfigOf<Self>) -> Result<(Self, ParamSet)>;
}

/// The traits required of a configuration section.
pub trait Section:
    Clone + Serialize + DeserializeOwned + JsonSchema + Send + Sync + 'static
{
}

impl<T: Clone + Serialize + DeserializeOwned + JsonSchema + Send + Sync + 'static> Section for T {}

/// A section without keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Empty {}

/// Configuration of a task.
pub type ConfigOf<T> = Config<<T as Define>::Data, <T as Define>::Model, <T as Define>::Loss>;

/// An opened task: its data, its model and the initial parameters.
pub type Opened = (Box<dyn Task>, ParamSet);

/// A task with a validated configuration whose data has not been opened yet.
pub struct ConfiguredTask {
    /// Static properties of the task.
    pub spec: &'static Spec,
    /// Configuration sections shared by all tasks.
    pub config: Config<(), (), ()>,
    /// The complete resolved configuration as written to the run directory, without secrets.
    pub resolved: Value,
    open: Box<dyn Fn() -> Result<Opened> + Send + Sync>,
}

impl ConfiguredTask {
    /// The monitored metric, which selects the best checkpoint: `training.monitor`, or the task's metric by default.
    pub fn monitor(&self) -> Monitor {
        self.config.training.monitor.clone().unwrap_or_else(|| Monitor {
            metric: self.spec.metric.into(),
            direction: self.spec.direction,
            min_delta: 0.0,
        })
    }

    /// Checks that the validation metrics include `training.monitor`. Errors: 78 when they do not.
    pub fn check_monitor(&self, metrics: &Metrics) -> Result<()> {
        let monitor = self.config.training.monitor.as_ref();
        let Some(monitor) = monitor.filter(|monitor| !metrics.contains_key(&monitor.metric)) else {
            return Ok(());
        };
        let names: Vec<&str> = metrics.keys().map(String::as_str).collect();
        Err(Error::config(format!(
            "training.monitor.metric: validations have no {:?}; there are {}",
            monitor.metric,
            names.join(", ")
        )))
    }

    /// Loads the configuration of task `T` with [`config::load`].
    pub fn load<T: Define>(
        files: &[PathBuf],
        overrides: &[String],
        environment: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self> {
        let loaded = load_config::<T>(files, overrides, environment)?;
        Ok(Self::of::<T>(loaded.config, loaded.resolved))
    }

    /// Creates task `T` from a configuration built in code.
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

    /// Assigns the initial values of section `init`. When a run resumes from a checkpoint, assigns only the frozen
    /// parameters, from the checkpoint if it stores them.
    pub fn init(&self, params: &mut ParamSet, checkpoint: Option<&Loaded>) -> Result<()> {
        if let Some(frozen) = checkpoint.and_then(|found| found.tensors("frozen")) {
            return params.frozen.assign(&frozen);
        }
        let resumes = checkpoint.is_some();
        self.config.init.iter().try_for_each(|init| init.apply(params, resumes))
    }
}

/// Calls [`config::load`] with the configuration type of task `T`.
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
