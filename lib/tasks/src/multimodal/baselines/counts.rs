//! Texts as sparse vectors of the counts of their tokens and pairs of tokens.

use crate::text::baselines::features::{Rows, murmur3};
use rayon::prelude::*;
use std::cmp::Reverse;
use std::collections::HashMap;

/// Maximum number of tokens with a feature of their own: the most frequent ones of the training split.
const MAX_TOKENS: usize = 2048;
/// Number of buckets into which pairs of neighbouring tokens are hashed.
const BUCKETS: u32 = 4096;

/// The features of training texts, at most `MAX_TOKENS` + `BUCKETS`.
#[derive(Clone, Debug)]
pub(super) struct Counts {
    /// The feature of a token; others are not counted.
    tokens: HashMap<i32, u32>,
    /// The feature of each bucket; `None` if no training text has it. Empty without pairs.
    buckets: Vec<Option<u32>>,
    width: usize,
}

impl Counts {
    /// The features of these texts: tokens, and pairs if `bigrams` is set.
    pub fn fit<T: AsRef<[i32]>>(texts: &[T], bigrams: bool) -> Self {
        let mut frequencies: HashMap<i32, u64> = HashMap::new();
        let all = texts.iter().flat_map(|text| text.as_ref());
        all.for_each(|token| *frequencies.entry(*token).or_default() += 1);
        let mut tokens: Vec<(i32, u64)> = frequencies.into_iter().collect();
        tokens.sort_unstable_by_key(|(token, count)| (Reverse(*count), *token));
        tokens.truncate(MAX_TOKENS);
        let mut width = tokens.len();
        let tokens = tokens.into_iter().map(|(token, _)| token).zip(0..).collect();
        let mut seen = vec![false; if bigrams { BUCKETS as usize } else { 0 }];
        if bigrams {
            let pairs = texts.iter().flat_map(|text| text.as_ref().windows(2));
            pairs.for_each(|pair| seen[bucket(pair)] = true);
        }
        let feature = |seen: &bool| {
            seen.then(|| {
                width += 1;
                width as u32 - 1
            })
        };
        let buckets = seen.iter().map(feature).collect();
        Self { tokens, buckets, width }
    }

    /// The vectors of texts.
    pub fn of<T: AsRef<[i32]> + Sync>(&self, texts: &[T]) -> Rows {
        let row = |text: &T| {
            let text = text.as_ref();
            let tokens = text.iter().filter_map(|token| self.tokens.get(token).copied());
            let pairs = text.windows(2).filter_map(|pair| *self.buckets.get(bucket(pair))?);
            let mut found: Vec<u32> = tokens.chain(pairs).collect();
            found.sort_unstable();
            found.chunk_by(|a, b| a == b).map(|equal| (equal[0], equal.len() as f32)).collect()
        };
        Rows::of(self.width, texts.par_iter().map(row).collect())
    }
}

/// The bucket of a pair of tokens.
fn bucket(pair: &[i32]) -> usize {
    let bytes: Vec<u8> = pair.iter().flat_map(|token| token.to_le_bytes()).collect();
    (murmur3(&bytes) % BUCKETS) as usize
}
