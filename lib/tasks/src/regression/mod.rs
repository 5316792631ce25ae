//! Regression: predicts a target from an input, for fields of steady problems and for records of the user's own arrays.

mod augment;
mod crop;
mod linear;
pub mod loss;
pub mod model;
mod pairs;
pub mod scoring;
pub mod task;
mod trained;

pub use augment::{Augmentation, Vectors};
pub use loss::{Dims, LossKind, RegressionLoss};
pub use model::{Regression, RegressionModel};
pub use scoring::{RecordEvaluator, RecordScores};
pub use task::{RegressionConfig, RegressionTask};
pub use trained::TrainedRegression;
