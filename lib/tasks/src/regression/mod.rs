//! Regression on fields: predicts the solution of a steady problem from its inputs.

pub mod model;
pub mod task;
mod trained;

pub use model::{Regression, RegressionModel};
pub use task::{RegressionConfig, RegressionTask};
pub use trained::TrainedRegression;
