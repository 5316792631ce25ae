//! Text models: classification and extractive question answering with BERT and RoBERTa encoders, their metrics, and
//! baselines without an encoder.

pub mod baselines;
mod batch;
mod calibrated;
mod class_scores;
pub mod classify;
pub mod embed;
pub mod encoder;
mod evaluator;
pub mod export;
pub mod head;
pub mod joint;
pub mod loss;
pub mod metrics;
mod mistakes;
mod predict;
pub mod pretrained;
mod sets;
pub mod span;
mod task;
mod trained;

pub use batch::{EncodedText, States, TextEncoder, padded, with_texts};
pub use classify::{Classifier, ClassifyConfig, ClassifyTask, classes};
pub use joint::{Joint, JointConfig, JointModel, JointTask};
pub use predict::TextOptions;
pub(crate) use sets::{Sets, trained_tokens};
pub use sets::{TextData, open_sets};
pub use span::{SpanConfig, SpanFinder, SpanTask};
pub use task::{Outputs, TextModel, TextTask};

use crate::evaluation::{Predict, Score, Verb};
use task::DefineText;

/// `evaluate score` with a model of this kind.
pub(crate) const fn score<M: DefineText>() -> Score {
    Verb { options: |command| command, open: evaluator::open::<M> }
}

/// `evaluate predict` with a model of this kind.
pub(crate) const fn predict<M: DefineText>() -> Predict {
    Verb { options: <TextOptions as clap::Args>::augment_args, open: predict::open::<M> }
}
