//! Metrics of texts computed from vectors and of vectors computed from texts, as functions of slices.
//!
//! What is summed over the blocks of an evaluation ([`Bleu`], [`SlotScores`], [`Bound`]) can be merged and serialised.
//! Everything else is per record, so that callers can average it over any group of records and resample it.

mod bleu;
mod bound;
mod retrieval;
mod similarity;
mod slots;
#[cfg(test)]
mod tests;
mod tokens;

pub use bleu::{Bleu, Smoothing};
pub use bound::{Bound, weighted_sum};
pub(in crate::multimodal) use retrieval::each_row;
pub use retrieval::{
    cosines, mean_reciprocal_rank, paired_cosines, pairwise, ranks, recall, within_groups,
};
pub use similarity::correlations;
pub use slots::SlotScores;
pub use tokens::TokenAgreement;
