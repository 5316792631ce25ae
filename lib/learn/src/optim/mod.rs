//! Optimizers and learning-rate schedules.

mod optimizer;
mod plateau;
mod schedule;
mod state;

pub use optimizer::{Method, Optimizer, ParamGroup};
pub use plateau::{Plateau, PlateauState};
pub use schedule::{Phase, PhaseKind, Schedule};
pub use state::OptimizerState;
