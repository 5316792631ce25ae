//! Texts: classification with the encoders of BERT and RoBERTa.

mod batch;
pub mod encoder;
pub mod head;

pub use batch::padded;
