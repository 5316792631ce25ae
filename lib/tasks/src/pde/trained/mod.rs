//! Trained codecs and operators, restored from checkpoints.

mod candidates;
mod codec;
mod corrector;
mod forecast;
mod operator;

pub use codec::TrainedCodec;
pub use corrector::TrainedCorrector;
pub use operator::TrainedOperator;
pub(crate) use operator::rollout;
