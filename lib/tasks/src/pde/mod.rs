//! PDE surrogates in latent space: a codec from fields to tokens, an operator on its latents, and their evaluation.

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
