//! A store of records in shards: a folder of safetensors files and `index.json`. It can be built over several attempts,
//! and is mapped into memory for reading.
//!
//! All records have the same named arrays. A shard holds each array as [n, shape…] for n records, with the first array
//! aligned to 64 bytes; record i of the store is record i mod `shard_records` of its shard. A ragged array, whose
//! number of items varies by record, is stored as [items of all records, shape…]. The index describes the arrays and
//! the origin of the records, and lists size, BLAKE3 hash and a summary of each shard. It is rewritten after every
//! shard.

pub mod check;
mod reader;
mod split;
mod writer;

pub use reader::Store;
pub use split::{StoreEntry, Stores};
pub use writer::{FillCounts, Ragged, Writer};

use crate::inputs::{InputFile, verify_all};
use crate::seal::SealedFile;
use crate::split::check::CheckReport;
use crate::split::{Source, SplitSet};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use tensor::FileDtype;
use unix::{Error, Result};

/// The properties that all stores of a manifest share; part of the manifest.
pub trait Content: Clone + fmt::Debug + PartialEq + Serialize + DeserializeOwned {
    /// The type of the stores with this content.
    type Store: RecordStore + Source<Content = Self>;
    /// File format of the manifests of these stores.
    const MANIFEST: SealedFile;

    /// Describes how this content differs from the content of the store `other_name`.
    fn difference(&self, other: &Self, other_name: &str) -> String;

    /// Describes how the content of `store` differs from the content of `first`.
    fn difference_of(store: &Self::Store, first: &Self::Store) -> Option<String> {
        let [own, expected] = [store, first].map(Source::content);
        let name = first.path().display();
        (own != expected).then(|| own.difference(&expected, &name.to_string()))
    }

    /// Returns remarks on a manifest that are not errors, given its three splits.
    fn remarks(_sets: &[SplitSet<Self>; 3]) -> Vec<String> {
        Vec::new()
    }
}

/// A store of records that can be divided into splits. It is identified by the hash of its index.
pub trait RecordStore: Source {
    /// The files of the store with their recorded hashes.
    fn input_files(&self) -> Vec<InputFile>;
    /// Reads every shard and compares it with its hash. Errors: 65, naming all damaged shards.
    fn verify(&self) -> Result<()> {
        Error::all(&verify_all(&self.input_files()))
    }
    /// Returns the hash of the input of record `i`, which is equal for equal inputs.
    fn input_hash(&self, i: usize) -> blake3::Hash;
    /// Returns the file that record `i` came from, and the record's index in it.
    fn origin(&self, i: usize) -> (&Path, usize);
    /// Reports every problem in its records, including values that exceed `limit`.
    fn check(&self, limit: f32, report: &mut CheckReport);
}

/// An array that every record has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordArray {
    /// Its name.
    pub name: String,
    /// Its dtype.
    pub dtype: FileDtype,
    /// Shape of the array in one record, or of one item of a ragged array.
    pub shape: Vec<usize>,
    /// For a ragged array, the index of another array that holds its ends: one u64 per record, the number of items in
    /// the shard up to the end of that record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends: Option<usize>,
}

impl RecordArray {
    /// Describes an array of this shape in every record.
    pub fn fixed(name: &str, dtype: FileDtype, shape: &[usize]) -> Self {
        Self { name: name.into(), dtype, shape: shape.to_vec(), ends: None }
    }

    /// Describes a ragged array with items of this shape, whose ends are in array number `ends`.
    pub fn ragged(name: &str, dtype: FileDtype, shape: &[usize], ends: usize) -> Self {
        Self { ends: Some(ends), ..Self::fixed(name, dtype, shape) }
    }

    /// Describes an array of ends, to which ragged arrays refer.
    pub fn ends(name: &str) -> Self {
        Self::fixed(name, FileDtype::U64, &[])
    }

    /// Returns the size in bytes of the array in one record, or of one item of a ragged array.
    pub fn bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.bytes()
    }
}

/// The layout of a store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreLayout {
    /// The arrays of a record.
    pub arrays: Vec<RecordArray>,
    /// Total number of records.
    pub records: usize,
    /// Records per shard; the last shard may have fewer.
    pub shard_records: usize,
}

