//! Tasks on text: metrics of classification, and baselines that need no encoder.

pub mod baselines;
pub mod metrics;
