//! A store of texts: the records of the user's files with their labels, groups and ids.

use super::chunks::Chunks;
use super::columns::{Columns, cell};
use super::image_store::{ImageRef, ImageStore};
use super::kind::{TextKind, is_zero};
use super::remarks::is_no_group;
use super::similar::near_groups;
use super::store_check::check_store;
use crate::inputs::InputFile;
use crate::seal::SealedFile;
use crate::split::check::CheckReport;
use crate::split::{SameGroup, Source};
use crate::store::{Content, RecordArray, RecordStore, SourceFile, Store, StoreLayout, locate};
use serde::{Deserialize, Serialize};
use std::path::Path;
use tensor::FileDtype;
use unix::{Error, Result};

pub(super) const FILE: SealedFile = SealedFile {
    format: "longhaul-texts",
    version: 1,
    made_by: "ds-prep import",
    max_bytes: 64 << 20,
};

/// Description of a store of texts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    /// The column settings of the import.
    pub columns: Columns,
    /// The labels, in the order of the classes.
    pub labels: Vec<String>,
    /// Rows that were dropped because of their label.
    pub dropped: usize,
    /// The files, in order.
    pub files: Vec<SourceFile>,
    /// Length of the vectors; 0 without.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub vector: usize,
    /// The files of the vectors, and of their ids.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub vectors: Vec<SourceFile>,
    /// How long texts were cut.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chunks: Option<Chunks>,
    /// BLAKE3 hash of the index of the images, if conversations have any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub images: Option<String>,
}

/// The arrays of a store of texts, ends first, then numbers, then bytes.
#[derive(Clone, Debug, Default)]
pub(super) struct Arrays {
    /// The arrays.
    pub all: Vec<RecordArray>,
    /// The index in `all` of each array of [`RAGGED`], if the store has it.
    pub ragged: [Option<usize>; RAGGED.len()],
    /// Index of the array of line numbers.
    pub line: usize,
    /// Index of the array of labels.
    pub label: Option<usize>,
    /// Index of the array of answers.
    pub answer: Option<usize>,
    /// Index of the array of vectors.
    pub vector: Option<usize>,
    /// Indices of the arrays of images, see [`ImageRef`], and of what they are called, one on each line.
    pub images: Option<[usize; 2]>,
}

/// Names of the texts of a record, which are the first cells of a row.
pub(super) const RAGGED: [&str; 6] = ["text", "text2", "group", "id", "context", "criterion"];
/// The answer of a record without one.
pub(super) const NO_ANSWER: [i32; 2] = [-1, -1];

impl Arrays {
    pub fn new(description: &Description) -> Self {
        let mut has = description.columns.names().map(|name| name.is_some());
        has[cell::GROUP] = description.has_groups();
        has[0] |= description.columns.is_conversation();
        has[1] = description.columns.text2.is_some();
        let mut found = Self::default();
        let names = RAGGED.into_iter().zip(has);
        let names: Vec<(usize, &str)> = names
            .enumerate()
            .filter(|(_, (_, has))| *has)
            .map(|(k, (name, _))| (k, name))
            .collect();
        found.all.extend(names.iter().map(|(_, name)| RecordArray::ends(&format!("{name}.ends"))));
        let has_images = description.images.is_some();
        let of_images = ["images", "image_names"];
        if has_images {
            found.all.extend(of_images.map(|name| RecordArray::ends(&format!("{name}.ends"))));
        }
        found.line = found.all.len();
        found.all.push(RecordArray::fixed("line", FileDtype::U64, &[]));
        let places = found.all.len();
        if has_images {
            let ends = names.len();
            found.all.push(RecordArray::ragged(of_images[0], FileDtype::U64, &[2], ends));
        }
        let label = description.kind().label_len();
        if label > 0 {
            found.label = Some(found.all.len());
            found.all.push(RecordArray::fixed("label", FileDtype::I32, &[label]));
        }
        if description.kind().answers {
            found.answer = Some(found.all.len());
            found.all.push(RecordArray::fixed("answer", FileDtype::I32, &[2]));
        }
        if description.vector > 0 {
            found.vector = Some(found.all.len());
            let shape = [description.vector];
            found.all.push(RecordArray::fixed("vector", FileDtype::F32, &shape));
        }
        let ends_of_names = names.len() + 1;
        for (ends, (kind, name)) in names.into_iter().enumerate() {
            found.ragged[kind] = Some(found.all.len());
            found.all.push(RecordArray::ragged(name, FileDtype::U8, &[], ends));
        }
        if has_images {
            found.images = Some([places, found.all.len()]);
            found.all.push(RecordArray::ragged(of_images[1], FileDtype::U8, &[], ends_of_names));
        }
        found
    }
}

