//! Metrics of texts computed from vectors and of vectors computed from texts, as functions of slices.
//!
//! They are per record where a mean makes sense, so that callers can average them over any records and resample them.

mod bleu;
mod bound;
mod retrieval;
mod similarity;
#[cfg(test)]
mod tests;
mod tokens;

pub use bleu::{Bleu, Smoothing};
pub use bound::weighted_sum;
pub(in crate::multimodal) use retrieval::each_row;
pub use retrieval::{paired_cosines, pairwise, ranks, recall, within_groups};
pub use similarity::correlations;
pub use tokens::TokenAgreement;
