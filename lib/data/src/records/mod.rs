//! Records: pairs of an input and a target from the user's own arrays, for regression.
//!
//! `ds-prep import` copies them into a [`Records`] store, `ds-prep split` divides stores ([`RecordSplit`]), and
//! `ds-prep stats` computes the statistics of the training split ([`stats`]). All values of a store are finite.

pub mod import;
mod origin;
pub mod stats;

pub use import::{RecordPlan, import};
pub use origin::InputArray;
#[cfg(feature = "text")]
pub(crate) use origin::file_and_name;
pub use stats::RecordStats;

use crate::inputs::InputFile;
use crate::seal::SealedFile;
use crate::split::check::{CheckReport, ProblemKind};
use crate::split::{Source, Split, SplitSet};
use crate::store::{Content, RecordArray, RecordStore, SourceFile, Store, StoreLayout, locate};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::Path;
use tensor::FileDtype;
use unix::{Error, Result};

const FILE: SealedFile = SealedFile {
    format: "longhaul-records",
    version: 1,
    made_by: "ds-prep import",
    max_bytes: 64 << 20,
};

/// Indices of the arrays of a record in a store.
const INPUT: usize = 0;
const TARGET: usize = 1;
const GROUP: usize = 2;
const INPUT_HASH: usize = 3;

/// The shape of one side of a record, [grid.., channels]; a vector has no grid. Frames count as channels, the earliest
/// first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ValueShape {
    /// Points along each spatial axis, at most three.
    pub grid: Vec<usize>,
    /// Values per point.
    pub channels: usize,
}

impl ValueShape {
    /// Number of values.
    pub fn len(&self) -> usize {
        self.grid.iter().product::<usize>() * self.channels
    }

    /// Whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The grid; a vector has a single point.
    pub fn points(&self) -> Vec<usize> {
        if self.grid.is_empty() { vec![1] } else { self.grid.clone() }
    }

    /// Describes the position of the value at `index`: `point (2, 5), channel 1`, or `number 3` of a vector, counted
    /// from 0.
    pub fn place(&self, index: usize) -> String {
        if self.grid.is_empty() {
            return format!("number {index}");
        }
        let mut rest = index / self.channels;
        let mut point: Vec<String> = Vec::with_capacity(self.grid.len());
        for points in self.grid.iter().rev() {
            point.insert(0, (rest % points).to_string());
            rest /= points;
        }
        format!("point ({}), channel {}", point.join(", "), index % self.channels)
    }
}

/// Returns the refinement factor, the number of target points per input point along each axis; `None` for a target
/// without a grid.
///
/// The error says why the target does not fit.
pub fn refinement([input, target]: &[ValueShape; 2]) -> Result<Option<usize>, String> {
    if target.grid.is_empty() {
        return Ok(None);
    }
    let (from, to) = (input.points(), &target.grid);
    let factor = to[0] / from[0];
    let scaled: Vec<usize> = from.iter().map(|n| n * factor).collect();
    match factor > 0 && scaled == *to {
        true => Ok(Some(factor)),
        false => Err(format!(
            "targets on {to:?} points for inputs on {from:?}: the grid of the target must be that of the input, a whole \
             multiple of it, or none"
        )),
    }
}

/// Formats the shape as `64 x 64 points, 3 channels` or `10 numbers`.
impl fmt::Display for ValueShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let channels = self.channels;
        if self.grid.is_empty() {
            return write!(f, "{channels} numbers");
        }
        let grid: Vec<String> = self.grid.iter().map(usize::to_string).collect();
        write!(f, "{} points, {channels} channels", grid.join(" x "))
    }
}

/// Description of the records in a store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    /// Shape of an input.
    pub input: ValueShape,
    /// Shape of a target.
    pub target: ValueShape,
    /// The options of the import that determine the records.
    pub options: String,
    /// The input files, in order.
    pub files: Vec<SourceFile>,
    /// The target files and group files.
    pub others: Vec<SourceFile>,
}

impl Description {
    /// Returns the layout of the store; `shard` is the approximate size of a shard in bytes.
    fn layout(&self, shard: usize) -> StoreLayout {
        let side = |name: &str, side: &ValueShape| {
            let shape = [&side.grid[..], &[side.channels]].concat();
            RecordArray::fixed(name, FileDtype::F32, &shape)
        };
        let arrays = vec![
            side("input", &self.input),
            side("target", &self.target),
            RecordArray::fixed("group", FileDtype::U8, &[blake3::OUT_LEN]),
            RecordArray::fixed("input_hash", FileDtype::U8, &[blake3::OUT_LEN]),
        ];
        let bytes: usize = arrays.iter().map(RecordArray::bytes).sum();
        let records = self.files.iter().map(|file| file.records).sum();
        StoreLayout { arrays, records, shard_records: (shard / bytes.max(1)).max(1) }
    }
}

/// A store of records, mapped into memory. It can be shared between threads; reads copy nothing.
#[derive(Debug)]
pub struct Records(Store<Description, ()>);

