//! Evaluation of trained models: one loop that scores models for all tasks, and one that predicts.
//!
//! A task contributes an [`Evaluator`], which defines the items, measures blocks of items, and computes the results.
//! The loop divides blocks among ranks, accumulates their measurements in item order, stores the sums so that an
//! interrupted evaluation can resume, verifies the input files meanwhile, keeps the worst items, and writes the files.
//! Neither the blocks nor their order depends on the number of ranks, so neither do the results. A [`Predictor`] does
//! the same for predictions, which go to a file or a pipe in input order.

mod bootstrap;
mod lines;
mod losses;
mod predict;
mod score;
mod state;
mod worst;

pub use bootstrap::{Stratum, bootstrap, interval};
pub use lines::JsonLines;
pub use losses::{Difference, Losses};
pub use predict::{Predicted, Prediction, Predictor, predict};
pub use score::{Evaluation, ScoreJob, refuse_earlier, refuse_existing, score};
pub use worst::Shown;

use crate::score::Bits;
use crate::trained::Origin;
use data::inputs::InputFile;
use data::split::SplitName;
use report::document::Document;
use report::evaluation::{Group, Scores, Subject};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::ops::Range;
use std::path::{Path, PathBuf};
use unix::signal::Signals;
use unix::{Error, Exit, Result};

/// Scores a trained model on a split for one task.
pub trait Evaluator: Sync {
    /// Measurements of a block of items.
    type Part: Serialize + DeserializeOwned;
    /// Sums over all measured blocks.
    type Sums: Default + Serialize + DeserializeOwned;

    /// The subject of the evaluation without its models; see [`subject`]. Stored sums are resumed only for the same
    /// subject.
    fn subject(&self) -> Subject;

    /// The evaluated model, followed by its dependencies.
    fn models(&self) -> Vec<Model>;

    /// Noun for the items, e.g. `records`.
    fn noun(&self) -> &'static str {
        "samples"
    }

    /// Number of items.
    fn items(&self) -> u64;

    /// Number of items with a loss; they come first. The other items are only measured, e.g. to fit a threshold.
    fn scored(&self) -> u64 {
        self.items()
    }

    /// End index of the block that begins with item `first`.
    fn block_end(&self, first: u64) -> u64 {
        first + 256
    }

    /// The files that the items are read from, which the loop verifies.
    fn inputs(&self) -> Vec<InputFile>;

    /// Name of the per-item loss that ranks the worst items and compares two models. Smaller is better.
    fn loss_name(&self) -> &'static str;

    /// Cluster number of an item. Items of a cluster depend on each other, e.g. those of one trajectory, and are
    /// resampled together.
    fn cluster(&self, item: u64) -> u64 {
        item
    }

    /// Default number of worst items to show.
    fn shown(&self) -> usize {
        40
    }

    /// Measures a block of items. Called on any rank.
    fn measure(&self, block: Range<u64>) -> Result<Block<Self::Part>>;

    /// Adds the measurements of the next block. Called on rank 0, in the order of the items.
    fn add(&self, sums: &mut Self::Sums, part: Self::Part);

    /// Computes the results from the sums and losses of all items.
    fn finish(&self, sums: &Self::Sums, losses: &Losses) -> Result<Results>;

    /// Completes the measurements of the worst items, whose indices are given, before they are presented: for what takes
    /// too long to measure of every item. Called on rank 0, after [`Evaluator::finish`].
    fn complete(&self, _sums: &mut Self::Sums, _worst: &[u64]) -> Result<()> {
        Ok(())
    }

    /// Presents one of the worst items in the report, given the sums over all items.
    fn show(&self, _sums: &Self::Sums, _item: u64) -> Result<Shown> {
        Ok(Shown::default())
    }
}

/// A trained model in use.
#[derive(Clone, Debug)]
pub struct Model {
    /// Task name of the model.
    pub task: &'static str,
    /// Origin of the model weights.
    pub origin: Origin,
    /// Number of parameters.
    pub parameters: usize,
    /// Data hash that its training data must include, so that training and test data are known not to overlap; `None`
    /// if unknown.
    pub data: Option<String>,
}

