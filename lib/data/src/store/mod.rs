//! A store of records in shards: a folder of safetensors files and `index.json`. It can be built over several attempts,
//! and is mapped into memory for reading.
//!
//! All records have the same named arrays. A shard holds each array as [n, shape…] for n records, with the first array
//! aligned to 64 bytes; record i of the store is record i mod `shard_records` of its shard. The index describes the
//! arrays and what the records were made from, and lists size, BLAKE3 hash and a summary of each shard. It is written
//! again after every shard.

mod reader;
mod writer;

pub use reader::Store;
pub use writer::{Outcome, Writer};

use crate::inputs::InputFile;
use crate::seal::SealedFile;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::path::{Path, PathBuf};
use tensor::FileDtype;
use unix::{Error, Result};

/// An array that every record has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordArray {
    /// Its name.
    pub name: String,
    /// Its dtype.
    pub dtype: FileDtype,
    /// Its shape in one record.
    pub shape: Vec<usize>,
}

impl RecordArray {
    /// Size in bytes of the array in one record.
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
    /// Size in bytes of all arrays; `None` when it overflows or when a dimension is 0.
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

    /// The records in a shard.
    fn records_of(&self, shard: usize) -> Range<usize> {
        let first = shard * self.shard_records;
        first..self.records.min(first.saturating_add(self.shard_records))
    }
}

/// A complete shard.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShardEntry<S> {
    bytes: u64,
    blake3: String,
    /// The writer's summary of its records.
    pub summary: S,
}

/// The file `index.json`: `D` describes the records, `S` is a summary of each shard.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Index<D, S> {
    /// The layout.
    pub layout: StoreLayout,
    /// Describes the records and what they were made from.
    pub description: D,
    /// One entry per shard; `None` for one that is not complete.
    pub shards: Vec<Option<ShardEntry<S>>>,
}

impl<D: Serialize + DeserializeOwned, S: Serialize + DeserializeOwned> Index<D, S> {
    /// Reads the index of `folder`; the second value is the BLAKE3 hash of the file.
    ///
    /// Errors: 66 when it cannot be read; 65 when it was edited or damaged, or is inconsistent.
    pub fn load(kind: SealedFile, folder: &Path) -> Result<(Self, String)> {
        let (index, hash) = kind.read::<Self>(&index_path(folder))?;
        let StoreLayout { records, shard_records, .. } = index.layout;
        if index.layout.bytes().is_none() || index.shards.len() != records.div_ceil(shard_records) {
            let error = Error::data("its sizes contradict each other");
            return Err(error.context(index_path(folder).display()));
        }
        Ok((index, hash))
    }

    /// The complete shards with their hashes.
    fn shard_files(&self, kind: SealedFile, folder: &Path) -> Vec<InputFile> {
        let file = |(number, entry): (usize, &Option<ShardEntry<S>>)| {
            Some(InputFile {
                path: shard_path(folder, number),
                blake3: entry.as_ref()?.blake3.clone(),
                recorded_in: index_path(folder).display().to_string(),
                remedy: format!("run `{}` again, it replaces damaged shards", kind.made_by),
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
