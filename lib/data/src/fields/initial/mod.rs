//! Random initial states and coefficients: functions of a seed and the number of the trajectory.

mod random_field;
mod sinusoids;

pub use random_field::{RandomField, white_noise};
pub use sinusoids::Sinusoids;
