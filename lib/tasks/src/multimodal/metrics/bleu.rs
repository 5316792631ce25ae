//! Corpus BLEU-4 with one reference per text (Papineni et al. 2002).

use std::collections::HashMap;
use std::hash::Hash;

/// Longest n-grams.
const ORDER: usize = 4;

/// How a precision without matches enters the score.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Smoothing {
    /// As 0, so that the score is 0.
    None,
    /// The k-th such order n has the precision 1/(2ᵏ·total n-grams), as in NIST's mteval and by default in sacrebleu.
    Exp,
}

/// The sufficient statistics of BLEU, summed over texts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bleu {
    /// n-grams that occur in the reference, at most as often as there, for n = 1 to 4.
    pub matches: [u64; ORDER],
    /// All n-grams of the hypotheses.
    pub totals: [u64; ORDER],
    /// Number of tokens of the hypotheses.
    pub hypothesis: u64,
    /// Number of tokens of the references.
    pub reference: u64,
}

impl Bleu {
    /// Adds a text and its reference.
    pub fn add<T: Eq + Hash>(&mut self, hypothesis: &[T], reference: &[T]) {
        self.hypothesis += hypothesis.len() as u64;
        self.reference += reference.len() as u64;
        for n in 1..=ORDER {
            let mut left: HashMap<&[T], u64> = HashMap::new();
            reference.windows(n).for_each(|gram| *left.entry(gram).or_default() += 1);
            for gram in hypothesis.windows(n) {
                self.totals[n - 1] += 1;
                if let Some(count @ 1..) = left.get_mut(gram) {
                    *count -= 1;
                    self.matches[n - 1] += 1;
                }
            }
        }
    }

    /// The score from 0 to 100: the geometric mean of the precisions times the brevity penalty exp(1 - r/h) for h < r
    /// tokens. 0 if the hypotheses have no 4-grams, no matches or no tokens.
    pub fn score(&self, smoothing: Smoothing) -> f64 {
        if self.matches[0] == 0 || self.totals[ORDER - 1] == 0 {
            return 0.0;
        }
        let mut smoothed = 1.0;
        let mut logs = 0.0;
        for (matches, total) in self.matches.iter().zip(&self.totals) {
            let counted = match (matches, smoothing) {
                (0, Smoothing::None) => return 0.0,
                (0, Smoothing::Exp) => {
                    smoothed /= 2.0;
                    smoothed
                }
                (matches, _) => *matches as f64,
            };
            logs += (counted / *total as f64).ln();
        }
        let penalty = (1.0 - self.reference as f64 / self.hypothesis as f64).min(0.0);
        100.0 * (logs / ORDER as f64 + penalty).exp()
    }
}