impl Description {
    /// Returns the properties that all stores of a manifest must share.
    pub fn kind(&self) -> TextKind {
        TextKind {
            labels: self.labels.clone(),
            multi_label: self.columns.multi_label.is_some(),
            conversations: self.columns.is_conversation(),
            pairs: self.columns.text2.is_some(),
            answers: self.columns.context.is_some(),
            vector: self.vector,
            vectors_only: self.columns.names()[0].is_none()
                && self.columns.context.is_none()
                && !self.columns.is_conversation(),
        }
    }

    /// Whether records may have groups: those of a column, or the document of a chunk.
    pub fn has_groups(&self) -> bool {
        self.columns.group.is_some() || self.chunks.is_some()
    }

    pub(super) fn layout(&self, shard_records: usize) -> StoreLayout {
        let records = self.files.iter().map(|file| file.records).sum();
        StoreLayout { arrays: Arrays::new(self).all, records, shard_records }
    }
}

/// Decodes a stored answer.
pub(super) fn answer(bytes: &[u8]) -> Option<[usize; 2]> {
    let found: &[i32] = bytemuck::cast_slice(bytes);
    let [start, end] = [found[0], found[1]].map(usize::try_from);
    Some([start.ok()?, end.ok()?])
}

/// A store of texts, mapped into memory. It can be shared between threads.
#[derive(Debug)]
pub struct TextStore {
    store: Store<Description, ()>,
    arrays: Arrays,
    kind: TextKind,
    images: Option<ImageStore>,
}

impl TextStore {
    /// Whether `path` is the folder of a store of texts, complete or not.
    pub fn is_store(path: &Path) -> bool {
        FILE.is_format_of(&path.join("index.json"))
    }

    /// The description of the store.
    pub fn description(&self) -> &Description {
        &self.store.index().description
    }

    /// The labels, and whether records have pairs of texts, several labels or answers.
    pub fn kind(&self) -> &TextKind {
        &self.kind
    }

    /// The text of record `i` and the second one, if records have two. Panics when out of range.
    pub fn texts(&self, i: usize) -> [Option<&str>; 2] {
        [self.ragged(0, i), self.ragged(1, i)]
    }

    /// The group of record `i`, if it has one. Panics when out of range.
    pub fn group_name(&self, i: usize) -> Option<&str> {
        self.ragged(cell::GROUP, i).filter(|name| !is_no_group(name))
    }

    /// The id of record `i`, if ids were given. Panics when out of range.
    pub fn id(&self, i: usize) -> Option<&str> {
        self.ragged(3, i)
    }

    /// The label of record `i`, see [`TextKind::label_len`]. Panics when out of range.
    pub fn label(&self, i: usize) -> &[i32] {
        self.arrays.label.map_or(&[], |label| bytemuck::cast_slice(self.store.bytes(label, i)))
    }

    /// The vector of record `i`, [D], if records have one. Panics when out of range.
    pub fn vector(&self, i: usize) -> Option<&[f32]> {
        Some(bytemuck::cast_slice(self.store.bytes(self.arrays.vector?, i)))
    }

    /// The context of record `i`, if records have one. Panics when out of range.
    pub fn context(&self, i: usize) -> Option<&str> {
        self.ragged(cell::CONTEXT, i)
    }

    /// The criterion of record `i`, if one was given. Panics when out of range.
    pub fn criterion(&self, i: usize) -> Option<&str> {
        self.ragged(cell::CRITERION, i)
    }

    /// All texts of record `i`, one per line. Panics when out of range.
    pub fn all_texts(&self, i: usize) -> String {
        let [text, text2] = self.texts(i);
        [text, text2, self.context(i)].into_iter().flatten().collect::<Vec<_>>().join("\n")
    }

    /// The character range of the answer to record `i` in its context, with an exclusive end; None if there is no
    /// answer. Panics when out of range.
    pub fn answer(&self, i: usize) -> Option<[usize; 2]> {
        answer(self.store.bytes(self.arrays.answer?, i))
    }

    /// The images of record `i`, in the order of its messages. Panics when out of range.
    pub fn images(&self, i: usize) -> Vec<ImageRef> {
        let [places, _] = self.arrays.images.unwrap_or_default();
        self.arrays.images.map_or(Vec::new(), |_| ImageRef::all_of(self.store.bytes(places, i)))
    }

