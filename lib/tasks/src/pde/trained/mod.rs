//! Trained models of the tasks, restored from checkpoints.

mod candidates;
mod codec;
mod corrector;
mod critic;
mod forecast;
mod operator;

pub use codec::TrainedCodec;
pub use corrector::TrainedCorrector;
pub use critic::TrainedCritic;
pub use operator::TrainedOperator;
pub(crate) use operator::rollout;
