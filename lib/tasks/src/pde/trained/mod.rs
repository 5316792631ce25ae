//! Trained codecs and operators, restored from checkpoints.

mod codec;
mod operator;

pub use codec::TrainedCodec;
pub use operator::TrainedOperator;
pub(crate) use operator::rollout;
