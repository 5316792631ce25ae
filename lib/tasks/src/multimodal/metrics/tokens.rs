//! Agreement of two sequences of tokens.

use crate::text::span::word_f1;
use std::hash::Hash;

/// How well a text agrees with its reference, without regard to synonyms and order of clauses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenAgreement {
    /// Whether both are equal.
    pub exact: bool,
    /// F1 of the tokens as multisets.
    pub f1: f64,
    /// Number of positions with the same token in both.
    pub equal: u64,
    /// Number of positions of the longer one.
    pub positions: u64,
}

impl TokenAgreement {
    /// Compares a text with its reference, without padding; two empty texts agree.
    pub fn of<T: Eq + Hash>(hypothesis: &[T], reference: &[T]) -> Self {
        Self {
            exact: hypothesis == reference,
            f1: word_f1(hypothesis, reference),
            equal: hypothesis.iter().zip(reference).filter(|(a, b)| a == b).count() as u64,
            positions: hypothesis.len().max(reference.len()) as u64,
        }
    }

    /// The share of positions with the same token; 1 for two empty texts.
    pub fn equal_share(&self) -> f64 {
        if self.positions == 0 { 1.0 } else { self.equal as f64 / self.positions as f64 }
    }
}
