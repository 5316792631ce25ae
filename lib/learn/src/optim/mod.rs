//! How parameters follow gradients.

mod optimizer;
mod schedule;

pub use optimizer::{Method, Optimizer, OptimizerState};
pub use schedule::{Phase, PhaseKind, Schedule};
