//! The tasks, one directory per family. A task defines its samples, its loss, the scores of its models, and how
//! programs use a trained model.

#![forbid(unsafe_code)]

pub mod check;
pub mod common;
pub mod diffusion;
pub mod evaluation;
pub mod exchange;
pub mod language;
mod model_args;
pub mod multimodal;
pub mod pde;
mod predictions;
mod quantise;
pub mod regression;
mod statistics;
pub mod text;
mod trained;

pub use model_args::ModelArgs;
pub use quantise::{QuantisedModel, quantise};
pub use trained::Opener;

use evaluation::{Predict, Score};
use language::SftTask;
use learn::foreign::ForeignModel;
use learn::task::{ConfigOf, ConfiguredTask, Define, Spec};
use multimodal::CycleVaeTask;
use pde::codec::CodecTask;
use pde::corrector::CorrectorTask;
use pde::critic::{self, CriticTask};
use pde::distill::DistillTask;
use pde::operator::OperatorTask;
use pde::{TrainedCodec, TrainedCorrector, TrainedOperator};
use regression::RegressionTask;
use text::{Classifier, ClassifyTask, Joint, JointTask, SpanFinder, SpanTask};

use schemars::{Schema, schema_for};
use std::path::PathBuf;
use unix::Result;
use unix::config::{Key, keys};

/// A task registered with `train-stage`.
pub struct Entry {
    /// Static properties of the task.
    pub spec: &'static Spec,
    /// One-line description for `train-stage --help`.
    pub about: &'static str,
    /// [`ConfiguredTask::load`] for this task.
    pub load: Load,
    /// All configuration keys of the task.
    pub keys: fn() -> Vec<Key>,
    /// JSON Schema of the configuration.
    pub schema: fn() -> Schema,
    /// `evaluate score` with a model of this task.
    pub score: Score,
    /// `evaluate predict` with a model of this task.
    pub predict: Predict,
    /// Another program whose weights `ckpt import` reads by name.
    pub foreign: Option<&'static ForeignModel>,
}

/// Loads a configuration from files, overrides and environment variables.
pub type Load =
    fn(&[PathBuf], &[String], &dyn Fn(&str) -> Option<String>) -> Result<ConfiguredTask>;

/// All tasks, in the order in which programs list them.
pub static TASKS: [Entry; 11] = [
    entry::<CodecTask>(
        "Autoencoder from fields to latent tokens",
        (pde::score::<TrainedCodec>(), pde::predict::<TrainedCodec>()),
    ),
    entry::<OperatorTask>(
        "Time stepping in the latent space of a codec",
        (pde::score::<TrainedOperator>(), pde::predict::<TrainedOperator>()),
    ),
    entry::<CorrectorTask>(
        "Generative model of an operator's error",
        (pde::score::<TrainedCorrector>(), pde::predict::<TrainedCorrector>()),
    ),
    entry::<DistillTask>(
        "Consistency model of a corrector, for sampling in one or a few steps",
        (pde::score::<TrainedCorrector>(), pde::predict::<TrainedCorrector>()),
    ),
    entry::<CriticTask>(
        "Errors of a corrector's samples, as a reward of search",
        (critic::SCORE, critic::PREDICT),
    ),
    entry::<RegressionTask>(
        "Targets from inputs: a user's own arrays, or steady problems",
        (regression::SCORE, regression::PREDICT),
    ),
    entry::<ClassifyTask>(
        "Classes of texts, with the encoders of BERT and RoBERTa",
        (text::score::<Classifier>(), text::predict::<Classifier>()),
    ),
    entry::<SpanTask>(
        "Answers in contexts, with the same encoders",
        (text::score::<SpanFinder>(), text::predict::<SpanFinder>()),
    ),
    entry::<JointTask>(
        "Classes of texts and answers in contexts at once",
        (text::score::<Joint>(), text::predict::<Joint>()),
    ),
    Entry {
        foreign: Some(&multimodal::original::ORIGINAL),
        ..entry::<CycleVaeTask>(
            "Vectors of texts and texts of vectors, with one network",
            (multimodal::SCORE, multimodal::PREDICT),
        )
    },
    entry::<SftTask>(
        "Answers in conversations, with the decoders of Qwen and Llama",
        (language::SCORE, language::PREDICT),
    ),
];

const fn entry<T: Define>(about: &'static str, (score, predict): (Score, Predict)) -> Entry {
    Entry {
        spec: &T::SPEC,
        about,
        load: ConfiguredTask::load::<T>,
        keys: keys::<ConfigOf<T>>,
        schema: || schema_for!(ConfigOf<T>),
        score,
        predict,
        foreign: None,
    }
}
