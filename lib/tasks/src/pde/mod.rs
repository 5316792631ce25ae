//! PDE surrogates in latent space: a codec between fields and tokens, an operator on its latents, and their evaluation.

pub mod codec;
pub mod corrector;
pub mod critic;
pub mod distill;
pub mod evaluate;
pub mod identity;
pub mod latents;
pub mod models;
pub mod operator;
pub mod search;
mod trained;
pub(crate) mod windows;

pub use trained::{TrainedCodec, TrainedCorrector, TrainedCritic, TrainedOperator};

use crate::evaluation::{Predict, Score, Verb};
use crate::predictions;
use crate::trained::Opener;
use clap::Args;
use evaluate::Rollouts;
use evaluate::options::{PredictOptions, ScoreOptions};
use learn::trained::Parts;
use unix::{Context, Result};

/// `evaluate score` for models of type `M`.
pub(crate) const fn score<M: Rollouts + 'static>() -> Score {
    Verb {
        options: ScoreOptions::augment_args,
        open: |request| evaluate::open(restored::<M>(request.parts, request.opener)?, request),
    }
}

/// `evaluate predict` for models of type `M`.
pub(crate) const fn predict<M: Rollouts + 'static>() -> Predict {
    Verb {
        options: PredictOptions::augment_args,
        open: |request| {
            predictions::of_fields(restored::<M>(request.parts, request.opener)?, request)
        },
    }
}

fn restored<M: Rollouts + 'static>(parts: &Parts, opener: &Opener) -> Result<Box<dyn Rollouts>> {
    let model = M::restore(parts, opener);
    Ok(Box::new(model.context(|| parts.origin.checkpoint.display().to_string())?))
}
