//! Diffusion models: preconditioning and noise levels (EDM), samplers, and consistency models. Nothing here is specific
//! to what is generated.

mod noise;
mod preconditioning;
mod sampler;

pub use noise::{LogNormal, Schedule};
pub use preconditioning::{Coefficients, Preconditioning};
pub use sampler::{Churn, Sampler, Solver, combine, refine};
