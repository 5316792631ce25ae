//! Diffusion models: preconditioning and noise levels (EDM), samplers, and consistency models. This module does not
//! depend on the kind of data that is generated.

mod noise;
mod preconditioning;
mod sampler;

pub use noise::{LogNormal, Schedule};
pub use preconditioning::{Coefficients, Preconditioning};
pub use sampler::{Churn, Sampler, Solver, combine, refine};
