//! Reading a latent store.

use super::index::{ChannelStatistics, Index, Key, Layout};
use super::shard::Shard;
use crate::fields::parameter::Parameter;
use crate::fields::provenance::Provenance;
use crate::inputs::{InputFile, verify_all};
use std::ops::Range;
use std::path::{Path, PathBuf};
use unix::{Error, Result};

/// A complete latent store, mapped into memory. Shared by threads; reads copy nothing.
#[derive(Debug)]
pub struct LatentStore {
    folder: PathBuf,
    index: Index,
    index_hash: String,
    shards: Vec<Shard>,
}

impl LatentStore {
    /// Maps the store in `folder`. With `key` given, it must have been made from just that.
    ///
    /// Errors: 66 when it is not there, 65 when it is unfinished, damaged in size or shape, or of
    /// another codec or data. Contents are compared by [`verify`](Self::verify).
    pub fn open(folder: &Path, key: Option<&Key>) -> Result<Self> {
        let (index, index_hash) = Index::load(folder)?;
        if let Some(key) = key {
            index.require(key, folder)?;
        }
        let mut shards = Vec::with_capacity(index.shards.len());
        for (number, entry) in index.shards.iter().enumerate() {
            let entry = entry.as_ref().ok_or_else(|| unfinished(folder, &index))?;
            let samples = index.samples_of(number).len();
            shards.push(Shard::open(folder, number, entry, &index.layout, samples)?);
        }
        if index.channels.len() != index.layout.dim {
            return Err(unfinished(folder, &index));
        }
        Ok(Self { folder: folder.to_path_buf(), index, index_hash, shards })
    }

    /// Where it is.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Number of trajectories.
    pub fn len(&self) -> usize {
        self.index.samples
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Sizes.
    pub fn layout(&self) -> Layout {
        self.index.layout
    }

    /// What it was made from.
    pub fn key(&self) -> &Key {
        &self.index.key
    }

    /// BLAKE3 of the index, and so of all that the store holds.
    pub fn hash(&self) -> &str {
        &self.index_hash
    }

    /// The trajectories that were encoded, by the content of their files.
    pub fn provenance(&self) -> &[Provenance] {
        &self.index.trajectories
    }

    /// The files that the store reads: the index and the shards with the hashes that it recorded.
    pub fn input_files(&self) -> Vec<InputFile> {
        let mut files = self.index.shard_files(&self.folder);
        files.push(InputFile::read_at_start(&Index::path(&self.folder), &self.index_hash));
        files
    }

    /// Mean and standard deviation of each channel.
    pub fn channels(&self) -> &[ChannelStatistics] {
        &self.index.channels
    }

    /// Trajectory `i`, [frames, tokens, dim]. Panics when there is none.
    pub fn sample(&self, i: usize) -> &[f32] {
        self.frames(i, 0..self.index.layout.frames)
    }

    /// Some frames of trajectory `i`, [frames.len(), tokens, dim]. Panics when there are none.
    pub fn frames(&self, i: usize, frames: Range<usize>) -> &[f32] {
        let Layout { frames: all, shard_samples, .. } = self.index.layout;
        assert!(frames.end <= all, "frames {frames:?} of {all}");
        let first = i % shard_samples * all;
        let length = self.index.layout.frame_len();
        let range = (first + frames.start) * length..(first + frames.end) * length;
        &self.shards[i / shard_samples].latents()[range]
    }

    /// The parameter of the equation for trajectory `i`.
    pub fn parameter(&self, i: usize) -> Parameter {
        let per_shard = self.index.layout.shard_samples;
        let value = self.shards[i / per_shard].parameters[i % per_shard];
        Parameter::new(&self.index.parameter, value)
    }

    /// Time from one frame to the next.
    pub fn frame_interval(&self) -> f64 {
        self.index.frame_interval
    }

    /// Reads every shard and compares it with its hash; the error (65) names all that are damaged.
    pub fn verify(&self) -> Result<()> {
        Error::all(&verify_all(&self.input_files()))
    }
}

fn unfinished(folder: &Path, index: &Index) -> Error {
    Error::data(format!(
        "{}: unfinished, {} of {} shards are there; run latent-cache again, it goes on",
        folder.display(),
        index.shards.iter().flatten().count(),
        index.shards.len()
    ))
}