impl StoreLayout {
    /// Returns the size in bytes of all arrays, with one item of a ragged array per record; `None` when it overflows or
    /// when a dimension is 0.
    fn bytes(&self) -> Option<usize> {
        let of_array = |array: &RecordArray| {
            let sizes = [array.dtype.bytes(), self.records.max(1), self.shard_records];
            let mut sizes = sizes.into_iter().chain(array.shape.iter().copied());
            sizes.try_fold(1usize, |all, n| all.checked_mul(n)).filter(|all| *all > 0)
        };
        self.arrays.iter().try_fold(0usize, |sum, array| {
            of_array(array)?;
            sum.checked_add(array.bytes() * self.records)
        })
    }

    /// Whether every ragged array refers to a valid array of ends.
    fn has_ends(&self) -> bool {
        self.arrays.iter().filter_map(|array| array.ends).all(|ends| {
            let array = self.arrays.get(ends);
            array.is_some_and(|array| *array == RecordArray::ends(&array.name))
        })
    }

    /// Returns the range of records in a shard.
    fn records_of(&self, shard: usize) -> Range<usize> {
        let first = shard * self.shard_records;
        first..self.records.min(first.saturating_add(self.shard_records))
    }
}

/// A file that records were read from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceFile {
    /// Its path when it was read.
    pub path: PathBuf,
    /// BLAKE3 hash of its content.
    pub blake3: String,
    /// Number of records read from the file.
    pub records: usize,
}

/// Returns the file that record `i` came from and the record's index in it, if the records are those of `files` in
/// order.
#[cfg(feature = "hdf5")]
pub(crate) fn locate(files: &[SourceFile], mut i: usize) -> Option<(&Path, usize)> {
    for file in files {
        if i < file.records {
            return Some((&file.path, i));
        }
        i -= file.records;
    }
    None
}

/// A complete shard.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShardEntry<S> {
    bytes: u64,
    blake3: String,
    /// The writer's summary of its records.
    pub summary: S,
}

/// The file `index.json`: `D` describes the records, `S` summarises a shard.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Index<D, S> {
    /// The layout.
    pub layout: StoreLayout,
    /// Describes the records and their origin.
    pub description: D,
    /// One entry per shard; `None` for an incomplete one.
    pub shards: Vec<Option<ShardEntry<S>>>,
}

impl<D: Serialize + DeserializeOwned, S: Serialize + DeserializeOwned> Index<D, S> {
    /// Reads the index of `folder`; the second value is the BLAKE3 hash of the file.
    ///
    /// Errors: 66 when it cannot be read; 65 when it was edited or damaged, or is inconsistent.
    pub fn load(kind: SealedFile, folder: &Path) -> Result<(Self, String)> {
        let (index, hash) = kind.read::<Self>(&index_path(folder))?;
        let StoreLayout { records, shard_records, .. } = index.layout;
        if index.layout.bytes().is_none()
            || !index.layout.has_ends()
            || index.shards.len() != records.div_ceil(shard_records)
        {
            let error = Error::data("its sizes contradict each other");
            return Err(error.context(index_path(folder).display()));
        }
        Ok((index, hash))
    }

    /// The summaries of the complete shards.
    pub fn summaries(&self) -> impl Iterator<Item = &S> {
        self.shards.iter().flatten().map(|entry| &entry.summary)
    }

    /// Lists the complete shards with their hashes.
    fn shard_files(&self, kind: SealedFile, folder: &Path) -> Vec<InputFile> {
        let file = |(number, entry): (usize, &Option<ShardEntry<S>>)| {
            Some(InputFile {
                path: shard_path(folder, number),
                blake3: entry.as_ref()?.blake3.clone(),
                recorded_in: index_path(folder).display().to_string(),
                remedy: format!("run `{}` again; it replaces damaged shards", kind.made_by),
            })
        };
        self.shards.iter().enumerate().filter_map(file).collect()
    }
}

fn index_path(folder: &Path) -> PathBuf {
    folder.join("index.json")
}

fn shard_path(folder: &Path, shard: usize) -> PathBuf {
    folder.join(format!("shard-{shard:05}.safetensors"))
}
