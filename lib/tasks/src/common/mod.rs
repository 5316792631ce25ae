//! Code shared by several families of tasks: networks, normalisation, mixtures of data sets,
//! systems of linear equations.

pub(crate) mod cholesky;
pub mod condition;
pub mod models;
pub mod normalisation;
mod source_file;
pub(crate) mod sources;
pub(crate) mod tokens;
pub(crate) mod transformers;

pub(crate) use source_file::{record_source, recorded_source};
pub use sources::{FieldSource, Sources};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The splits to train on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum TrainOn {
    /// The training split.
    #[default]
    Train,
    /// The training and the validation split, for a final model. The metric is then of data that the model was trained on,
    /// so use the newest checkpoint rather than the best one, and measure it on the test split.
    #[serde(rename = "train+validation")]
    TrainAndValidation,
}
