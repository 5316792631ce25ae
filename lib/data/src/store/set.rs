//! The records of one split, across its stores.

use super::{Content, RecordStore, StoreSplit};
use crate::inputs::InputFile;
use crate::provenance::Provenance;
use crate::split::SplitName;
use std::path::{Path, PathBuf};
use unix::Result;

/// The records of one split, in the order of the manifest. It can be shared between threads; reads copy nothing.
#[derive(Debug)]
pub struct StoreSet<C: Content> {
    manifest: PathBuf,
    manifest_hash: String,
    name: SplitName,
    content: C,
    stores: Vec<C::Store>,
    entries: Vec<(usize, usize)>,
}

impl<C: Content> StoreSet<C> {
    /// Opens the stores of a manifest. Errors: 66 for a missing store; 65 for one with another content than when it was
    /// split.
    pub fn open(manifest: &Path, name: SplitName) -> Result<Self> {
        let (split, manifest_hash) = StoreSplit::<C>::load(manifest)?;
        let stores = (0..split.stores.len()).map(|number| split.open_store(number, manifest));
        let stores = stores.collect::<Result<_>>()?;
        let parts = split.parts(name).iter();
        let entries = parts.flat_map(|p| p.samples.iter().map(|record| (p.file, *record)));
        let (manifest, entries, content) = (manifest.into(), entries.collect(), split.content);
        Ok(Self { manifest, manifest_hash, name, content, stores, entries })
    }

    /// All splits of a manifest. Errors: those of [`StoreSet::open`].
    pub fn open_all(manifest: &Path) -> Result<[Self; 3]> {
        let [train, validation, test] = SplitName::ALL.map(|name| Self::open(manifest, name));
        Ok([train?, validation?, test?])
    }

    /// The split.
    pub fn name(&self) -> SplitName {
        self.name
    }

    /// Number of records.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// What all stores have in common.
    pub fn content(&self) -> &C {
        &self.content
    }

    /// The store of record `i`, and its number there. Panics when out of range.
    pub fn locate(&self, i: usize) -> (&C::Store, usize) {
        let (store, record) = self.entries[i];
        (&self.stores[store], record)
    }

    /// The file that record `i` came from, and its number there. Panics when out of range.
    pub fn origin(&self, i: usize) -> (&Path, usize) {
        let (store, record) = self.locate(i);
        store.origin(record)
    }

    /// The key of the group of record `i`. Panics when out of range.
    pub fn group(&self, i: usize) -> blake3::Hash {
        let (store, record) = self.locate(i);
        store.group(record)
    }

    /// The hash of the values of the input of record `i`. Panics when out of range.
    pub fn input_hash(&self, i: usize) -> blake3::Hash {
        let (store, record) = self.locate(i);
        store.input_hash(record)
    }

    /// BLAKE3 hash of the manifest.
    pub fn manifest_hash(&self) -> &str {
        &self.manifest_hash
    }

    /// The stores of the manifest.
    pub fn stores(&self) -> &[C::Store] {
        &self.stores
    }

    /// The files that the set is read from, with their recorded hashes.
    pub fn input_files(&self) -> Vec<InputFile> {
        let manifest = InputFile::read_at_start(&self.manifest, &self.manifest_hash);
        std::iter::once(manifest)
            .chain(self.stores.iter().flat_map(RecordStore::input_files))
            .collect()
    }

    /// The records, identified by the content of their stores.
    pub fn provenance(&self) -> Vec<Provenance> {
        let of_store = |entries: &[(usize, usize)]| Provenance {
            blake3: self.stores[entries[0].0].hash().into(),
            samples: entries.iter().map(|(_, record)| *record).collect(),
        };
        self.entries.chunk_by(|a, b| a.0 == b.0).map(of_store).collect()
    }
}
