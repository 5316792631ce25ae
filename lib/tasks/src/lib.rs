//! The tasks, one directory per family: what a sample is, which loss is minimised, how a model is scored, and how
//! programs use a trained model.

#![forbid(unsafe_code)]

pub mod common;
pub mod diffusion;
mod model_args;
pub mod pde;
mod predictions;
pub mod regression;
pub mod results;
mod statistics;
pub mod text;
mod trained;

pub use model_args::ModelArgs;
pub use predictions::{Destination, RecordInputs, predict_file, predict_records};
pub use trained::{Opener, TrainedModel};

use learn::task::{ConfigOf, Configured, Define, Spec};
use learn::trained::Parts;
use pde::codec::CodecTask;
use pde::corrector::CorrectorTask;
use pde::critic::{self, CriticTask};
use pde::distill::DistillTask;
use pde::operator::OperatorTask;
use pde::{TrainedCodec, TrainedCorrector, TrainedOperator};
use regression::{RegressionTask, TrainedRegression};
use text::{ClassifyTask, JointTask, SpanTask};

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
    /// [`Configured::load`] for this task.
    pub load: Load,
    /// All keys of its configuration.
    pub keys: fn() -> Vec<Key>,
    /// The JSON Schema of its configuration.
    pub schema: fn() -> Schema,
    /// Restores a trained model of this task from a checkpoint.
    pub restore: Restore,
}

/// Restores a trained model from the parts of a checkpoint; see [`Opener::open`].
pub type Restore = fn(&Parts, &Opener) -> Result<Box<dyn TrainedModel>>;

/// Loads a configuration from files, overrides and environment variables.
pub type Load = fn(&[PathBuf], &[String], &dyn Fn(&str) -> Option<String>) -> Result<Configured>;

/// All tasks, in the order in which programs list them.
pub static TASKS: [Entry; 9] = [
    entry::<CodecTask>("Autoencoder from fields to latent tokens", open::<TrainedCodec>),
    entry::<OperatorTask>("Time stepping in the latent space of a codec", open::<TrainedOperator>),
    entry::<CorrectorTask>("Generative model of an operator's error", open::<TrainedCorrector>),
    entry::<DistillTask>(
        "Consistency model of a corrector, for few evaluations",
        open::<TrainedCorrector>,
    ),
    entry::<CriticTask>("Errors of a corrector's samples, as a reward of search", critic::refuse),
    entry::<RegressionTask>(
        "Targets from inputs: a user's own arrays, or steady problems",
        open::<TrainedRegression>,
    ),
    entry::<ClassifyTask>("Classes of texts, with the encoders of BERT and RoBERTa", text::refuse),
    entry::<SpanTask>("Answers in contexts, with the same encoders", text::refuse),
    entry::<JointTask>("Classes of texts and answers in contexts at once", text::refuse),
];

fn open<M: TrainedModel + 'static>(
    parts: &Parts,
    opener: &Opener,
) -> Result<Box<dyn TrainedModel>> {
    Ok(Box::new(M::restore(parts, opener)?))
}

const fn entry<T: Define>(about: &'static str, restore: Restore) -> Entry {
    Entry {
        spec: &T::SPEC,
        about,
        load: Configured::load::<T>,
        keys: keys::<ConfigOf<T>>,
        schema: || schema_for!(ConfigOf<T>),
        restore,
    }
}
