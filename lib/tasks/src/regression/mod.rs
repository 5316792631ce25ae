//! Regression on fields: from the inputs of a steady problem to its solution.

mod evaluate;
pub mod model;
pub mod task;
mod trained;

pub use evaluate::{SteadyEvaluation, SteadyRow, evaluate_steady};
pub use model::{Steady, SteadyModel};
pub use task::{SteadyConfig, SteadyTask};
pub use trained::TrainedSteady;
