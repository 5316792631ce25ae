//! What a decoder must be better than: the frequencies of tokens in training, and the most frequent answer.

use super::batch::Labelled;
use data::text::TokenSet;
use data::text::chat::{ChatTokenizer, messages_of};
use std::collections::HashMap;
use unix::Result;

/// Training records whose answers are counted.
const RECORDS: usize = 10_000;

/// The distribution of the labels in training, whatever precedes them.
pub(super) struct Unigram {
    /// -ln p of each token.
    losses: Vec<f64>,
}

impl Unigram {
    /// Counts the labels of a set; every token counts once more, so that none is impossible. Errors: 65 for damaged tokens.
    pub fn fit(train: &TokenSet) -> Result<Self> {
        let mut counts = vec![1_u64; train.info().vocabulary];
        for i in 0..train.len() {
            for label in Labelled::of(train, i)?.labels() {
                counts[label as usize] += 1;
            }
        }
        let all = (counts.iter().sum::<u64>() as f64).ln();
        Ok(Self { losses: counts.iter().map(|count| all - (*count as f64).ln()).collect() })
    }

    /// The sum of the losses of the labels of record `i` of a set. Errors: 65 for damaged tokens.
    pub fn loss(&self, set: &TokenSet, i: usize) -> Result<f64> {
        let own = Labelled::of(set, i)?;
        Ok(own.labels().map(|label| self.losses[label as usize]).sum())
    }
}

/// The last answer of a record: the ids of its prompt, and its text. None if the template renders no answer. Errors: those of
/// [`ChatTokenizer::last_turn`].
pub(super) fn last_answer(
    chat: &ChatTokenizer,
    stops: &[i32],
    set: &TokenSet,
    i: usize,
) -> Result<Option<(Vec<i32>, String)>> {
    let Ok(messages) = messages_of(set.texts(i)[0].unwrap_or_default()) else { return Ok(None) };
    let tokens: Vec<usize> =
        set.images(i)?.iter().map(|image| chat.image_tokens(image.grid)).collect();
    let Some(turn) = chat.last_turn((&messages, &tokens), stops)? else { return Ok(None) };
    let text = chat.tokenizer.decode(&turn.answer)?;
    Ok(Some((turn.prompt, text)))
}

/// The most frequent answer of the first records of a set; of several, the first in alphabetical order. Errors: those of
/// [`last_answer`].
pub(super) fn frequent_answer(
    chat: &ChatTokenizer,
    stops: &[i32],
    train: &TokenSet,
) -> Result<String> {
    let mut counts: HashMap<String, u64> = HashMap::new();
    for i in 0..train.len().min(RECORDS) {
        if let Some((_, text)) = last_answer(chat, stops, train, i)? {
            *counts.entry(text).or_default() += 1;
        }
    }
    let best = counts.into_iter().max_by(|a, b| a.1.cmp(&b.1).then(b.0.cmp(&a.0)));
    Ok(best.map(|(text, _)| text).unwrap_or_default())
}
