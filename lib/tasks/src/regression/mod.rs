//! Regression on fields: from the inputs of a steady problem to its solution.

pub mod model;
pub mod task;
mod trained;

pub use model::{Regression, RegressionModel};
pub use task::{RegressionConfig, RegressionTask};
pub use trained::TrainedRegression;
