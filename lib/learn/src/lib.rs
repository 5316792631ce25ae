//! What is learnt and how: configuration, models, stages, checkpoints, the training loop, metrics.

#![forbid(unsafe_code)]

pub mod checkpoint;
pub mod config;
pub mod evaluate;
pub mod foreign;
pub mod identity;
pub mod latents;
pub mod models;
pub mod nn;
pub mod normalisation;
pub mod optim;
pub mod params;
pub mod pass;
pub mod recompute;
pub mod score;
pub mod stages;
pub mod task;
pub mod train;
pub mod trained;
