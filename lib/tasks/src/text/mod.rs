//! Texts: classification with the encoders of BERT and RoBERTa.

mod batch;
// pub mod classify;
pub mod encoder;
pub mod head;
pub mod loss;
pub mod pretrained;

pub use batch::padded;
// pub use classify::{ClassifyConfig, ClassifyTask};
