//! The tokens of a split, mapped into memory.
//!
//! A folder of tokens has a store for each split, named after it, and the tokenizer as tokenizer.json.

use super::chat::ChatInfo;
use super::columns::cell;
use super::embedding::{Embedding, MADE, SOURCE};
use super::image_store::ImageStore;
use super::kind::{TextKind, is_false, is_zero};
use super::remarks::is_no_group;
use super::sentences::Language;
use super::store::answer;
use super::token_arrays::{Arrays, Counts, Description};
use super::token_images::open_images;
use super::tokenizer::SpecialTokens;
use super::vector_stats::VectorStatistics;
use super::windows::{RecordTokens, fits};
use crate::inputs::{InputFile, verify_all};
use crate::provenance::Provenance;
use crate::seal::SealedFile;
use crate::split::SplitName;
use crate::store::Store;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::path::{Path, PathBuf};
use unix::{Error, Result};

pub(super) const FILE: SealedFile = SealedFile {
    format: "longhaul-tokens",
    version: 2,
    made_by: "ds-prep tokenize",
    max_bytes: 64 << 20,
};

/// The settings that tokens were made with, and the properties that models need to know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenInfo {
    /// The labels, in the order of the classes.
    pub labels: Vec<String>,
    /// Whether a record may have any number of labels.
    pub multi_label: bool,
    /// Whether a record has two texts.
    pub pairs: bool,
    /// Whether a record has a context in which an answer is to be found.
    #[serde(default)]
    pub answers: bool,
    /// How conversations were encoded; None for other texts. The segments of their tokens are 1 where a loss counts a
    /// token, otherwise 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chat: Option<ChatInfo>,
    /// Number of ids of the tokenizer.
    pub vocabulary: usize,
    /// Special tokens of the tokenizer.
    pub special: SpecialTokens,
    /// Maximum number of tokens of a text, and of a window of a context.
    pub max_length: usize,
    /// Overlap of neighbouring windows of a context in tokens.
    #[serde(default)]
    pub stride: usize,
    /// BLAKE3 hash of tokenizer.json.
    pub tokenizer_hash: String,
    /// Length of the vector of a record; 0 for texts alone.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub vector: usize,
    /// Whether records have a vector and no text; they have no tokens.
    #[serde(default, skip_serializing_if = "is_false")]
    pub vectors_only: bool,
    /// The synthetic language of the texts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub language: Option<Language>,
    /// How the vectors were computed from the texts; None for vectors that were imported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub embedding: Option<Embedding>,
}

impl TokenInfo {
    /// The labels, and whether records have pairs of texts, several labels or answers.
    pub fn kind(&self) -> TextKind {
        let &Self { multi_label, pairs, answers, vector, vectors_only, .. } = self;
        let (labels, conversations) = (self.labels.clone(), self.chat.is_some());
        TextKind { labels, multi_label, conversations, pairs, answers, vector, vectors_only }
    }

    /// Whether records have both a text with a label, and a context with an answer.
    pub fn is_joint(&self) -> bool {
        self.answers && !self.labels.is_empty()
    }
}

/// The tokens of one split. It can be shared between threads; reads copy nothing.
#[derive(Debug)]
pub struct TokenSet {
    folder: PathBuf,
    pub(super) store: Store<Description, Counts>,
    pub(super) arrays: Arrays,
    /// The images of each store of texts, if it has any.
    pub(super) images: Vec<Option<ImageStore>>,
}

impl TokenSet {
    /// Whether `path` is a folder of tokens.
    pub fn is_at(path: &Path) -> bool {
        SplitName::ALL.into_iter().any(|name| Self::has_split(path, name))
    }

    /// Whether the folder has tokens of this split, complete or not.
    pub fn has_split(path: &Path, name: SplitName) -> bool {
        FILE.is_format_of(&store_path(path, name).join("index.json"))
    }

