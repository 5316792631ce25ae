//! Metrics of answers: of their tokens, and of their texts as in the evaluation of SQuAD (Rajpurkar et al. 2016).

use crate::text::metrics::{Metrics, Resampling};
use std::collections::HashMap;
use std::hash::Hash;

/// How well an answer agrees with the true one; without an answer, whether there truly is none.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Agreement {
    /// Whether the first token is the true one.
    pub start: bool,
    /// Whether the last token is.
    pub end: bool,
    /// F1 of the tokens, as sets.
    pub f1: f64,
    /// Whether the texts are equal after normalisation.
    pub text: bool,
    /// F1 of the words of the normalised texts.
    pub text_f1: f64,
}

/// An answer: its first and last token, and its text.
pub type Answer<'a> = Option<([usize; 2], &'a str)>;

impl Agreement {
    /// Compares a predicted answer with the true one.
    pub fn of(predicted: Answer, truth: Answer) -> Self {
        let (Some(([first, last], text)), Some(([true_first, true_last], true_text))) =
            (predicted, truth)
        else {
            let same = predicted.is_none() == truth.is_none();
            let f1 = f64::from(u8::from(same));
            return Self { start: same, end: same, f1, text: same, text_f1: f1 };
        };
        let length = |first: usize, last: usize| (last + 1).saturating_sub(first);
        let shared = length(first.max(true_first), last.min(true_last));
        let (words, true_words) = (normalised(text), normalised(true_text));
        Self {
            start: first == true_first,
            end: last == true_last,
            f1: 2.0 * shared as f64 / (length(first, last) + length(true_first, true_last)) as f64,
            text: words == true_words,
            text_f1: word_f1(&words, &true_words),
        }
    }

    /// Whether both tokens are the true ones.
    pub fn exact(&self) -> bool {
        self.start && self.end
    }

    /// Its values by the names of the metrics.
    pub fn values(&self) -> [(&'static str, f64); 6] {
        let number = |is: bool| f64::from(u8::from(is));
        [
            ("exact_match", number(self.exact())),
            ("f1", self.f1),
            ("start_accuracy", number(self.start)),
            ("end_accuracy", number(self.end)),
            ("text_exact_match", number(self.text)),
            ("text_f1", self.text_f1),
        ]
    }
}

/// The means over records, with intervals.
pub fn means(all: &[Agreement], resampling: Resampling) -> Metrics {
    let values: Vec<_> = all.iter().map(Agreement::values).collect();
    Metrics::of(all.len(), resampling, |weights| {
        let total: u32 = weights.iter().sum();
        let names = Agreement::default().values();
        let mean = |(at, (name, _)): (usize, (&'static str, f64))| {
            let sum: f64 = values.iter().zip(weights).map(|(v, n)| v[at].1 * f64::from(*n)).sum();
            (name, (total > 0).then(|| sum / f64::from(total)))
        };
        names.into_iter().enumerate().map(mean).collect()
    })
}

/// The words of a text in lower case, without ASCII punctuation and the articles a, an and the.
pub fn normalised(text: &str) -> Vec<String> {
    let lower = text.to_lowercase();
    let kept: String = lower.chars().filter(|c| !c.is_ascii_punctuation()).collect();
    let words = remove_articles(&kept);
    words.split_whitespace().map(String::from).collect()
}

/// Replaces articles that are whole words with spaces, like Python's `re.sub(r"\b(a|an|the)\b", " ", text)`.
fn remove_articles(text: &str) -> String {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let end = rest.find(|c: char| is_word(c) != is_word(first)).unwrap_or(rest.len());
        let (run, after) = rest.split_at(end);
        out.push_str(if ["a", "an", "the"].contains(&run) { " " } else { run });
        rest = after;
    }
    out
}

/// F1 over words, or other tokens, as multisets; 1 if both are empty, 0 if only one is.
pub fn word_f1<T: Eq + Hash>(predicted: &[T], truth: &[T]) -> f64 {
    if predicted.is_empty() || truth.is_empty() {
        return f64::from(u8::from(predicted == truth));
    }
    let mut left: HashMap<&T, usize> = HashMap::new();
    truth.iter().for_each(|word| *left.entry(word).or_default() += 1);
    let shared = predicted.iter().filter(|word| match left.get_mut(word) {
        Some(n) if *n > 0 => {
            *n -= 1;
            true
        }
        _ => false,
    });
    2.0 * shared.count() as f64 / (predicted.len() + truth.len()) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agreement_of_tokens_and_words() {
        let truth = Some(([3, 6], "The big, old house"));
        let found = Agreement::of(Some(([5, 8], "old house with")), truth);
        assert_eq!((found.start, found.end, found.text), (false, false, false));
        // Two of four and four tokens; two of three and three words.
        assert_eq!((found.f1, found.text_f1), (0.5, 2.0 / 3.0));
        let apart = Agreement::of(Some(([8, 9], "a door")), truth);
        assert_eq!((apart.f1, apart.text_f1), (0.0, 0.0));
        let same = Agreement::of(Some(([2, 6], "big old HOUSE")), truth);
        assert!(same.end && !same.exact() && same.text && same.text_f1 == 1.0);
        assert!(Agreement::of(None, None).exact());
        assert_eq!(Agreement::of(None, truth), Agreement::default());
        assert_eq!(Agreement::of(truth, None), Agreement::default());
    }
}
