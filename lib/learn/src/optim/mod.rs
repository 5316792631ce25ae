//! Optimizers and learning-rate schedules.

mod optimizer;
mod plateau;
mod schedule;

pub use optimizer::{Method, Optimizer, OptimizerState, ParamGroup};
pub use plateau::{Plateau, PlateauState};
pub use schedule::{Phase, PhaseKind, Schedule};