    /// Opens the tokens of a split in the folder `path`, which is named after the split; None if it is not one. Errors:
    /// those of [`Self::open`].
    pub fn open_split(path: &Path) -> Option<Result<Self>> {
        let (folder, own) = (path.parent()?, path.file_name()?);
        let is_own = |name: &SplitName| own == name.to_string().as_str();
        let name = SplitName::ALL.into_iter().find(is_own)?;
        Self::has_split(folder, name).then(|| Self::open(folder, name))
    }

    /// Opens the tokens of a split in `folder`. Checks the ranges of lengths and labels, but does not read the tokens
    /// themselves, which are most of the data: see [`Self::checked`].
    ///
    /// Errors: 66 when there are none; 65 when they are incomplete or damaged.
    pub fn open(folder: &Path, name: SplitName) -> Result<Self> {
        let path = store_path(folder, name);
        let kind = if path.join(SOURCE).is_file() { MADE } else { FILE };
        let store = Store::<Description, Counts>::open(kind, &path)?;
        let (layout, description) = (&store.index().layout, &store.index().description);
        let arrays = Arrays::new(description);
        let planned = (&arrays.all, description.records, name);
        let is_planned = (&layout.arrays, layout.records, description.split) == planned;
        let images = open_images(&description.images, folder)?;
        let set = Self { folder: folder.into(), store, arrays, images };
        if !is_planned {
            return Err(set.damaged("its arrays are not those of this version"));
        }
        let (info, kind) = (set.info(), set.info().kind());
        if !set.is_id(&info.special.padding) {
            return Err(set.damaged("the padding token is not in the vocabulary"));
        }
        if info.vectors_only && info.vector == 0
            || set.counts().any(|counts| counts.vector.len() != info.vector)
        {
            return Err(set.damaged("the statistics of its vectors are missing"));
        }
        for i in 0..set.len() {
            let length = set.ids(i).len();
            let fits = match info.answers {
                false => (length > 0 || info.vectors_only) && length <= info.max_length,
                true => fits(length, set.context_tokens(i), info),
            };
            if !fits || set.of_text(i).0.len() > info.max_length {
                return Err(set.damaged(&format!("the tokens of record {i} are damaged")));
            }
            if !kind.has_label(set.label(i)) {
                return Err(set.damaged(&format!("the label of record {i} is damaged")));
            }
        }
        Ok(set)
    }

    pub(super) fn damaged(&self, what: &str) -> Error {
        let path = store_path(&self.folder, self.name());
        let made_by = if self.info().embedding.is_some() { MADE.made_by } else { FILE.made_by };
        Error::data(format!("{}: {what}; run {made_by} again", path.display()))
    }

    fn is_id(&self, id: &i32) -> bool {
        usize::try_from(*id).is_ok_and(|id| id < self.info().vocabulary)
    }

