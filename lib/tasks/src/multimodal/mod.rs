//! Texts and vectors: one network that turns a text into a latent vector and a latent vector into a text.

pub mod baselines;
mod batch;
mod block;
mod config;
mod cycle;
mod draft;
mod evaluate;
mod measure;
pub mod metrics;
mod mode;
pub mod model;
pub mod noise;
mod observe;
pub mod original;
mod predict;
pub mod sample;
mod sets;
mod task;
mod time;
mod trained;

pub use config::{
    ConnectionKind, CycleVaeConfig, CycleVaeData, CycleVaeLoss, CycleVaeModel, HyperConnections,
    TimeEmbedding,
};
pub use evaluate::PairScoreOptions;
pub use predict::PairPredictOptions;
pub use task::CycleVaeTask;

use crate::evaluation::{Predict, Score, Verb};

/// `evaluate score` with a model of this kind.
pub(crate) const SCORE: Score =
    Verb { options: <PairScoreOptions as clap::Args>::augment_args, open: evaluate::open };

/// `evaluate predict` with a model of this kind.
pub(crate) const PREDICT: Predict =
    Verb { options: <PairPredictOptions as clap::Args>::augment_args, open: predict::open };
