//! Random initial states and coefficients, as functions of a seed and the trajectory index.

mod random_field;
mod sinusoids;

pub use random_field::{RandomField, white_noise};
pub use sinusoids::Sinusoids;
