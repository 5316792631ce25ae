//! Windows of contexts that are longer than what a model reads.
//!
//! The tokens of a record consist of the question, if it has one, the whole context, and special tokens. A window keeps
//! only part of the tokens of the context.

use super::tokenizer::Encoded;
use super::tokens::{TokenInfo, TokenSet};
use std::ops::Range;

/// The tokens of a record. Tokens of the context are numbered by their index in `ids`.
#[derive(Clone, Debug)]
pub struct RecordTokens<'a> {
    /// Ids, with special tokens.
    pub ids: &'a [i32],
    /// The segment of each token.
    pub types: &'a [u8],
    /// The character range of each token in its text or context, with an exclusive end.
    pub offsets: &'a [[i32; 2]],
    /// The range of the tokens of the context; empty without a context.
    pub context_tokens: Range<usize>,
    /// The context; empty if there is none.
    pub context: &'a str,
    /// Ids and segments of the labelled text, if it is not in `ids`.
    pub of_text: (&'a [i32], &'a [u8]),
}

/// A window of a context; without a context, the whole record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// The record.
    pub record: usize,
    /// The tokens of the context in the window, numbered as in the record.
    pub tokens: Range<usize>,
    /// Number of tokens before the context in the record; every window begins with them.
    pub before: usize,
}

/// Whether a record of `length` tokens, with the context in the range `context`, can be divided into windows.
pub(super) fn fits(length: usize, context: Range<usize>, info: &TokenInfo) -> bool {
    let is_part = context.start <= context.end && context.end <= length;
    is_part && length - context.len() + info.stride < info.max_length
}

impl<'a> RecordTokens<'a> {
    /// Collects the tokens of a question and a context, or of texts without a context.
    ///
    /// Errors: the problem, if windows leave no room for the context.
    pub fn of(
        encoded: &'a Encoded,
        context: &'a str,
        of_text: (&'a [i32], &'a [u8]),
        info: &TokenInfo,
    ) -> Result<Self, String> {
        let Encoded { ids, types, offsets, last, .. } = encoded;
        let context_tokens = if info.answers { last.clone() } else { 0..0 };
        if info.answers && !fits(ids.len(), last.clone(), info) {
            return Err(format!(
                "the question leaves no room for the context in {} tokens, {} of them shared by neighbouring windows",
                info.max_length, info.stride
            ));
        }
        Ok(Self { ids, types, offsets, context_tokens, context, of_text })
    }

    /// Divides the context of `record` into windows, from its beginning to its end.
    pub fn windows(&self, record: usize, info: &TokenInfo) -> Vec<Window> {
        let context = &self.context_tokens;
        let room = info.max_length - (self.ids.len() - context.len());
        // A text without a context may leave no room.
        let step = (room - info.stride).max(1);
        let count = 1 + context.len().saturating_sub(room).div_ceil(step);
        let window = |number: usize| {
            let start = context.start + number * step;
            let tokens = start..(start + room).min(context.end);
            Window { record, tokens, before: context.start }
        };
        (0..count).map(window).collect()
    }

    /// Returns the number of tokens of a window.
    pub fn window_len(&self, window: &Window) -> usize {
        self.ids.len() - self.context_tokens.len() + window.tokens.len()
    }

    /// Returns the ids and segments of a window.
    pub fn of_window(&self, window: &Window) -> (Vec<i32>, Vec<u8>) {
        let parts =
            [0..window.before, window.tokens.clone(), self.context_tokens.end..self.ids.len()];
        let pick = |range: &Range<usize>| (&self.ids[range.clone()], &self.types[range.clone()]);
        let (ids, types): (Vec<_>, Vec<_>) = parts.iter().map(pick).unzip();
        (ids.concat(), types.concat())
    }

    /// Returns the first and last tokens that overlap the characters `first..end` of the context; None if no token
    /// does.
    pub fn tokens_of(&self, [first, end]: [usize; 2]) -> Option<[usize; 2]> {
        let of = |token: usize| self.offsets[token].map(|at| at as usize);
        let has = |token: &usize| {
            let [from, to] = of(*token);
            from < end && first < to
        };
        let start = self.context_tokens.clone().find(has)?;
        // Several tokens may contain the last character.
        let is_last = |token: &usize| of(*token)[1] >= end;
        let last = self.context_tokens.clone().filter(has).find(is_last);
        Some([start, last.or_else(|| self.context_tokens.clone().rfind(has))?])
    }

    /// Returns the character range from the first to the last token, and its text. Both tokens must belong to the
    /// context.
    pub fn text_of_tokens(&self, [first, last]: [usize; 2]) -> ([usize; 2], &'a str) {
        let characters = [self.offsets[first][0] as usize, self.offsets[last][1] as usize];
        (characters, self.text_of_characters(characters))
    }

    /// Returns the text of the characters `start..end` of the context.
    pub fn text_of_characters(&self, [start, end]: [usize; 2]) -> &'a str {
        let skip = |text: &'a str, characters: usize| {
            text.char_indices().nth(characters).map_or(text.len(), |(at, _)| at)
        };
        let rest = &self.context[skip(self.context, start)..];
        &rest[..skip(rest, end.saturating_sub(start))]
    }
}

impl TokenSet {
    /// Collects the tokens of record `i`. Panics when out of range.
    pub fn record(&self, i: usize) -> RecordTokens<'_> {
        RecordTokens {
            ids: self.ids(i),
            types: self.types(i),
            offsets: self.offsets(i),
            context_tokens: self.context_tokens(i),
            context: self.context(i).unwrap_or_default(),
            of_text: self.of_text(i),
        }
    }

    /// Divides the context of record `i` into windows, from its beginning to its end. Panics when out of range.
    pub fn windows(&self, i: usize) -> Vec<Window> {
        self.record(i).windows(i, self.info())
    }

    /// Returns the tokens that contain the first and last characters of the answer to record `i`, numbered as in the
    /// record. None without an answer, or if no token contains a character of it.
    pub fn answer_tokens(&self, i: usize) -> Option<[usize; 2]> {
        self.record(i).tokens_of(self.answer(i)?)
    }
}

impl Window {
    /// Position in the window of a token of the record, if the window contains it.
    pub fn place(&self, token: usize) -> Option<usize> {
        self.tokens.contains(&token).then(|| token - self.tokens.start + self.before)
    }

    /// Token of the record at a position in the window, if it belongs to the context.
    pub fn token(&self, place: usize) -> Option<usize> {
        let token = place.checked_sub(self.before)? + self.tokens.start;
        self.tokens.contains(&token).then_some(token)
    }
}
