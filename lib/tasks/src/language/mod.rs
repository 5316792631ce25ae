//! Decoders of language: the models of Qwen3, Qwen2 and Llama in folders of transformers, also with the vision tower of Qwen3-VL,
//! their fine-tuning on conversations, and the answers that they generate.

mod answer_scores;
mod baselines;
mod batch;
mod config;
mod evaluator;
mod export;
mod fit;
mod generator;
mod markdown;
mod model;
mod normalise;
mod options;
mod predict;
mod pretrained;
mod record_patches;
mod rope;
mod sft;
mod trained;
pub mod vision;

pub(crate) use export::export;
pub(crate) use pretrained::configuration;

pub use batch::Labelled;
pub use config::{Architecture, DecoderConfig};
pub use generator::{Cache, Generator};
pub use model::{Decoder, Sequences};
pub use normalise::NormaliseStep;
pub use options::{AnswersOf, LanguagePredictOptions, LanguageScoreOptions};
pub use rope::{ROPE_TYPES, Rope, RopeParameters};
pub use sft::{Language, SftConfig, SftModel, SftTask};

use crate::evaluation::{Predict, Score, Verb};

/// `evaluate score` with a decoder.
pub(crate) const SCORE: Score =
    Verb { options: <LanguageScoreOptions as clap::Args>::augment_args, open: evaluator::open };

/// `evaluate predict` with a decoder.
pub(crate) const PREDICT: Predict =
    Verb { options: <LanguagePredictOptions as clap::Args>::augment_args, open: predict::open };
