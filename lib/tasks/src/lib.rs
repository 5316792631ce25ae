//! The tasks, a folder for each family: what a sample is, what is minimised, how a model is scored, and what programs
//! do with a trained one.

#![forbid(unsafe_code)]

pub mod pde;
pub mod regression;
mod trained;

pub use trained::{Opener, TrainedModel, predict_file};

use learn::task::{ConfigOf, Configured, Define, Spec};
use learn::trained::Parts;
use pde::codec::CodecTask;
use pde::operator::OperatorTask;
use pde::{TrainedCodec, TrainedOperator};
use regression::{RegressionTask, TrainedRegression};

use schemars::{Schema, schema_for};
use std::path::PathBuf;
use unix::Result;
use unix::config::{Key, keys};

/// A task that `train-stage` knows.
pub struct Entry {
    /// What is fixed about it.
    pub spec: &'static Spec,
    /// One line about it, for `train-stage --help`.
    pub about: &'static str,
    /// [`Configured::load`] of it.
    pub load: Load,
    /// Every key of its configuration.
    pub keys: fn() -> Vec<Key>,
    /// The JSON Schema of its configuration.
    pub schema: fn() -> Schema,
    /// A trained model of it, from a checkpoint.
    pub restore: Restore,
}

/// Makes a trained model of its parts; see [`Opener::open`].
pub type Restore = fn(&Parts, &Opener) -> Result<Box<dyn TrainedModel>>;

/// Loads a configuration from files, overrides and an environment.
pub type Load = fn(&[PathBuf], &[String], &dyn Fn(&str) -> Option<String>) -> Result<Configured>;

/// All tasks, in the order in which programs list them.
pub static TASKS: [Entry; 3] = [
    entry::<CodecTask>("Fields to latent tokens and back", |parts, opener| {
        Ok(Box::new(TrainedCodec::restore(parts, opener)?))
    }),
    entry::<OperatorTask>(
        "From the latent state of one frame to that of the next",
        |parts, opener| Ok(Box::new(TrainedOperator::restore(parts, opener)?)),
    ),
    entry::<RegressionTask>(
        "From the inputs of a steady problem to its solution",
        |parts, opener| Ok(Box::new(TrainedRegression::restore(parts, opener)?)),
    ),
];

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
