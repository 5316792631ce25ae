//! Texts with labels, for classification, and with answers in contexts.
//!
//! `ds-prep import` copies them from CSV and JSONL files into a [`TextStore`], `ds-prep split` divides stores
//! ([`TextSplit`]), and `ds-prep tokenize` encodes the texts of a manifest once, with the tokenizer of a model
//! ([`TokenSet`]).

mod answers;
mod columns;
pub mod criteria;
mod csv_rows;
mod draw;
mod import;
mod json_rows;
mod lines;
mod new_texts;
mod remarks;
mod rows;
pub mod sentences;
mod similar;
mod store;
mod token_arrays;
mod tokenize;
mod tokenizer;
mod tokens;
mod vocabulary;
mod windows;

pub use columns::Columns;
pub use import::import;
pub use new_texts::{Needs, NewText, NewTexts};
pub use remarks::lacking;
pub use similar::{Similar, near_leaks};
pub use store::{TextKind, TextStore};
pub use tokenize::{TokenizeReport, tokenize};
pub use tokenizer::{Cut, Encoded, SpecialTokens, Tokenizer};
pub use tokens::{TokenInfo, TokenSet};
pub use vocabulary::vocabulary;
pub use windows::{RecordTokens, Window};

use crate::split::{Split, SplitSet};

/// A manifest of texts.
pub type TextSplit = Split<TextKind>;
/// The texts of one split, across its stores.
pub type TextSet = SplitSet<TextKind>;
