//! Baselines for answers without an encoder.

use super::metrics::normalised;
use data::text::TokenSet;
use std::collections::{HashMap, HashSet};
use std::ops::Range;

/// A word is typical of a question if at least this share of its occurrences in answers is in answers to that question.
const TYPICAL: f64 = 0.9;
/// Without questions, a word is typical if at least this share of its occurrences in contexts is in answers.
const TYPICAL_IN_CONTEXTS: f64 = 0.5;
/// Minimum number of occurrences of a typical word in answers.
const MIN_OCCURRENCES: usize = 2;

/// The first sentence of the context with a word that is typical of answers to the question in training; the first
/// sentence if there is none.
pub struct FirstOccurrence<'a> {
    typical: HashMap<&'a str, HashSet<String>>,
}

impl<'a> FirstOccurrence<'a> {
    /// Counts the words of the answers of `train`.
    pub fn fit(train: &'a TokenSet) -> Self {
        let mut own: HashMap<&str, HashMap<String, usize>> = HashMap::new();
        let mut all: HashMap<String, usize> = HashMap::new();
        let has_questions = (0..train.len()).any(|i| train.texts(i)[0].is_some());
        for i in 0..train.len() {
            let Some(characters) = train.answer(i) else { continue };
            let answer = normalised(train.record(i).text_of_characters(characters));
            let counted = match has_questions {
                true => answer.clone(),
                false => normalised(train.context(i).unwrap_or_default()),
            };
            counted.into_iter().for_each(|word| *all.entry(word).or_default() += 1);
            let of_question = own.entry(question(train, i)).or_default();
            answer.into_iter().for_each(|word| *of_question.entry(word).or_default() += 1);
        }
        let least = if has_questions { TYPICAL } else { TYPICAL_IN_CONTEXTS };
        let is_typical = |word: &str, n: usize| {
            n >= MIN_OCCURRENCES && n as f64 >= least * all.get(word).copied().unwrap_or(n) as f64
        };
        let words = |counts: HashMap<String, usize>| {
            let typical = counts.into_iter().filter(|(word, n)| is_typical(word, *n));
            typical.map(|(word, _)| word).collect()
        };
        Self { typical: own.into_iter().map(|(q, counts)| (q, words(counts))).collect() }
    }

    /// The first and the last token of the answer to record `i`.
    pub fn answer(&self, set: &TokenSet, i: usize) -> Option<[usize; 2]> {
        let context: Vec<char> = set.context(i)?.chars().collect();
        let sentences = sentences(&context);
        let typical = self.typical.get(question(set, i));
        let has_word = |range: &&Range<usize>| {
            let text: String = context[(*range).clone()].iter().collect();
            typical.is_some_and(|words| normalised(&text).iter().any(|word| words.contains(word)))
        };
        let found = sentences.iter().find(has_word).or(sentences.first())?;
        set.record(i).tokens_of([found.start, found.end])
    }
}

fn question(set: &TokenSet, i: usize) -> &str {
    set.texts(i)[0].unwrap_or("")
}

/// The sentences of a text, by punctuation at the end of a word.
fn sentences(text: &[char]) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut start = 0;
    for end in 1..=text.len() {
        let ends = matches!(text[end - 1], '.' | '!' | '?' | '\n')
            && text.get(end).is_none_or(|next| next.is_whitespace());
        if ends || end == text.len() {
            while start < end && text[start].is_whitespace() {
                start += 1;
            }
            if start < end {
                found.push(start..end);
            }
            start = end;
        }
    }
    found
}

/// The first and the last token of the context of record `i`.
pub fn whole_context(set: &TokenSet, i: usize) -> Option<[usize; 2]> {
    let tokens = set.context_tokens(i);
    (!tokens.is_empty()).then(|| [tokens.start, tokens.end - 1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_end_with_punctuation_after_a_word() {
        let text: Vec<char> = " Is 1.5 much? Ja!  Übel".chars().collect();
        let found: Vec<String> =
            sentences(&text).into_iter().map(|range| text[range].iter().collect()).collect();
        assert_eq!(found, ["Is 1.5 much?", "Ja!", "Übel"]);
        assert!(sentences(&[' ']).is_empty());
    }
}
