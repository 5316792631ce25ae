//! The tokens of a split, mapped into memory.
//!
//! A folder of tokens has a store for each split, named after it, and the tokenizer as tokenizer.json.

use super::columns::cell;
use super::remarks::is_no_group;
use super::store::{RAGGED, TextKind, answer};
use super::tokenizer::SpecialTokens;
use super::windows::fits;
use crate::inputs::InputFile;
use crate::provenance::Provenance;
use crate::seal::SealedFile;
use crate::split::SplitName;
use crate::store::{RecordArray, Store, StoreLayout};
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::path::{Path, PathBuf};
use tensor::FileDtype;
use unix::{Error, Result};

pub(super) const FILE: SealedFile = SealedFile {
    format: "longhaul-tokens",
    version: 1,
    made_by: "ds-prep tokenize",
    max_bytes: 64 << 20,
};

/// What tokens were made with, and what models need to know of them.
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
    /// Number of ids of the tokenizer.
    pub vocabulary: usize,
    /// Its special tokens.
    pub special: SpecialTokens,
    /// Largest number of tokens of a text, and of a window of a context.
    pub max_length: usize,
    /// Tokens that neighbouring windows of a context share.
    #[serde(default)]
    pub stride: usize,
    /// BLAKE3 hash of tokenizer.json.
    pub tokenizer_hash: String,
}

impl TokenInfo {
    /// Its labels and number of texts.
    pub fn kind(&self) -> TextKind {
        let Self { labels, multi_label, pairs, answers, .. } = self;
        let (labels, multi_label, pairs, answers) =
            (labels.clone(), *multi_label, *pairs, *answers);
        TextKind { labels, multi_label, pairs, answers }
    }

    /// Whether records have both a text with a label, and a context with an answer.
    pub fn is_joint(&self) -> bool {
        self.answers && !self.labels.is_empty()
    }
}

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
    /// Whether records say what they are about.
    #[serde(default)]
    pub criteria: bool,
    pub records: usize,
}

/// What was counted in a shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Counts {
    /// Records of which tokens were left out.
    pub truncated: usize,
    /// Tokens of all records.
    pub tokens: usize,
    /// Those that stand for words which the vocabulary cannot express.
    pub unknown: usize,
}

/// The numbers of the arrays of a store of tokens.
#[derive(Clone, Debug)]
pub(super) struct Arrays {
    pub all: Vec<RecordArray>,
    pub ids: usize,
    pub offsets: usize,
    pub label: Option<usize>,
    pub source: usize,
    pub types: usize,
    /// The tokens of the context within those of the record, and the characters of the answer within the context.
    pub context: Option<usize>,
    pub answer: Option<usize>,
    /// Ids and segments of the text with the label, of a record that has a context as well.
    pub of_text: Option<[usize; 2]>,
    /// Text, text2, group, id, context and criterion.
    pub texts: [Option<usize>; RAGGED.len()],
}

impl Arrays {
    pub fn new(description: &Description) -> Self {
        let Description { info, groups, ids, questions, criteria, .. } = description;
        let has_text = !info.answers || info.is_joint() || *questions;
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
        let source = add(&mut all, RecordArray::fixed("source", FileDtype::U64, &[2]));
        let token_ids = add(&mut all, RecordArray::ragged("ids", FileDtype::I32, &[], 0));
        let offsets = add(&mut all, RecordArray::ragged("offsets", FileDtype::I32, &[2], 0));
        let length = info.kind().label_len();
        let label = RecordArray::fixed("label", FileDtype::I32, &[length]);
        let label = (length > 0).then(|| add(&mut all, label));
        // In the order of the sizes of their elements, so that all are aligned.
        let pair = |name| RecordArray::fixed(name, FileDtype::I32, &[2]);
        let context = info.answers.then(|| add(&mut all, pair("context_tokens")));
        let answer = info.answers.then(|| add(&mut all, pair("answer")));
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
        Self { all, ids: token_ids, offsets, label, source, types, context, answer, of_text, texts }
    }

    pub fn layout(&self, records: usize, shard_records: usize) -> StoreLayout {
        StoreLayout { arrays: self.all.clone(), records, shard_records }
    }
}

/// The tokens of one split. It can be shared between threads; reads copy nothing.
#[derive(Debug)]
pub struct TokenSet {
    folder: PathBuf,
    store: Store<Description, Counts>,
    arrays: Arrays,
}

impl TokenSet {
    /// Whether `path` is a folder of tokens.
    pub fn is_at(path: &Path) -> bool {
        SplitName::ALL.into_iter().any(|name| Self::has_split(path, name))
    }

    /// Whether it has tokens of this split, complete or not.
    pub fn has_split(path: &Path, name: SplitName) -> bool {
        FILE.is_format_of(&store_path(path, name).join("index.json"))
    }

