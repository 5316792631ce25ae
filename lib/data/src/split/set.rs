//! The samples of one split, across its sources.

use super::{Divisible, Split, SplitName};
use crate::inputs::InputFile;
use crate::provenance::Provenance;
use std::path::{Path, PathBuf};

/// The samples of one split, in the order of the manifest. Can be shared between threads; reads are cheap.
#[derive(Debug)]
pub struct SplitSet<C: Divisible> {
    pub(crate) manifest: PathBuf,
    manifest_hash: String,
    name: SplitName,
    pub(crate) content: C,
    pub(crate) list: C::List,
    /// The opened sources, in the order of the manifest's list.
    pub(crate) sources: Vec<C::Opened>,
    /// For each sample, the index of its source and its index in the source.
    pub(crate) entries: Vec<(usize, usize)>,
}

impl<C: Divisible> SplitSet<C> {
    /// Creates a split from a manifest, its hash and its opened sources.
    pub(crate) fn new(
        manifest: &Path,
        (split, manifest_hash): (Split<C>, String),
        name: SplitName,
        sources: Vec<C::Opened>,
    ) -> Self {
        let parts = split.parts(name).iter();
        let entries = parts.flat_map(|p| p.samples.iter().map(|sample| (p.file, *sample)));
        let (manifest, entries) = (manifest.into(), entries.collect());
        let Split { content, list, .. } = split;
        Self { manifest, manifest_hash, name, content, list, sources, entries }
    }

    /// The split.
    pub fn name(&self) -> SplitName {
        self.name
    }

    /// Number of samples.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no samples.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The properties that all sources share.
    pub fn content(&self) -> &C {
        &self.content
    }

    /// BLAKE3 hash of the manifest.
    pub fn manifest_hash(&self) -> &str {
        &self.manifest_hash
    }

    /// Returns the files that the set is read from, with the hashes recorded in the manifest and the stores.
    pub fn input_files(&self) -> Vec<InputFile> {
        let manifest = InputFile::read_at_start(&self.manifest, &self.manifest_hash);
        std::iter::once(manifest).chain(C::input_files(self)).collect()
    }

    /// Returns the samples, identified by the content of their sources, in the order of the manifest.
    pub fn provenance(&self) -> Vec<Provenance> {
        let of_source = |entries: &[(usize, usize)]| Provenance {
            blake3: C::listed(&self.list, entries[0].0).map_or("", |source| source.blake3).into(),
            samples: entries.iter().map(|(_, sample)| *sample).collect(),
        };
        self.entries.chunk_by(|a, b| a.0 == b.0).map(of_source).collect()
    }
}
