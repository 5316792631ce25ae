//! Texts: classification with the encoders of BERT and RoBERTa, its metrics, and baselines without an encoder.

mod batch;
// pub mod classify;
pub mod encoder;
pub mod head;
pub mod loss;
pub mod metrics;
pub mod pretrained;

pub use batch::padded;
// pub use classify::{ClassifyConfig, ClassifyTask};
