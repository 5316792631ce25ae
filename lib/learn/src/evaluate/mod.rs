//! Evaluation of trained models: one loop for the scores of all tasks, and one for their predictions.
//!
//! A task contributes an [`Evaluator`]: items, the measurements of a block of items, and the results of all. The loop
//! divides blocks among ranks, adds their measurements in the order of the items, stores the sums so that an
//! interrupted evaluation continues where it was, verifies the input files meanwhile, keeps the worst items, and writes
//! the files. Neither the blocks nor their order depends on the ranks, so the results do not either. A [`Predictor`]
//! does the same for predictions, which go to a file or a pipe in the order of the inputs.

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
pub use predict::{Prediction, Predictor, predict};
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
use unix::{Error, Result};

/// How a task scores a trained model on a split.
pub trait Evaluator: Sync {
    /// The measurements of a block of items.
    type Part: Serialize + DeserializeOwned;
    /// The sums over all blocks so far.
    type Sums: Default + Serialize + DeserializeOwned;

    /// What is evaluated, but for the models; see [`subject`]. Sums are continued only for the same subject.
    fn subject(&self) -> Subject;

    /// The evaluated model, then those that it depends on.
    fn models(&self) -> Vec<Model>;

    /// What items are called: `records`.
    fn noun(&self) -> &'static str {
        "samples"
    }

    /// Number of items.
    fn items(&self) -> u64;

    /// Number of items with a loss, the first ones. Others are only measured, such as those that a threshold is fitted
    /// on.
    fn scored(&self) -> u64 {
        self.items()
    }

    /// The end of the block that begins with item `first`.
    fn block_end(&self, first: u64) -> u64 {
        first + 256
    }

    /// The files that the items are read from, which are verified.
    fn inputs(&self) -> Vec<InputFile>;

    /// Name of the loss of an item, by which the worst are chosen and two models are compared. Smaller is better.
    fn loss(&self) -> &'static str;

    /// The number of the cluster that an item belongs to: items of a cluster depend on each other, as those of a
    /// trajectory do, and are resampled together.
    fn cluster(&self, item: u64) -> u64 {
        item
    }

    /// How many of the worst items are shown unless the user says.
    fn shown(&self) -> usize {
        40
    }

    /// Measures a block of items. Called on any rank.
    fn measure(&self, block: Range<u64>) -> Result<Block<Self::Part>>;

    /// Adds the measurements of the next block. Called on rank 0, in the order of the items.
    fn add(&self, sums: &mut Self::Sums, part: Self::Part);

    /// The results of all items, whose losses are given.
    fn finish(&self, sums: &Self::Sums, losses: &Losses) -> Result<Results>;

    /// How to present one of the worst items in the report, given the sums over all items.
    fn show(&self, _sums: &Self::Sums, _item: u64) -> Result<Shown> {
        Ok(Shown::default())
    }
}

/// A model in use.
#[derive(Clone, Debug)]
pub struct Model {
    /// Its task.
    pub task: &'static str,
    /// Where its weights come from.
    pub origin: Origin,
    /// Number of parameters.
    pub parameters: usize,
    /// The hash that its training data must include, so that they are known not to overlap those it is scored on;
    /// `None` if nothing can be said.
    pub data: Option<String>,
}

/// The measurements of a block of items.
#[derive(Debug, Serialize, Deserialize)]
pub struct Block<P> {
    /// Those of the task.
    pub part: P,
    /// The loss of each item that has one.
    pub losses: Vec<ItemLoss>,
}

/// The loss of an item.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ItemLoss {
    /// Its value.
    pub value: Bits,
    /// Among items of equal loss those with the largest confidence are shown first.
    pub confidence: Bits,
}

impl From<f64> for ItemLoss {
    fn from(value: f64) -> Self {
        Self { value: Bits(value), confidence: Bits(0.0) }
    }
}

/// What an evaluation found.
#[derive(Clone, Debug, Default)]
pub struct Results {
    /// Over all samples.
    pub scores: Scores,
    /// Over the samples of each group.
    pub groups: Vec<Group>,
    /// What else is in metrics.json.
    pub details: Map<String, Value>,
    /// The rows of the table that is printed.
    pub rows: Vec<Value>,
    /// Files of the task, by path below the output folder.
    pub files: Vec<(PathBuf, Vec<u8>)>,
    /// The page to which the worst items are added; a new one if it is absent.
    pub page: Option<Document>,
    /// The content of the file of `--summary`, unless it is that of metrics.json.
    pub summary: Option<Value>,
    /// Why the model failed, although it could be scored.
    pub failed: Option<String>,
}

/// What is evaluated: a task by its most important metric on a split of the data at `data`, whose content has this
/// hash.
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

/// Why a model failed, if some of its predictions are not finite.
pub fn not_finite(bad: usize, all: usize, noun: &str) -> Option<String> {
    (bad > 0).then(|| {
        format!(
            "the predictions of {bad} of {all} {noun} are not finite, so the errors over all of them are NaN or infinite \
             (null in metrics.json)"
        )
    })
}

/// What to do after a stop.
fn again() -> String {
    "run the same command again to resume".into()
}

/// The models in the form of metrics.json.
fn described(models: &[Model]) -> Result<Map<String, Value>> {
    let of = |model: &Model| {
        let mut value = serde_json::to_value(&model.origin).map_err(Error::bug)?;
        value["parameters"] = json!(model.parameters);
        Ok((model.task.to_string(), value))
    };
    models.iter().map(of).collect()
}
