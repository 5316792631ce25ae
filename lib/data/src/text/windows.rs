//! Windows of contexts that are longer than what a model reads.
//!
//! The tokens of a record are those of the question, if it has one, and of its whole context, with special tokens. A
//! window leaves out the tokens of the context before and after it.

use super::tokens::{TokenInfo, TokenSet};
use std::ops::Range;

/// A window of a context.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// The record.
    pub record: usize,
    /// The tokens of the context in it, numbered as those of the record.
    pub tokens: Range<usize>,
    /// Number of tokens of the record before the context, which each window begins with.
    pub before: usize,
}

/// Whether a record of so many tokens, `context` among them, can be divided into windows.
pub(super) fn fits(length: usize, context: Range<usize>, info: &TokenInfo) -> bool {
    let is_part = context.start <= context.end && context.end <= length;
    is_part && length - context.len() + info.stride < info.max_length
}

impl TokenSet {
    /// The windows of record `i`, from the beginning to the end of its context. Panics when out of range.
    pub fn windows(&self, i: usize) -> Vec<Window> {
        let context = self.context_tokens(i);
        let room = self.info().max_length - (self.ids(i).len() - context.len());
        let step = room - self.info().stride;
        let count = 1 + context.len().saturating_sub(room).div_ceil(step);
        let window = |number: usize| {
            let start = context.start + number * step;
            let tokens = start..(start + room).min(context.end);
            Window { record: i, tokens, before: context.start }
        };
        (0..count).map(window).collect()
    }

    /// Ids and segments of a window.
    pub fn of_window(&self, window: &Window) -> (Vec<i32>, Vec<u8>) {
        let (ids, types) = (self.ids(window.record), self.types(window.record));
        let after = self.context_tokens(window.record).end;
        let parts = [0..window.before, window.tokens.clone(), after..ids.len()];
        let pick = |range: &Range<usize>| (&ids[range.clone()], &types[range.clone()]);
        let (ids, types): (Vec<_>, Vec<_>) = parts.iter().map(pick).unzip();
        (ids.concat(), types.concat())
    }

    /// The first and the last token of the answer to record `i`, numbered as those of the record: the tokens that have its
    /// first and its last character. None without an answer, or if no token has a character of it.
    pub fn answer_tokens(&self, i: usize) -> Option<[usize; 2]> {
        self.tokens_of(i, self.answer(i)?)
    }

    /// The same for the characters from `first` to the one before `end` of the context of record `i`.
    pub fn tokens_of(&self, i: usize, [first, end]: [usize; 2]) -> Option<[usize; 2]> {
        let offsets = self.offsets(i);
        let of = |token: usize| offsets[token].map(|at| at as usize);
        let has = |token: &usize| {
            let [from, to] = of(*token);
            from < end && first < to
        };
        let start = self.context_tokens(i).find(has)?;
        // Several tokens may have the last character.
        let is_last = |token: &usize| of(*token)[1] >= end;
        let last = self.context_tokens(i).filter(has).find(is_last);
        Some([start, last.or_else(|| self.context_tokens(i).rfind(has))?])
    }

    /// The characters from the first token to the last one, and their text; both tokens are of the context.
    pub fn text_of_tokens(&self, i: usize, [first, last]: [usize; 2]) -> ([usize; 2], &str) {
        let offsets = self.offsets(i);
        let characters = [offsets[first][0] as usize, offsets[last][1] as usize];
        (characters, self.text_of_characters(i, characters))
    }

    /// The text from a character of the context to the one before `end`.
    pub fn text_of_characters(&self, i: usize, [start, end]: [usize; 2]) -> &str {
        let context = self.context(i).unwrap_or_default();
        let byte = |n: usize| context.char_indices().nth(n).map_or(context.len(), |(at, _)| at);
        context.get(byte(start)..byte(end)).unwrap_or_default()
    }
}

impl Window {
    /// The place of a token of the record in the window, if it is in it.
    pub fn place(&self, token: usize) -> Option<usize> {
        self.tokens.contains(&token).then(|| token - self.tokens.start + self.before)
    }

    /// The token of the record at a place of the window, if it is one of the context.
    pub fn token(&self, place: usize) -> Option<usize> {
        let token = place.checked_sub(self.before)? + self.tokens.start;
        self.tokens.contains(&token).then_some(token)
    }
}