/// Measurements and losses of a block of items.
#[derive(Debug, Serialize, Deserialize)]
pub struct Block<P> {
    /// Task-specific measurements.
    pub part: P,
    /// Loss of each item that has one.
    pub losses: Vec<ItemLoss>,
}

/// Loss and confidence of an item.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ItemLoss {
    /// Loss value.
    pub value: Bits,
    /// Among items with equal loss, those with the highest confidence are shown first.
    pub confidence: Bits,
}

impl From<f64> for ItemLoss {
    fn from(value: f64) -> Self {
        Self { value: Bits(value), confidence: Bits(0.0) }
    }
}

/// Results of an evaluation.
#[derive(Clone, Debug, Default)]
pub struct Results {
    /// Scores over all samples.
    pub scores: Scores,
    /// Scores of each group of samples.
    pub groups: Vec<Group>,
    /// Additional fields of metrics.json.
    pub details: Map<String, Value>,
    /// Rows of the printed table.
    pub rows: Vec<Value>,
    /// Task-specific files, by path relative to the output folder.
    pub files: Vec<(PathBuf, Vec<u8>)>,
    /// Report page to which the worst items are added; a new page if absent.
    pub page: Option<Document>,
    /// Content of the `--summary` file; the content of metrics.json if absent.
    pub summary: Option<Value>,
    /// Why the model failed, if it failed but could still be scored.
    pub failed: Option<String>,
}

/// Describes the subject of an evaluation: a task with its primary metric, on a split of the data at `data` with
/// content hash `hash`.
pub fn subject(
    (task, metric): (&str, &str),
    (data, hash): (&Path, &str),
    split: SplitName,
) -> Subject {
    Subject {
        task: task.into(),
        metric: metric.into(),
        description: String::new(),
        protocol: Map::from_iter([
            ("data_hash".into(), hash.into()),
            ("split".into(), split.to_string().into()),
        ]),
        settings: Map::from_iter([("data".into(), data.display().to_string().into())]),
        models: Map::new(),
    }
}

/// Returns a failure reason if `bad` predictions are not finite.
pub fn not_finite(bad: usize, all: usize, noun: &str) -> Option<String> {
    (bad > 0).then(|| {
        format!(
            "the predictions of {bad} of {all} {noun} are not finite, so the errors over all of them are NaN or infinite \
             (null in metrics.json)"
        )
    })
}

/// Advice after a stop.
fn again() -> String {
    "run the same command again to resume".into()
}

/// Checks for a stop signal; call it during long-running work of an [`Evaluator`] or a [`Predictor`]. Errors: 75 after a
/// stop signal; the block that was interrupted is measured again after a restart.
pub fn check_stop() -> Result<()> {
    Signals::installed().map_or(Ok(()), |signals| signals.check_stop(again))
}

/// Returns the result of a block; None if a stop signal interrupted it ([`check_stop`]), or without a block.
fn unless_stopped<T>(found: Option<Result<T>>) -> Result<Option<T>> {
    match found.transpose() {
        Err(error) if error.exit == Exit::Again => Ok(None),
        found => found,
    }
}

/// The error of a rank that ends because this rank or another one received a stop signal.
fn stopped(signals: Signals) -> Error {
    stopped_with(signals, again)
}

/// The same with other advice.
fn stopped_with(signals: Signals, advice: fn() -> String) -> Error {
    signals.check_stop(advice).err().unwrap_or_else(|| Error::new(Exit::Again, advice()))
}

/// Describes the models as in metrics.json.
fn described(models: &[Model]) -> Result<Map<String, Value>> {
    let of = |model: &Model| {
        let mut value = serde_json::to_value(&model.origin).map_err(Error::bug)?;
        value["parameters"] = json!(model.parameters);
        Ok((model.task.to_string(), value))
    };
    models.iter().map(of).collect()
}
