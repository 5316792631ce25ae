//! Builds a store shard by shard. Shards that are already complete and undamaged are kept.

use super::{Index, RecordArray, ShardEntry, StoreLayout, index_path, shard_path};
use crate::seal::SealedFile;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use tensor::safetensors::Header;
use unix::publish::{create_folder, hash_file, publish_bytes};
use unix::{Error, Exit, Result};

/// Alignment of the first array in bytes: a cache line, and the widest vector registers.
const ALIGNMENT: usize = 64;

/// The bytes of a ragged array and of its ends, for some records.
#[derive(Clone, Debug, Default)]
pub struct Ragged {
    /// The items of all records.
    pub items: Vec<u8>,
    /// The ends, u64 each.
    pub ends: Vec<u8>,
    count: u64,
}

impl Ragged {
    /// Appends a record.
    pub fn push<T: bytemuck::NoUninit>(&mut self, items: &[T]) {
        self.push_items(items, items.len());
    }

    /// Appends a record of `count` items, each of the same number of values.
    pub fn push_items<T: bytemuck::NoUninit>(&mut self, values: &[T], count: usize) {
        self.items.extend_from_slice(bytemuck::cast_slice(values));
        self.count += count as u64;
        self.ends.extend(self.count.to_le_bytes());
    }
}

/// The outcome of [`Writer::fill`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FillCounts {
    /// Shards that were already complete.
    pub kept: usize,
    /// Shards that were written.
    pub made: usize,
}

/// A store that is being built.
#[derive(Debug)]
pub struct Writer<D, S> {
    kind: SealedFile,
    folder: PathBuf,
    /// Its index.
    pub index: Index<D, S>,
}

impl<D: Serialize + DeserializeOwned, S: Serialize + DeserializeOwned + Clone> Writer<D, S> {
    /// Resumes the store in `folder` if it has this layout and `require` accepts its description; otherwise starts a
    /// new one. Processes that have mapped the old shards keep them.
    ///
    /// Errors: 73, 74 for the disk, and those of `require` except 65, which means that the records are stale.
    pub fn open(
        kind: SealedFile,
        folder: &Path,
        layout: StoreLayout,
        description: D,
        require: impl FnOnce(&D) -> Result<()>,
    ) -> Result<Self> {
        let Some(bytes) = layout.bytes().filter(|bytes| *bytes > 0) else {
            return Err(Error::data(format!("{}: no records to store", folder.display())));
        };
        create_folder(folder)?;
        let path = index_path(folder);
        if path.exists() {
            let old = Index::<D, S>::load(kind, folder)
                .and_then(|(old, _)| require(&old.description).map(|()| old));
            match old {
                Ok(index) if index.layout == layout => {
                    return Ok(Self { kind, folder: folder.into(), index });
                }
                Ok(_) => unix::note!("{}: has another layout and is rebuilt", folder.display()),
                Err(error) if error.exit == Exit::Data => {
                    unix::note!("{error}; the store is rebuilt")
                }
                Err(error) => return Err(error),
            }
        }
        unix::space::ensure_space(&path, bytes as u64)?;
        let shards = vec![None; layout.records.div_ceil(layout.shard_records)];
        let index = Index { layout, description, shards };
        // Written before any shard, so that the hashes of an older index are no longer trusted.
        kind.write(&path, &index)?;
        Ok(Self { kind, folder: folder.into(), index })
    }

    /// Writes the shards that are missing or damaged. `encode` returns the bytes of each array for a range of records,
    /// in the order of the layout, and a summary. After a failure, the shards written so far are kept, and the next
    /// call continues after them.
    ///
    /// Errors: 70 when `encode` returns the wrong number of bytes; 73, 74 for the disk; and those of `encode`.
    pub fn fill(
        &mut self,
        mut encode: impl FnMut(Range<usize>) -> Result<(Vec<Vec<u8>>, S)>,
    ) -> Result<FillCounts> {
        let missing = self.missing();
        let (all, made) = (self.index.shards.len(), missing.len());
        for number in missing {
            let (arrays, summary) = encode(self.records_of(number))?;
            self.put(number, &arrays, summary)?;
        }
        Ok(FillCounts { kept: all - made, made })
    }

    /// The numbers of the shards that are missing or damaged, ascending. Reads all others.
    pub fn missing(&self) -> Vec<usize> {
        let is_missing = |number: &usize| {
            let entry = self.index.shards[*number].as_ref();
            !entry.is_some_and(|entry| is_whole(&shard_path(&self.folder, *number), entry))
        };
        (0..self.index.shards.len()).filter(is_missing).collect()
    }

    /// The records of a shard.
    pub fn records_of(&self, number: usize) -> Range<usize> {
        self.index.layout.records_of(number)
    }

    /// Writes a shard: the bytes of each array for its records, in the order of the layout, and a summary.
    ///
    /// Errors: 70 for the wrong number of bytes; 73, 74 for the disk.
    pub fn put(&mut self, number: usize, arrays: &[Vec<u8>], summary: S) -> Result<()> {
        let path = shard_path(&self.folder, number);
        let bytes = shard(&self.index.layout, self.records_of(number).len(), arrays)?;
        publish_bytes(&path, &bytes)?;
        let blake3 = blake3::hash(&bytes).to_hex().to_string();
        let bytes = bytes.len() as u64;
        self.index.shards[number] = Some(ShardEntry { bytes, blake3, summary });
        self.save()
    }

    /// Writes the index.
    pub fn save(&self) -> Result<()> {
        self.kind.write(&index_path(&self.folder), &self.index)
    }
}

fn is_whole<S>(path: &Path, entry: &ShardEntry<S>) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.len() == entry.bytes)
        && hash_file(path).is_ok_and(|hash| hash == entry.blake3)
}

/// Encodes a shard file.
fn shard(layout: &StoreLayout, records: usize, arrays: &[Vec<u8>]) -> Result<Vec<u8>> {
    if layout.arrays.len() != arrays.len() {
        return Err(Error::bug(format!("{} arrays for a layout of others", arrays.len())));
    }
    let shape = |(array, bytes): (&RecordArray, &Vec<u8>)| {
        let items = array.ends.map_or(records, |_| bytes.len() / array.bytes());
        [&[items], &array.shape[..]].concat()
    };
    let shapes: Vec<Vec<usize>> = layout.arrays.iter().zip(arrays).map(shape).collect();
    let planned = layout.arrays.iter().zip(&shapes);
    let planned = planned.map(|(array, shape)| (array.name.as_str(), array.dtype, &shape[..]));
    let header = Header::plan(planned, BTreeMap::new(), ALIGNMENT).map_err(Error::bug)?;
    let lengths = header.entries.iter().map(|entry| (entry.end - entry.start) as usize);
    if !lengths.eq(arrays.iter().map(Vec::len)) {
        return Err(Error::bug(format!(
            "the arrays of {records} records do not have the size of the layout"
        )));
    }
    Ok([header.bytes, arrays.concat()].concat())
}
