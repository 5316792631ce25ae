//! Texts with labels, for classification, with answers in contexts, and with vectors.
//!
//! `ds-prep import` copies them from CSV and JSONL files into a [`TextStore`], `ds-prep split` divides stores
//! ([`TextSplit`]), and `ds-prep tokenize` encodes the texts of a manifest once, with the tokenizer of a model
//! ([`TokenSet`]).

mod answers;
pub mod chat;
mod chunks;
mod columns;
mod copy_rows;
pub mod criteria;
mod csv_rows;
pub mod dialogues;
mod embedding;
mod folder_rows;
mod image_store;
mod import;
mod json_rows;
mod kind;
mod lines;
mod new_prompts;
mod new_texts;
mod new_vectors;
mod record_images;
mod remarks;
mod rows;
mod run_sizes;
mod scored_pairs;
pub mod sentences;
mod similar;
mod similar_images;
mod store;
mod store_check;
mod token_arrays;
mod token_folders;
mod token_images;
mod tokenize;
mod tokenize_chat;
mod tokenizer;
mod tokens;
mod vector_stats;
mod vectors;
mod vocabulary;
mod windows;

pub use chunks::{Chunk, Chunks};
pub use columns::Columns;
pub use embedding::{Embedding, EmbeddingWriter, SOURCE};
pub use folder_rows::{columns as folder_columns, has_images};
pub use image_store::{ImageRef, ImageStore};
pub use import::{TextImport, import, import_with};
pub use kind::TextKind;
pub use new_prompts::{NewPrompt, NewPrompts, open_images};
pub use new_texts::{Needs, NewText, NewTexts};
pub use new_vectors::{NewVector, NewVectors};
pub use remarks::lacking;
pub use scored_pairs::{ScoredPair, scored_pairs};
pub use similar::{Similar, near_leaks};
pub use store::TextStore;
pub use token_folders::import_tokens;
pub use token_images::RecordImage;
pub use tokenize::{TokenizeReport, tokenize, tokenize_chat};
pub use tokenizer::{Cut, Encoded, SpecialTokens, Tokenizer};
pub use tokens::{TokenInfo, TokenSet};
pub use vector_stats::{VectorStatistics, VectorStats};
pub use vectors::{Unpaired, VectorOptions, equal_vectors};
pub use vocabulary::vocabulary;
pub use windows::{RecordTokens, Window};

use crate::split::{Split, SplitSet};

/// A manifest of texts.
pub type TextSplit = Split<TextKind>;
/// The texts of one split, across its stores.
pub type TextSet = SplitSet<TextKind>;
