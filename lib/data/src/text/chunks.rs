//! Cuts long texts into chunks at the ends of sentences.

use super::columns::cell;
use super::remarks::is_no_group;
use super::rows::Row;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::path::Path;
use unix::{Error, Result};

/// How long texts are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chunks {
    /// Largest number of characters of a chunk.
    pub length: usize,
    /// Largest number of characters that a chunk repeats of the one before.
    pub overlap: usize,
}

/// Characters at which sentences end.
const ENDS: [char; 9] = ['.', '!', '?', '…', '。', '！', '？', '｡', '।'];
/// Characters that may follow the end of a sentence.
const CLOSING: [char; 9] = ['"', '\'', ')', ']', '»', '”', '’', '」', '』'];

/// A chunk, as ranges of the bytes of the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// The chunk.
    pub range: Range<usize>,
    /// Where what it does not share with the chunk before begins.
    pub own: usize,
}

impl Chunks {
    /// Checks the sizes. Errors: 2.
    pub fn new(length: usize, overlap: usize) -> Result<Self> {
        match length > 0 && overlap <= length / 2 {
            true => Ok(Self { length, overlap }),
            false => Err(Error::usage(format!(
                "--overlap {overlap}: at most half of --chunk, which is {length} and at least 1"
            ))),
        }
    }

    /// Divides a text into chunks. What each does not share with the one before makes, one after the other, the whole
    /// text. A chunk ends after the last sentence that ends in its second half, else after a blank there, else at
    /// the largest length; it begins at a word, at most `overlap` characters before the end of the one before.
    pub fn of(&self, text: &str) -> Vec<Chunk> {
        let characters: Vec<(usize, char)> = text.char_indices().collect();
        let byte = |at: usize| characters.get(at).map_or(text.len(), |(byte, _)| *byte);
        let is_blank = |at: usize| characters[at].1.is_whitespace();
        // Whether a chunk may end before character `at`: words follow, or nothing does.
        let begins = |at: usize| at == characters.len() || (is_blank(at - 1) && !is_blank(at));
        let ends_sentence = |at: usize| {
            let before = characters[..at].iter().rev().map(|(_, c)| *c);
            let mut before = before.skip_while(|c| c.is_whitespace() && *c != '\n').peekable();
            let new_line = before.peek() == Some(&'\n');
            let last = before.find(|c| !CLOSING.contains(c));
            begins(at) && (new_line || last.is_some_and(|c| ENDS.contains(&c)))
        };
        // In scripts without blanks, sentences end right after their last character.
        let ends_wide = |at: usize| matches!(characters[at - 1].1, '。' | '！' | '？' | '｡');
        let (mut found, mut start, mut own) = (Vec::new(), 0, 0);
        loop {
            let most = (start + self.length).min(characters.len());
            let least = (start + self.length.div_ceil(2)).max(own + 1);
            let end = match most == characters.len() {
                true => most,
                false => {
                    let mut places = (least..=most).rev();
                    let sentence = places.clone().find(|at| ends_sentence(*at) || ends_wide(*at));
                    sentence.or_else(|| places.find(|at| begins(*at))).unwrap_or(most)
                }
            };
            found.push(Chunk { range: byte(start)..byte(end), own: byte(own) });
            if end == characters.len() {
                return found;
            }
            let earliest = end - self.overlap.min(end - start);
            start = (earliest.max(start + 1)..end).find(|at| begins(*at)).unwrap_or(end);
            own = end;
        }
    }

    /// Divides the text of a row. The chunks share a group, by default the document: its id, or file and line. Ids get
    /// the number of the chunk.
    pub(super) fn rows(&self, row: Row, path: &Path) -> Vec<Row> {
        let chunks = self.of(&row.cells[0]);
        let id = row.cells[cell::ID].clone();
        let line = row.line;
        let document =
            || if id.is_empty() { format!("{}:{line}", path.display()) } else { id.clone() };
        let one = |(number, chunk): (usize, &Chunk)| {
            let mut own = row.clone();
            own.cells[0] = row.cells[0][chunk.range.clone()].to_string();
            if is_no_group(&own.cells[cell::GROUP]) {
                own.cells[cell::GROUP] = document();
            }
            if !id.is_empty() {
                own.cells[cell::ID] = format!("{id}#{number}");
            }
            own
        };
        chunks.iter().enumerate().map(one).collect()
    }
}