impl Records {
    /// Whether `path` is the folder of a store of records, complete or not.
    pub fn is_store(path: &Path) -> bool {
        path.join("index.json").is_file()
    }

    /// The description of the records.
    pub fn description(&self) -> &Description {
        &self.0.index().description
    }

    /// The input of record `i`, [grid.., channels]. Panics when out of range.
    pub fn input(&self, i: usize) -> &[f32] {
        bytemuck::cast_slice(self.0.bytes(INPUT, i))
    }

    /// The target of record `i`, [grid.., channels]. Panics when out of range.
    pub fn target(&self, i: usize) -> &[f32] {
        bytemuck::cast_slice(self.0.bytes(TARGET, i))
    }

    fn hash_at(&self, array: usize, i: usize) -> blake3::Hash {
        let bytes = self.0.bytes(array, i);
        blake3::Hash::from_bytes(std::array::from_fn(|k| bytes[k]))
    }
}

/// A manifest of records.
pub type RecordSplit = Split<RecordShapes>;
/// The records of one split, across its stores.
pub type RecordSet = SplitSet<RecordShapes>;

/// The shapes of inputs and targets in a manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Pair", into = "Pair")]
pub struct RecordShapes(pub [ValueShape; 2]);

/// JSON representation of [`RecordShapes`] in a manifest.
#[derive(Serialize, Deserialize)]
struct Pair {
    input: ValueShape,
    target: ValueShape,
}

impl From<Pair> for RecordShapes {
    fn from(Pair { input, target }: Pair) -> Self {
        Self([input, target])
    }
}

impl From<RecordShapes> for Pair {
    fn from(RecordShapes([input, target]): RecordShapes) -> Self {
        Self { input, target }
    }
}

impl Content for RecordShapes {
    type Store = Records;
    const MANIFEST: SealedFile = SealedFile {
        format: "longhaul-record-split",
        version: 1,
        made_by: "ds-prep split",
        max_bytes: 256 << 20,
    };

    fn difference(&self, other: &Self, other_name: &str) -> String {
        let (Self([x, y]), Self([u, v])) = (self, other);
        format!("inputs have {x} and targets {y}, those of {other_name} have {u} and {v}")
    }
}

impl RecordSet {
    /// The shapes of inputs and targets.
    pub fn sides(&self) -> &[ValueShape; 2] {
        &self.content().0
    }

    /// The input of record `i`, [grid.., channels]. Panics when out of range.
    pub fn input(&self, i: usize) -> &[f32] {
        let (store, record) = self.locate(i);
        store.input(record)
    }

    /// The target of record `i`, [grid.., channels]. Panics when out of range.
    pub fn target(&self, i: usize) -> &[f32] {
        let (store, record) = self.locate(i);
        store.target(record)
    }
}

impl Source for Records {
    type Content = RecordShapes;

    fn open(folder: &Path) -> Result<Self> {
        let store = Self(Store::open(FILE, folder)?);
        let (found, planned) = (&store.0.index().layout, store.description().layout(1));
        if (&found.arrays, found.records) != (&planned.arrays, planned.records) {
            let what =
                "index.json: its arrays are not those of this version; run ds-prep import again";
            let error = Error::data(what);
            return Err(error.context(folder.display()));
        }
        Ok(store)
    }

    fn content(&self) -> RecordShapes {
        let Description { input, target, .. } = self.description();
        RecordShapes([input.clone(), target.clone()])
    }

    fn path(&self) -> &Path {
        self.0.folder()
    }

    fn hash(&self) -> &str {
        self.0.hash()
    }

    fn len(&self) -> usize {
        self.0.index().layout.records
    }

    fn difference(&self, first: &Self) -> Option<String> {
        RecordShapes::difference_of(self, first)
    }

    fn group(&self, i: usize) -> blake3::Hash {
        self.hash_at(GROUP, i)
    }
}

impl RecordStore for Records {
    fn input_files(&self) -> Vec<InputFile> {
        self.0.input_files()
    }

    fn input_hash(&self, i: usize) -> blake3::Hash {
        self.hash_at(INPUT_HASH, i)
    }

    fn origin(&self, i: usize) -> (&Path, usize) {
        let found = locate(&self.description().files, i);
        found.unwrap_or((self.path(), i))
    }

    fn check(&self, limit: f32, report: &mut CheckReport) {
        for i in 0..self.len() {
            let Description { input, target, .. } = self.description();
            for (name, side, values) in
                [("input", input, self.input(i)), ("target", target, self.target(i))]
            {
                let bad = values.iter().position(|value| !value.is_finite() || value.abs() > limit);
                let Some(at) = bad else { continue };
                let ((file, record), value) = (self.origin(i), values[at]);
                let (kind, why) = match value.is_finite() {
                    true => (ProblemKind::TooLarge, "larger than --limit; scale the numbers"),
                    false => (ProblemKind::NotFinite, "not finite; remove the record"),
                };
                let what = format!("its {name} is {value} at {}, {why}", side.place(at));
                report.add_record(kind, file, Some(record), what);
            }
        }
    }
}
