//! Trained codecs and operators, opened from a checkpoint and applied to plain numbers.

mod codec;
mod operator;

pub use codec::TrainedCodec;
pub(crate) use codec::grid_of;
pub use operator::TrainedOperator;