    /// What the images of record `i` are called: their files as the record names them, or their numbers. Panics when out of range.
    pub fn image_names(&self, i: usize) -> Vec<&str> {
        let Some([_, names]) = self.arrays.images else { return Vec::new() };
        // Invalid UTF-8 occurs only in a store that was damaged after it was hashed.
        std::str::from_utf8(self.store.bytes(names, i)).unwrap_or_default().lines().collect()
    }

    /// The images of all records.
    pub fn image_store(&self) -> Option<&ImageStore> {
        self.images.as_ref()
    }

    /// The line of its file on which record `i` begins, from 1. Panics when out of range.
    pub fn line(&self, i: usize) -> u64 {
        let bytes = self.store.bytes(self.arrays.line, i);
        u64::from_le_bytes(std::array::from_fn(|k| bytes[k]))
    }

    fn ragged(&self, kind: usize, i: usize) -> Option<&str> {
        let array = self.arrays.ragged[kind]?;
        // Invalid UTF-8 occurs only in a store that was damaged after it was hashed.
        Some(std::str::from_utf8(self.store.bytes(array, i)).unwrap_or("\u{fffd}"))
    }
}

impl Source for TextStore {
    type Content = TextKind;
    const HAS_DISTANCES: bool = true;

    fn open(folder: &Path) -> Result<Self> {
        let store = Store::<Description, ()>::open(FILE, folder)?;
        let (found, description) = (&store.index().layout, &store.index().description);
        let planned = description.layout(1);
        if (&found.arrays, found.records) != (&planned.arrays, planned.records) {
            let what =
                "index.json: its arrays are not those of this version; run ds-prep import again";
            return Err(Error::data(what).context(folder.display()));
        }
        let (arrays, kind) = (Arrays::new(description), description.kind());
        let images = description.images.as_ref().map(|hash| ImageStore::open(folder, hash));
        let images = images.transpose()?;
        Ok(Self { store, arrays, kind, images })
    }

    fn content(&self) -> TextKind {
        self.kind.clone()
    }

    fn path(&self) -> &Path {
        self.store.folder()
    }

    fn hash(&self) -> &str {
        self.store.hash()
    }

    fn len(&self) -> usize {
        self.store.index().layout.records
    }

    fn difference(&self, first: &Self) -> Option<String> {
        TextKind::difference_of(self, first)
    }

    fn group(&self, i: usize) -> blake3::Hash {
        self.group_name(i).map_or_else(|| self.input_hash(i), |name| blake3::hash(name.as_bytes()))
    }

    fn near_groups(stores: &[Self], distance: f64) -> SameGroup {
        near_groups(stores, 1.0 - distance)
    }

    fn stratum(&self, i: usize) -> blake3::Hash {
        let label = bytemuck::cast_slice(self.label(i));
        match self.kind.answers {
            false => blake3::hash(label),
            true => blake3::hash(&[label, &[u8::from(self.answer(i).is_some())]].concat()),
        }
    }
}

impl RecordStore for TextStore {
    fn input_files(&self) -> Vec<InputFile> {
        let images = self.images.iter().flat_map(ImageStore::input_files);
        self.store.input_files().into_iter().chain(images).collect()
    }

    /// Ignores case and white space. Of vectors alone, the input is the vector; with images, it is the images.
    fn input_hash(&self, i: usize) -> blake3::Hash {
        if let Some(vector) = self.vector(i).filter(|_| self.kind.vectors_only) {
            return blake3::hash(bytemuck::cast_slice(vector));
        }
        let mut hasher = blake3::Hasher::new();
        let images = self.images(i);
        if let Some(store) = self.images.as_ref().filter(|_| !images.is_empty()) {
            for own in images.iter().filter(|own| own.image < store.len()) {
                hasher.update(blake3::hash(store.bytes(own.image)).as_bytes());
                hasher.update(&own.page.to_le_bytes());
            }
            return hasher.finalize();
        }
        for text in self.texts(i).into_iter().chain([self.context(i)]).flatten() {
            for word in text.split_whitespace() {
                hasher.update(word.to_lowercase().as_bytes()).update(b" ");
            }
            hasher.update(b"\n");
        }
        hasher.finalize()
    }

    fn origin(&self, i: usize) -> (&Path, usize) {
        locate(&self.description().files, i).unwrap_or((self.path(), i))
    }

    fn check(&self, _limit: f32, report: &mut CheckReport) {
        check_store(self, report);
    }
}
