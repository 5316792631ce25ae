//! The text of the most frequent token at each position.

use crate::multimodal::metrics::TokenAgreement;
use std::cmp::Reverse;
use std::collections::HashMap;

/// One text for every record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unigram {
    /// Its tokens.
    pub tokens: Vec<i32>,
}

impl Unigram {
    /// The most frequent token at each position of the training texts, the smallest one on ties. The text ends where
    /// more training texts have ended than have any one token.
    pub fn fit<T: AsRef<[i32]>>(texts: &[T]) -> Self {
        let longest = texts.iter().map(|text| text.as_ref().len()).max().unwrap_or(0);
        let at = |position: usize| {
            let mut counts: HashMap<Option<i32>, usize> = HashMap::new();
            let tokens = texts.iter().map(|text| text.as_ref().get(position).copied());
            tokens.for_each(|token| *counts.entry(token).or_default() += 1);
            counts.into_iter().max_by_key(|(token, n)| (*n, token.is_some(), Reverse(*token)))?.0
        };
        Self { tokens: (0..longest).map_while(at).collect() }
    }

    /// The share of positions of texts at which it has the same token; NaN without texts.
    pub fn equal_share<T: AsRef<[i32]>>(&self, texts: &[T]) -> f64 {
        let agreements = texts.iter().map(|text| TokenAgreement::of(&self.tokens, text.as_ref()));
        let sum = |(equal, positions), own: TokenAgreement| {
            (equal + own.equal, positions + own.positions)
        };
        let (equal, positions) = agreements.fold((0, 0), sum);
        equal as f64 / positions as f64
    }
}