    /// Opens the tokens of a split in `folder`. Ids and labels are in range afterwards.
    ///
    /// Errors: 66 when there are none; 65 when they are incomplete or damaged.
    pub fn open(folder: &Path, name: SplitName) -> Result<Self> {
        let path = store_path(folder, name);
        let store = Store::<Description, Counts>::open(FILE, &path)?;
        let (layout, description) = (&store.index().layout, &store.index().description);
        let arrays = Arrays::new(description);
        let damaged = |what: &str| {
            Error::data(format!("{}: {what}; run ds-prep tokenize again", path.display()))
        };
        let planned = (&arrays.all, description.records, name);
        if (&layout.arrays, layout.records, description.split) != planned {
            return Err(damaged("its arrays are not those of this version"));
        }
        let set = Self { folder: folder.into(), store, arrays };
        let (info, kind) = (set.info(), set.info().kind());
        let vocabulary = i32::try_from(info.vocabulary).unwrap_or(i32::MAX);
        let is_id = |id: &i32| (0..vocabulary).contains(id);
        if !is_id(&info.special.padding) {
            return Err(damaged("the padding token is not in the vocabulary"));
        }
        for i in 0..set.len() {
            let (ids, length) = (set.ids(i), set.ids(i).len());
            let offsets_fit = set.offsets(i).iter().all(|[a, b]| 0 <= *a && a <= b);
            let length_fits = match info.answers {
                false => length > 0 && length <= info.max_length,
                true => fits(length, set.context_tokens(i), info),
            };
            let of_text = set.of_text(i).0;
            let text_fits = of_text.len() <= info.max_length && of_text.iter().all(is_id);
            if !length_fits || !ids.iter().all(is_id) || !offsets_fit || !text_fits {
                return Err(damaged(&format!("the tokens of record {i} are damaged")));
            }
            if !kind.has_label(set.label(i)) {
                return Err(damaged(&format!("the label of record {i} is damaged")));
            }
        }
        Ok(set)
    }

    /// The split.
    pub fn name(&self) -> SplitName {
        self.store.index().description.split
    }

    /// Number of records.
    pub fn len(&self) -> usize {
        self.store.index().layout.records
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What they were made with.
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

    /// The characters of each token of record `i` in its text or context: the first, and one after the last; 0 and 0 for special
    /// tokens. Panics when out of range.
    pub fn offsets(&self, i: usize) -> &[[i32; 2]] {
        bytemuck::cast_slice(self.store.bytes(self.arrays.offsets, i))
    }

    /// The label of record `i`: one class; or 0 or 1 for each label; or nothing without labels. Panics when out of range.
    pub fn label(&self, i: usize) -> &[i32] {
        let label = self.arrays.label;
        label.map_or(&[], |label| bytemuck::cast_slice(self.store.bytes(label, i)))
    }

    /// Where the tokens of the context of record `i` are among its tokens; before and after them are a question and special
    /// tokens. Panics when out of range.
    pub fn context_tokens(&self, i: usize) -> Range<usize> {
        let found: Option<&[i32]> =
            self.arrays.context.map(|array| bytemuck::cast_slice(self.store.bytes(array, i)));
        found.map_or(0..0, |range| range[0].max(0) as usize..range[1].max(0) as usize)
    }

    /// The first character of the answer to record `i` in its context, and the one after the last; None if there is no
    /// answer. Panics when out of range.
    pub fn answer(&self, i: usize) -> Option<[usize; 2]> {
        answer(self.store.bytes(self.arrays.answer?, i))
    }

    /// Ids and segments of the text of record `i` that has the label, of records with a context. Panics when out of range.
    pub fn of_text(&self, i: usize) -> (&[i32], &[u8]) {
        let Some([ids, types]) = self.arrays.of_text else { return (&[], &[]) };
        (bytemuck::cast_slice(self.store.bytes(ids, i)), self.store.bytes(types, i))
    }

    /// Number of tokens of the text of record `i` that has the label. Panics when out of range.
    pub fn text_len(&self, i: usize) -> usize {
        if self.info().is_joint() { self.of_text(i).0.len() } else { self.ids(i).len() }
    }

    /// The texts of record `i`; the second one only of pairs. Panics when out of range.
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

    /// What record `i` is about, if that was given. Panics when out of range.
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
        // Only a store that was damaged after its hashes were made is not UTF-8.
        Some(std::str::from_utf8(bytes).unwrap_or("\u{fffd}"))
    }

    /// Records of which tokens were left out because they are longer than `max_length`.
    pub fn truncated(&self) -> usize {
        self.counts().map(|counts| counts.truncated).sum()
    }

    /// Tokens of all records, and how many of them stand for words which the vocabulary cannot express.
    pub fn token_counts(&self) -> [usize; 2] {
        let [tokens, unknown] = [|c: &Counts| c.tokens, |c: &Counts| c.unknown];
        [self.counts().map(tokens).sum(), self.counts().map(unknown).sum()]
    }

    fn counts(&self) -> impl Iterator<Item = &Counts> {
        self.store.index().summaries()
    }

    /// The folder of the tokens, which has the tokenizer.
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

    /// The files that the set is read from, with their recorded hashes.
    pub fn input_files(&self) -> Vec<InputFile> {
        let mut files = self.store.input_files();
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

    /// The records, identified by the content of their stores of texts.
    pub fn provenance(&self) -> Vec<Provenance> {
        let stores = &self.store.index().description.stores;
        let mut found: Vec<Provenance> = stores
            .iter()
            .map(|hash| Provenance { blake3: hash.clone(), samples: Vec::new() })
            .collect();
        for i in 0..self.len() {
            let bytes = self.store.bytes(self.arrays.source, i);
            let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|k| bytes[at + k]));
            if let Some(store) = found.get_mut(number(0) as usize) {
                store.samples.push(number(8) as usize);
            }
        }
        found.retain(|store| !store.samples.is_empty());
        found
    }
}

/// The store of a split.
pub(super) fn store_path(folder: &Path, name: SplitName) -> PathBuf {
    folder.join(name.to_string())
}
