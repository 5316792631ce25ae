//! Regression: predicts a target from an input, for fields of steady problems and for records of user-supplied arrays.

mod augment;
mod crop;
mod linear;
pub mod loss;
pub mod model;
mod pairs;
mod predict;
pub mod scoring;
pub mod task;
mod trained;

pub use augment::{Augmentation, Vectors};
pub use loss::{Dims, LossKind, RegressionLoss};
pub use model::{Regression, RegressionModel};
pub use scoring::{RecordEvaluator, RecordSums};
pub use task::{RegressionConfig, RegressionTask};
pub use trained::TrainedRegression;

use crate::evaluation::{Predict, Score, Verb, refuse};
use crate::pde::evaluate::options::{PredictOptions, ScoreOptions};
use crate::pde::evaluate::{self, Rollouts};
use crate::predictions;
use clap::{Args, Command};
use predict::RecordOptions;
use unix::Context;

/// Reason for refusing the options of fields.
const NO_EFFECT: &str = "no effect on records, which have no frames, parameters or equation";

/// `evaluate score` with a model of fields or of records.
pub(crate) const SCORE: Score = Verb {
    options: ScoreOptions::augment_args,
    open: |request| {
        let (parts, opener) = (request.parts, request.opener);
        let checkpoint = || parts.origin.checkpoint.display().to_string();
        let model = TrainedRegression::restore(parts, opener).context(checkpoint)?;
        if !model.reads_records() {
            return evaluate::open(Box::new(model), request);
        }
        refuse(request.options, ScoreOptions::augment_args, NO_EFFECT)?;
        opener.require_known(parts, &[])?;
        Ok(Box::new(RecordEvaluator::open(model, request.data, request.split)?))
    },
};

/// `evaluate predict` with a model of fields or of records.
pub(crate) const PREDICT: Predict = Verb {
    options: |command: Command| RecordOptions::augment_args(PredictOptions::augment_args(command)),
    open: |request| {
        let (parts, opener) = (request.parts, request.opener);
        let checkpoint = || parts.origin.checkpoint.display().to_string();
        let model = TrainedRegression::restore(parts, opener).context(checkpoint)?;
        if model.reads_records() {
            refuse(request.options, PredictOptions::augment_args, NO_EFFECT)?;
            return predict::open(model, request);
        }
        let why = "only for models of records; ds-prep import reorders fields";
        refuse(request.options, RecordOptions::augment_args, why)?;
        predictions::of_fields(Box::new(model), request)
    },
};
