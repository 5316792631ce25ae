//! A store of texts: the records of the user's files with their labels, groups and ids.

use super::columns::{Columns, cell};
use super::remarks::{is_no_group, lacking};
use super::similar::near_groups;
use crate::inputs::InputFile;
use crate::seal::SealedFile;
use crate::split::check::{CheckReport, ProblemKind};
use crate::split::{SameGroup, Source, SplitSet};
use crate::store::{Content, RecordArray, RecordStore, SourceFile, Store, StoreLayout, locate};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
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
}

/// The properties that all stores of a manifest share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TextKind {
    /// The labels, in the order of the classes; none for texts without labels.
    pub labels: Vec<String>,
    /// Whether a record may have any number of labels.
    pub multi_label: bool,
    /// Whether a record has two texts.
    pub pairs: bool,
    /// Whether a record has a context in which an answer is to be found.
    #[serde(default)]
    pub answers: bool,
}

impl TextKind {
    /// Length of a record's label: one 0 or 1 per label for multi-label records, otherwise one class; 0 without labels.
    pub fn label_len(&self) -> usize {
        match self.multi_label {
            true => self.labels.len(),
            false => usize::from(!self.labels.is_empty()),
        }
    }

    /// Whether `label` is valid for a record of this kind.
    pub fn has_label(&self, label: &[i32]) -> bool {
        let classes = if self.multi_label { 2 } else { self.labels.len() };
        label.iter().all(|class| usize::try_from(*class).is_ok_and(|class| class < classes))
    }

    /// Returns the names of the labels of a record.
    pub fn names_of(&self, label: &[i32]) -> Vec<&str> {
        let named = |class: usize| self.labels.get(class).map_or("?", String::as_str);
        self.classes_of(label).map(named).collect()
    }

    /// Returns the classes of a record.
    pub fn classes_of<'a>(&self, label: &'a [i32]) -> impl Iterator<Item = usize> + use<'a> {
        let multi_label = self.multi_label;
        label.iter().enumerate().filter_map(move |(place, value)| match multi_label {
            true => (*value == 1).then_some(place),
            false => Some(usize::try_from(*value).unwrap_or(usize::MAX)),
        })
    }
}

impl Content for TextKind {
    type Store = TextStore;
    const MANIFEST: SealedFile = SealedFile {
        format: "longhaul-text-split",
        version: 1,
        made_by: "ds-prep split",
        max_bytes: 256 << 20,
    };

    fn difference(&self, other: &Self, other_name: &str) -> String {
        let text = |kind: &Self| {
            let texts = if kind.pairs { "pairs of texts" } else { "texts" };
            let multi = if kind.multi_label { "any of " } else { "" };
            let answers = if kind.answers { " and answers in contexts" } else { "" };
            let labels = match kind.labels.is_empty() {
                true => "no labels".into(),
                false => format!("{multi}the labels {}", kind.labels.join(", ")),
            };
            format!("{texts} with {labels}{answers}")
        };
        let same = |kind: &Self| (kind.pairs, kind.multi_label, kind.answers);
        let remedy = match same(self) == same(other) {
            true => "import both with the same `labels` in columns.yaml",
            false => "import both with the same columns",
        };
        format!("has {}, but {other_name} has {}; {remedy}", text(self), text(other))
    }

    fn remarks(sets: &[SplitSet<Self>; 3]) -> Vec<String> {
        let kind = sets[0].content();
        let counts = |set: &SplitSet<Self>| {
            let mut counts = vec![0; kind.labels.len()];
            for i in 0..set.len() {
                let (store, record) = set.locate(i);
                for class in kind.classes_of(store.label(record)) {
                    counts.get_mut(class).into_iter().for_each(|count| *count += 1);
                }
            }
            (set.name().to_string(), counts)
        };
        let mut found = lacking(&kind.labels, &sets.each_ref().map(counts));
        let stores = sets[0].stores();
        let grouped = stores.iter().filter(|store| store.description().columns.group.is_some());
        let (mut all, mut without) = (0, 0);
        for store in grouped {
            all += store.len();
            without += (0..store.len()).filter(|i| store.group_name(*i).is_none()).count();
        }
        if without > 0 {
            found.push(format!(
                "{without} of {all} records have no group; each of them is divided on its own, together with equal texts only"
            ));
        }
        found
    }
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
}

/// Names of the texts of a record, which are the first cells of a row.
pub(super) const RAGGED: [&str; 6] = ["text", "text2", "group", "id", "context", "criterion"];
/// The answer of a record without one.
pub(super) const NO_ANSWER: [i32; 2] = [-1, -1];

impl Arrays {
    pub fn new(description: &Description) -> Self {
        let has = description.columns.names().map(|name| name.is_some());
        let mut found = Self::default();
        let names = RAGGED.into_iter().zip(has);
        let names: Vec<(usize, &str)> = names
            .enumerate()
            .filter(|(_, (_, has))| *has)
            .map(|(k, (name, _))| (k, name))
            .collect();
        found.all.extend(names.iter().map(|(_, name)| RecordArray::ends(&format!("{name}.ends"))));
        found.line = found.all.len();
        found.all.push(RecordArray::fixed("line", FileDtype::U64, &[]));
        let label = description.kind().label_len();
        if label > 0 {
            found.label = Some(found.all.len());
            found.all.push(RecordArray::fixed("label", FileDtype::I32, &[label]));
        }
        if description.kind().answers {
            found.answer = Some(found.all.len());
            found.all.push(RecordArray::fixed("answer", FileDtype::I32, &[2]));
        }
        for (ends, (kind, name)) in names.into_iter().enumerate() {
            found.ragged[kind] = Some(found.all.len());
            found.all.push(RecordArray::ragged(name, FileDtype::U8, &[], ends));
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
            pairs: self.columns.text2.is_some(),
            answers: self.columns.context.is_some(),
        }
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
        Ok(Self { store, arrays, kind })
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
        self.store.input_files()
    }

    /// Ignores case and white space.
    fn input_hash(&self, i: usize) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new();
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
        let mut labels: HashMap<blake3::Hash, (&[i32], bool)> = HashMap::new();
        for i in 0..self.len() {
            let (file, record) = self.origin(i);
            let mut add = |kind: ProblemKind, what: String| {
                let what = format!("{what} (line {})", self.line(i));
                report.add_record(kind, file, Some(record), what);
            };
            let [text, text2] = self.texts(i);
            let texts = [("text", text), ("second text", text2), ("context", self.context(i))];
            for (name, text) in texts {
                if text.is_some_and(|text| text.trim().is_empty()) {
                    add(ProblemKind::EmptyText, format!("its {name} is empty; remove the record"));
                }
            }
            if !self.kind.has_label(self.label(i)) {
                add(ProblemKind::Label, "its label is not in the list; import it again".into());
            }
            let length = self.context(i).map_or(0, |context| context.chars().count());
            if self.answer(i).is_some_and(|[start, end]| start >= end || end > length) {
                add(ProblemKind::Label, "its answer is not in its context; import it again".into());
            }
            let first = labels.entry(self.input_hash(i)).or_insert((self.label(i), false));
            first.1 |= first.0 != self.label(i);
        }
        let differing = labels.values().filter(|(_, differ)| *differ).count();
        if differing > 0 {
            unix::note!(
                "{}: {differing} texts occur more than once with different labels",
                self.path().display()
            );
        }
    }
}
