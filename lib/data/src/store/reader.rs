//! Reads a store.

use super::{Index, ShardEntry, StoreLayout, index_path, shard_path};
use crate::inputs::{InputFile, verify_all};
use crate::seal::SealedFile;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use tensor::safetensors::{Entry, MappedTensors};
use unix::{Error, Result, retry, small};

/// A complete store, mapped into memory. It can be shared between threads; reads copy nothing.
#[derive(Debug)]
pub struct Store<D, S> {
    kind: SealedFile,
    folder: PathBuf,
    index: Index<D, S>,
    hash: String,
    shards: Vec<Shard>,
}

/// A mapped shard and the offset of each array in it.
#[derive(Debug)]
struct Shard {
    tensors: MappedTensors,
    arrays: Vec<usize>,
    path: PathBuf,
    file: File,
}

impl<D: Serialize + DeserializeOwned, S: Serialize + DeserializeOwned> Store<D, S> {
    /// Maps the store in `folder`. Does not check hashes; see [`verify`](Self::verify).
    ///
    /// Errors: 66 when there is no store; 65 when it is incomplete, or a shard has the wrong size or shape.
    pub fn open(kind: SealedFile, folder: &Path) -> Result<Self> {
        let (index, hash) = Index::<D, S>::load(kind, folder)?;
        let done = index.shards.iter().flatten().count();
        let mut shards = Vec::with_capacity(done);
        for (number, entry) in index.shards.iter().enumerate() {
            let entry = entry.as_ref().ok_or_else(|| {
                let all = index.shards.len();
                let (folder, made_by) = (folder.display(), kind.made_by);
                Error::data(format!(
                    "{folder}: unfinished, {done} of {all} shards are there; run `{made_by}` again to add \
                     the missing ones"
                ))
            })?;
            let path = shard_path(folder, number);
            let file = small::open(&path)?;
            let records = index.layout.records_of(number).len();
            let shard = Shard::open((&path, file), entry, &index.layout, records);
            shards.push(shard.map_err(|what| {
                let (path, made_by) = (path.display(), kind.made_by);
                Error::data(format!(
                    "{path}: {what}; run `{made_by}` again; it replaces damaged shards"
                ))
            })?);
        }
        Ok(Self { kind, folder: folder.to_path_buf(), index, hash, shards })
    }

    /// The folder of the store.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The index.
    pub fn index(&self) -> &Index<D, S> {
        &self.index
    }

    /// The BLAKE3 hash of the index, which identifies the content of the whole store.
    pub fn hash(&self) -> &str {
        &self.hash
    }

    /// Returns the bytes of array `array` of record `i`. Panics when either is out of range.
    pub fn bytes(&self, array: usize, i: usize) -> &[u8] {
        let (shard, place) = self.place(array, i);
        &shard.bytes(array)[place]
    }

    /// Returns the same as [`bytes`](Self::bytes), for large arrays that are read once: by a system call, which is repeated
    /// after an error that may pass. Panics when either is out of range. Errors: 74.
    pub fn read(&self, array: usize, i: usize) -> Result<Vec<u8>> {
        let (shard, place) = self.place(array, i);
        let mut bytes = vec![0; place.len()];
        let start = shard.entry(array).start + place.start as u64;
        let read = retry::reading(&shard.path, || shard.file.read_exact_at(&mut bytes, start));
        read.map_err(|cause| Error::io(&shard.path, cause))?;
        Ok(bytes)
    }

    /// The shard of record `i`, and the place of its bytes in array `array` of the shard.
    fn place(&self, array: usize, i: usize) -> (&Shard, Range<usize>) {
        let StoreLayout { arrays, shard_records, .. } = &self.index.layout;
        let (shard, record) = (&self.shards[i / shard_records], i % shard_records);
        let items = match arrays[array].ends {
            None => record..record + 1,
            Some(ends) => {
                let end = |record| shard.end(ends, record);
                record.checked_sub(1).map_or(0, end)..end(record)
            }
        };
        let length = arrays[array].bytes();
        (shard, items.start * length..items.end * length)
    }

