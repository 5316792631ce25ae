//! Texts and vectors: metrics and baselines of models that compute one from the other.

pub mod baselines;
pub mod metrics;
