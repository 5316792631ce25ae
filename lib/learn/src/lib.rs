//! The training engine: configuration, parameters, layers, the training loop, checkpoints and scores. It does not
//! depend on any particular task.

#![forbid(unsafe_code)]

pub mod adapt;
pub mod checkpoint;
pub mod config;
pub mod dependency;
pub mod evaluate;
pub mod foreign;
pub mod forward;
pub mod generate;
pub mod init;
pub mod nn;
pub mod optim;
pub mod params;
pub mod recompute;
pub mod results;
pub mod score;
pub mod task;
pub mod train;
pub mod trained;
