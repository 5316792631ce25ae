//! Texts: classification with the encoders of BERT and RoBERTa, its metrics, and baselines without an encoder.

pub mod baselines;
mod batch;
pub mod classify;
pub mod encoder;
pub mod export;
pub mod head;
pub mod loss;
pub mod metrics;
pub mod pretrained;
mod trained;

pub use batch::padded;
pub use classify::{ClassifyConfig, ClassifyTask};
pub(crate) use trained::refuse;
pub use trained::{TextScores, TrainedClassifier, open_sets, protocol};