    /// Copies all arrays of some records, in the order of the layout, as [`Writer::put`](super::Writer::put) takes them.
    /// Panics when a record is out of range.
    pub fn copy(&self, records: Range<usize>) -> Vec<Vec<u8>> {
        let arrays = &self.index.layout.arrays;
        let mut found = vec![Vec::new(); arrays.len()];
        for (number, array) in arrays.iter().enumerate() {
            if arrays.iter().any(|other| other.ends == Some(number)) {
                continue;
            }
            let mut ends = Vec::new();
            for record in records.clone() {
                found[number].extend_from_slice(self.bytes(number, record));
                ends.extend(((found[number].len() / array.bytes()) as u64).to_le_bytes());
            }
            // Arrays with the same ends have the same number of items in each record.
            array.ends.into_iter().for_each(|place| found[place] = std::mem::take(&mut ends));
        }
        found
    }

    /// The files of the store with their hashes: the index and all shards.
    pub fn input_files(&self) -> Vec<InputFile> {
        let mut files = self.index.shard_files(self.kind, &self.folder);
        files.push(InputFile::read_at_start(&index_path(&self.folder), &self.hash));
        files
    }

    /// Reads every shard and compares it with its hash. Errors: 65, naming all damaged shards.
    pub fn verify(&self) -> Result<()> {
        Error::all(&verify_all(&self.input_files()))
    }
}

impl Shard {
    fn open<S>(
        (path, file): (&Path, File),
        entry: &ShardEntry<S>,
        layout: &StoreLayout,
        records: usize,
    ) -> Result<Self, String> {
        // SAFETY: shards are never modified in place; a new shard is renamed over the old one, whose mapping stays
        // valid.
        let tensors = unsafe { MappedTensors::open(&file)? };
        let bytes = tensors.header().file_bytes();
        if bytes != entry.bytes {
            return Err(format!("{bytes} bytes, {} in the index", entry.bytes));
        }
        let mut arrays = Vec::with_capacity(layout.arrays.len());
        for array in &layout.arrays {
            let entries = &tensors.header().entries;
            let place = entries.iter().position(|entry| entry.name == array.name);
            let place = place.ok_or_else(|| format!("no array `{}`", array.name))?;
            let found = &entries[place];
            // The number of items in ragged arrays is compared with their ends below.
            let items = match array.ends {
                None => records,
                Some(_) => found.shape.first().copied().unwrap_or(0),
            };
            let shape = [&[items], &array.shape[..]].concat();
            if (found.dtype, &found.shape) != (array.dtype, &shape) {
                let found = format!("`{}` is {} {:?}", array.name, found.dtype, found.shape);
                return Err(format!("{found}, not {} {shape:?}", array.dtype));
            }
            // Readers cast the bytes of the first array, and of arrays whose elements have at most 4 bytes.
            let is_cast = arrays.is_empty() || array.dtype.bytes() <= 4;
            if is_cast && !found.start.is_multiple_of(array.dtype.bytes() as u64) {
                return Err(format!("`{}` is not aligned", array.name));
            }
            arrays.push(place);
        }
        let shard = Self { tensors, arrays, path: path.to_path_buf(), file };
        for (number, array) in layout.arrays.iter().enumerate() {
            let Some(ends) = array.ends else { continue };
            let items = shard.bytes(number).len() / array.bytes();
            let mut ends = (0..records).map(|record| shard.end(ends, record));
            if !ends.clone().is_sorted() || ends.next_back() != Some(items) {
                return Err(format!("`{}` does not have the items of its records", array.name));
            }
        }
        Ok(shard)
    }

    /// Returns all bytes of an array.
    fn bytes(&self, array: usize) -> &[u8] {
        self.tensors.bytes(self.entry(array))
    }

    fn entry(&self, array: usize) -> &Entry {
        &self.tensors.header().entries[self.arrays[array]]
    }

    /// Reads the end of a record from the array of ends `ends`.
    fn end(&self, ends: usize, record: usize) -> usize {
        let eight = &self.bytes(ends)[record * 8..][..8];
        u64::from_le_bytes(std::array::from_fn(|k| eight[k])) as usize
    }
}
