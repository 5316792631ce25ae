//! Manifests and splits of records.

use super::{Content, RecordStore};
use crate::inputs::InputFile;
use crate::seal::SealedFile;
use crate::split::{Divisible, Listed, Source, Split, SplitName, SplitSet};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use unix::{Error, Result};

/// The stores of a manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stores {
    /// The stores; parts refer to them by index.
    pub stores: Vec<StoreEntry>,
}

/// A store of a manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreEntry {
    /// Folder of the store, relative to the manifest's folder if possible.
    pub path: PathBuf,
    /// BLAKE3 hash of its index, which identifies its content.
    pub blake3: String,
    /// Number of records in the store, used or not.
    pub records: usize,
}

impl<C: Content> Divisible for C {
    type Source = C::Store;
    type Opened = C::Store;
    type List = Stores;
    const FILE: SealedFile = C::MANIFEST;
    const WORDS: [&'static str; 3] = ["store", "record", "records"];

    fn list(sources: &[C::Store], paths: Vec<PathBuf>) -> Stores {
        let entry = |(store, path): (&C::Store, PathBuf)| StoreEntry {
            path,
            blake3: store.hash().into(),
            records: store.len(),
        };
        Stores { stores: sources.iter().zip(paths).map(entry).collect() }
    }

    fn listed(Stores { stores }: &Stores, number: usize) -> Option<Listed<'_>> {
        let StoreEntry { path, blake3, records } = stores.get(number)?;
        Some(Listed { path, blake3, samples: *records })
    }

    fn input_files(set: &SplitSet<C>) -> Vec<InputFile> {
        set.sources.iter().flat_map(RecordStore::input_files).collect()
    }

    fn row(_list: &Stores, split: SplitName, _number: usize, samples: usize, path: &str) -> Value {
        json!({"split": split, "records": samples, "store": path})
    }
}

impl<C: Content> Split<C> {
    /// Opens store `number`, for a manifest at `manifest`. Errors: 66 when it is missing; 65 when it is damaged, or not
    /// the store that was divided.
    pub fn open_store(&self, number: usize, manifest: &Path) -> Result<C::Store> {
        let store = C::Store::open(&self.file_path(number, manifest))?;
        let entry = &self.list.stores[number];
        if (store.hash(), store.len()) != (&*entry.blake3, entry.records)
            || store.content() != self.content
        {
            return Err(Error::data(format!(
                "{}: its content is not that which {} divides; run `ds-prep split` again",
                store.path().display(),
                manifest.display()
            )));
        }
        Ok(store)
    }
}

impl<C: Content> SplitSet<C> {
    /// Opens the stores of a manifest. Errors: 66 for a missing store; 65 for one whose content has changed since it
    /// was split.
    pub fn open(manifest: &Path, name: SplitName) -> Result<Self> {
        let (split, hash) = Split::<C>::load(manifest)?;
        let stores = (0..split.list.stores.len()).map(|number| split.open_store(number, manifest));
        let stores = stores.collect::<Result<_>>()?;
        Ok(Self::new(manifest, (split, hash), name, stores))
    }

    /// Opens all splits of a manifest. Errors: those of [`open`](Self::open).
    pub fn open_all(manifest: &Path) -> Result<[Self; 3]> {
        let [train, validation, test] = SplitName::ALL.map(|name| Self::open(manifest, name));
        Ok([train?, validation?, test?])
    }

    /// Returns the store of record `i` and the record's index in it. Panics when out of range.
    pub fn locate(&self, i: usize) -> (&C::Store, usize) {
        let (store, record) = self.entries[i];
        (&self.sources[store], record)
    }

    /// Returns the file that record `i` came from and the record's index in it. Panics when out of range.
    pub fn origin(&self, i: usize) -> (&Path, usize) {
        let (store, record) = self.locate(i);
        store.origin(record)
    }

    /// Returns the key of the group of record `i`. Panics when out of range.
    pub fn group(&self, i: usize) -> blake3::Hash {
        let (store, record) = self.locate(i);
        store.group(record)
    }

    /// Returns the hash of the input values of record `i`. Panics when out of range.
    pub fn input_hash(&self, i: usize) -> blake3::Hash {
        let (store, record) = self.locate(i);
        store.input_hash(record)
    }

    /// The stores of the manifest.
    pub fn stores(&self) -> &[C::Store] {
        &self.sources
    }
}
