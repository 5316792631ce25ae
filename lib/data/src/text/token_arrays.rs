//! The arrays of a store of tokens.

use super::kind::is_zero;
use super::store::RAGGED;
use super::tokens::TokenInfo;
use crate::fields::stats::Moments;
use crate::split::SplitName;
use crate::store::{RecordArray, StoreLayout};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use tensor::FileDtype;

/// The description of a store of tokens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Description {
    pub info: TokenInfo,
    pub split: SplitName,
    /// BLAKE3 hash of the manifest.
    pub manifest: String,
    /// BLAKE3 hashes of its stores of texts.
    pub stores: Vec<String>,
    /// Whether records have groups, ids, and questions about their contexts.
    pub groups: bool,
    pub ids: bool,
    #[serde(default)]
    pub questions: bool,
    /// Whether records have criteria.
    #[serde(default)]
    pub criteria: bool,
    pub records: usize,
    /// The stores whose images the records show, as many as `stores`; none without images.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub images: Vec<ImageSource>,
    /// BLAKE3 hash of the index of the tokens to which embeddings were added.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<String>,
}

/// A store of texts with images.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ImageSource {
    /// Its folder, relative to that of the tokens if possible.
    pub path: PathBuf,
    /// BLAKE3 hash of the index of its images; None if it has none.
    pub blake3: Option<String>,
}

/// Counts of a shard.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Counts {
    /// Number of truncated records.
    pub truncated: usize,
    /// Number of texts of which the encoder of the vectors read only the beginning.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cut: usize,
    /// Number of turns of conversations that are rendered in another way when the conversation goes on.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub changed_turns: usize,
    /// Number of tokens of all records.
    pub tokens: usize,
    /// Number of tokens that stand for words outside the vocabulary.
    pub unknown: usize,
    /// Number of different segments.
    pub segments: usize,
    /// Moments of each dimension of the vectors.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub vector: Vec<Moments>,
}

/// Indices of the arrays of a store of tokens.
#[derive(Clone, Debug)]
pub(super) struct Arrays {
    pub all: Vec<RecordArray>,
    pub ids: usize,
    pub offsets: usize,
    pub label: Option<usize>,
    pub source: usize,
    pub types: usize,
    /// The range of the context among the tokens of the record, followed by the character range of the answer in the
    /// context.
    pub context: Option<usize>,
    pub answer: Option<usize>,
    pub vector: Option<usize>,
    /// Ids and segments of the labelled text of a record that also has a context.
    pub of_text: Option<[usize; 2]>,
    /// The images of a record ([`ImageRef`](super::ImageRef)), and the rows and columns of their patches.
    pub images: Option<[usize; 2]>,
    /// Text, text2, group, id, context and criterion.
    pub texts: [Option<usize>; RAGGED.len()],
}

impl Arrays {
    pub fn new(description: &Description) -> Self {
        let Description { info, groups, ids, questions, criteria, .. } = description;
        let has_text = !info.vectors_only && (!info.answers || info.is_joint() || *questions);
        let has = [has_text, info.pairs, *groups, *ids, info.answers, *criteria];
        let names: Vec<(usize, &str)> =
            RAGGED.into_iter().enumerate().filter(|(k, _)| has[*k]).collect();
        let mut all = vec![RecordArray::ends("tokens.ends")];
        all.extend(names.iter().map(|(_, name)| RecordArray::ends(&format!("{name}.ends"))));
        let ends_of_text = all.len();
        all.extend(info.is_joint().then(|| RecordArray::ends("text_tokens.ends")));
        let add = |all: &mut Vec<RecordArray>, array: RecordArray| {
            all.push(array);
            all.len() - 1
        };
        let has_images = !description.images.is_empty();
        let ends_of_images = all.len();
        all.extend(has_images.then(|| RecordArray::ends("images.ends")));
        let source = add(&mut all, RecordArray::fixed("source", FileDtype::U64, &[2]));
        let places = RecordArray::ragged("images", FileDtype::U64, &[2], ends_of_images);
        let places = has_images.then(|| add(&mut all, places));
        let token_ids = add(&mut all, RecordArray::ragged("ids", FileDtype::I32, &[], 0));
        let offsets = add(&mut all, RecordArray::ragged("offsets", FileDtype::I32, &[2], 0));
        let length = info.kind().label_len();
        let label = RecordArray::fixed("label", FileDtype::I32, &[length]);
        let label = (length > 0).then(|| add(&mut all, label));
        // In descending order of element size, so that all are aligned.
        let pair = |name| RecordArray::fixed(name, FileDtype::I32, &[2]);
        let context = info.answers.then(|| add(&mut all, pair("context_tokens")));
        let answer = info.answers.then(|| add(&mut all, pair("answer")));
        let grids = RecordArray::ragged("grids", FileDtype::I32, &[2], ends_of_images);
        let images = places.map(|places| [places, add(&mut all, grids)]);
        let vector = RecordArray::fixed("vector", FileDtype::F32, &[info.vector]);
        let vector = (info.vector > 0).then(|| add(&mut all, vector));
        let of_text = |name, dtype| RecordArray::ragged(name, dtype, &[], ends_of_text);
        let text_ids = info.is_joint().then(|| add(&mut all, of_text("text_ids", FileDtype::I32)));
        let types = add(&mut all, RecordArray::ragged("types", FileDtype::U8, &[], 0));
        let of_text =
            text_ids.map(|ids| [ids, add(&mut all, of_text("text_types", FileDtype::U8))]);
        let mut texts = [None; RAGGED.len()];
        for (number, (kind, name)) in names.into_iter().enumerate() {
            let array = RecordArray::ragged(name, FileDtype::U8, &[], number + 1);
            texts[kind] = Some(add(&mut all, array));
        }
        let ids = token_ids;
        Self {
            all,
            ids,
            offsets,
            label,
            source,
            types,
            context,
            answer,
            vector,
            of_text,
            images,
            texts,
        }
    }

    pub fn layout(&self, records: usize, shard_records: usize) -> StoreLayout {
        StoreLayout { arrays: self.all.clone(), records, shard_records }
    }
}