    /// Returns the tokens of record `i` after checking that ids and offsets are in range. Panics when `i` is out of
    /// range. Errors: 65 when the tokens were damaged after they were written.
    pub fn checked(&self, i: usize) -> Result<RecordTokens<'_>> {
        let record = self.record(i);
        let offsets_fit = record.offsets.iter().all(|[a, b]| 0 <= *a && a <= b);
        let mut ids = record.ids.iter().chain(record.of_text.0);
        match offsets_fit && ids.all(|id| self.is_id(id)) {
            true => Ok(record),
            false => Err(self.damaged(&format!("the tokens of record {i} are damaged"))),
        }
    }

    /// Number of segments of all tokens.
    pub fn segments(&self) -> usize {
        self.counts().map(|counts| counts.segments).max().unwrap_or(0)
    }

    /// The split.
    pub fn name(&self) -> SplitName {
        self.store.index().description.split
    }

    /// Number of records.
    pub fn len(&self) -> usize {
        self.store.index().layout.records
    }

    /// Whether there are no records.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The settings that the tokens were made with.
    pub fn info(&self) -> &TokenInfo {
        &self.store.index().description.info
    }

    /// The ids of record `i`, with special tokens, without padding. Panics when out of range.
    pub fn ids(&self, i: usize) -> &[i32] {
        bytemuck::cast_slice(self.store.bytes(self.arrays.ids, i))
    }

    /// The segment of each token of record `i`. Panics when out of range.
    pub fn types(&self, i: usize) -> &[u8] {
        self.store.bytes(self.arrays.types, i)
    }

    /// The character range of each token of record `i` in its text or context, with an exclusive end; [0, 0] for
    /// special tokens. Panics when out of range.
    pub fn offsets(&self, i: usize) -> &[[i32; 2]] {
        bytemuck::cast_slice(self.store.bytes(self.arrays.offsets, i))
    }

    /// The label of record `i`: one class; 0 or 1 for each label if multi-label; empty without labels. Panics when out
    /// of range.
    pub fn label(&self, i: usize) -> &[i32] {
        let label = self.arrays.label;
        label.map_or(&[], |label| bytemuck::cast_slice(self.store.bytes(label, i)))
    }

    /// The vector of record `i`, [D], if records have one. Panics when out of range.
    pub fn vector(&self, i: usize) -> Option<&[f32]> {
        Some(bytemuck::cast_slice(self.store.bytes(self.arrays.vector?, i)))
    }

    /// Mean and deviation of the vectors, by dimension; None without vectors. Reads no vector: the index holds the
    /// moments of each shard.
    pub fn vector_statistics(&self) -> Option<VectorStatistics> {
        VectorStatistics::merged(self.counts().map(|counts| counts.vector.as_slice()))
    }

    /// The range of the context among the tokens of record `i`; a question and special tokens surround it. Panics when
    /// out of range.
    pub fn context_tokens(&self, i: usize) -> Range<usize> {
        let found: Option<&[i32]> =
            self.arrays.context.map(|array| bytemuck::cast_slice(self.store.bytes(array, i)));
        found.map_or(0..0, |range| range[0].max(0) as usize..range[1].max(0) as usize)
    }

    /// The character range of the answer to record `i` in its context, with an exclusive end; None if there is no
    /// answer. Panics when out of range.
    pub fn answer(&self, i: usize) -> Option<[usize; 2]> {
        answer(self.store.bytes(self.arrays.answer?, i))
    }

    /// Ids and segments of the labelled text of record `i`, for records with a context. Panics when out of range.
    pub fn of_text(&self, i: usize) -> (&[i32], &[u8]) {
        let Some([ids, types]) = self.arrays.of_text else { return (&[], &[]) };
        (bytemuck::cast_slice(self.store.bytes(ids, i)), self.store.bytes(types, i))
    }

    /// Number of tokens of the labelled text of record `i`. Panics when out of range.
    pub fn text_len(&self, i: usize) -> usize {
        if self.info().is_joint() { self.of_text(i).0.len() } else { self.ids(i).len() }
    }

    /// The texts of record `i`; only pairs have a second one. Panics when out of range.
    pub fn texts(&self, i: usize) -> [Option<&str>; 2] {
        [self.text_of(0, i), self.text_of(1, i)]
    }

    /// Whether records may have groups.
    pub fn has_groups(&self) -> bool {
        self.arrays.texts[cell::GROUP].is_some()
    }

    /// The group of record `i`, if it has one. Panics when out of range.
    pub fn group(&self, i: usize) -> Option<&str> {
        self.text_of(cell::GROUP, i).filter(|name| !is_no_group(name))
    }

    /// The id of record `i`, if ids were given. Panics when out of range.
    pub fn id(&self, i: usize) -> Option<&str> {
        self.text_of(3, i)
    }

    /// The context of record `i`, if records have one. Panics when out of range.
    pub fn context(&self, i: usize) -> Option<&str> {
        self.text_of(cell::CONTEXT, i)
    }

    /// The criterion of record `i`, if one was given. Panics when out of range.
    pub fn criterion(&self, i: usize) -> Option<&str> {
        self.text_of(cell::CRITERION, i)
    }

    /// All texts of record `i`, one per line. Panics when out of range.
    pub fn all_texts(&self, i: usize) -> String {
        let [text, text2] = self.texts(i);
        [text, text2, self.context(i)].into_iter().flatten().collect::<Vec<_>>().join("\n")
    }

    fn text_of(&self, kind: usize, i: usize) -> Option<&str> {
        let bytes = self.store.bytes(self.arrays.texts[kind]?, i);
        // Invalid UTF-8 occurs only in a store that was damaged after it was hashed.
        Some(std::str::from_utf8(bytes).unwrap_or("\u{fffd}"))
    }

    /// The number of the store of texts of record `i`, and that of the record in it.
    pub(super) fn source(&self, i: usize) -> [u64; 2] {
        let bytes = self.store.bytes(self.arrays.source, i);
        let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|k| bytes[at + k]));
        [number(0), number(8)]
    }

    /// Number of records that were truncated to `max_length` tokens.
    pub fn truncated(&self) -> usize {
        self.counts().map(|counts| counts.truncated).sum()
    }

    /// Number of tokens of all records, and how many of them stand for words outside the vocabulary.
    pub fn token_counts(&self) -> [usize; 2] {
        let [tokens, unknown] = [|c: &Counts| c.tokens, |c: &Counts| c.unknown];
        [self.counts().map(tokens).sum(), self.counts().map(unknown).sum()]
    }

    /// Number of turns of conversations that are rendered in another way when the conversation goes on.
    pub fn changed_turns(&self) -> usize {
        self.counts().map(|counts| counts.changed_turns).sum()
    }

    /// Number of texts of which the encoder of the vectors read only the beginning.
    pub fn cut(&self) -> usize {
        self.counts().map(|counts| counts.cut).sum()
    }

    /// Reads all files and compares them with their hashes. Errors: 65, naming all that differ.
    pub fn verify(&self) -> Result<()> {
        Error::all(&verify_all(&self.input_files()))
    }

    fn counts(&self) -> impl Iterator<Item = &Counts> {
        self.store.index().summaries()
    }

    /// The folder of the tokens, which also contains the tokenizer.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// BLAKE3 hash of the manifest.
    pub fn manifest_hash(&self) -> &str {
        &self.store.index().description.manifest
    }

    /// BLAKE3 hash of the index, which identifies these tokens.
    pub fn hash(&self) -> &str {
        self.store.hash()
    }

    /// Returns the files that the set is read from, with their recorded hashes.
    pub fn input_files(&self) -> Vec<InputFile> {
        let mut files = self.store.input_files();
        files.extend(self.images.iter().flatten().flat_map(ImageStore::input_files));
        files.push(InputFile {
            path: self.folder.join("tokenizer.json"),
            blake3: self.info().tokenizer_hash.clone(),
            recorded_in: store_path(&self.folder, self.name())
                .join("index.json")
                .display()
                .to_string(),
            remedy: "run `ds-prep tokenize` again".into(),
        });
        files
    }

    /// Returns the records, identified by the content of their stores of texts.
    pub fn provenance(&self) -> Vec<Provenance> {
        let stores = &self.store.index().description.stores;
        let mut found: Vec<Provenance> = stores
            .iter()
            .map(|hash| Provenance { blake3: hash.clone(), samples: Vec::new() })
            .collect();
        for i in 0..self.len() {
            let [store, record] = self.source(i);
            if let Some(store) = found.get_mut(store as usize) {
                store.samples.push(record as usize);
            }
        }
        found.retain(|store| !store.samples.is_empty());
        found
    }
}

/// Returns the path of the store of a split.
pub(super) fn store_path(folder: &Path, name: SplitName) -> PathBuf {
    folder.join(name.to_string())
}
