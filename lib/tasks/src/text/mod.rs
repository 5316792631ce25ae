//! Texts: classes of texts and answers in contexts with the encoders of BERT and RoBERTa, their metrics, and baselines
//! without an encoder.

pub mod baselines;
mod batch;
mod calibrated;
pub mod classify;
pub mod encoder;
pub mod export;
pub mod head;
pub mod joint;
mod label_scores;
pub mod loss;
pub mod metrics;
mod mistakes;
mod predict;
pub mod pretrained;
mod scores;
mod sets;
pub mod span;
mod task;
mod trained;

pub use batch::{States, Text, TextEncoder, padded, with_texts};
pub use calibrated::{Logits, calibrated};
pub use classify::{Classifier, ClassifyConfig, ClassifyTask, classes};
pub use joint::{Joint, JointConfig, JointModel, JointTask};
pub use label_scores::LabelScores;
pub use mistakes::mistakes;
pub use predict::TextPredictor;
pub use scores::TextScores;
pub use sets::{TextData, open_sets};
pub use span::{SpanConfig, SpanFinder, SpanScores, SpanTask};
pub use task::{Outputs, TextModel, TextTask};
pub(crate) use trained::refuse;
pub use trained::{TextOutputs, TrainedText};
