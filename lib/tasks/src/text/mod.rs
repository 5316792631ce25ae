//! Texts: classification with the encoders of BERT and RoBERTa, its metrics, and baselines without an encoder.

pub mod baselines;
mod batch;
mod calibrated;
pub mod classify;
pub mod encoder;
pub mod export;
pub mod head;
pub mod loss;
pub mod metrics;
mod mistakes;
mod predict;
pub mod pretrained;
mod trained;

pub use batch::padded;
pub use calibrated::{Logits, calibrated};
pub use classify::{ClassifyConfig, ClassifyTask, classes};
pub use mistakes::mistakes;
pub use predict::{NewText, TextPredictor};
pub(crate) use trained::refuse;
pub use trained::{TextScores, TrainedClassifier, open_sets, protocol};
