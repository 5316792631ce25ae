//! Latents on disk: a [`Store`](crate::store::Store) whose record i holds the latents of trajectory i in a split.
//!
//! The index identifies the codec, normalization and data from which the latents were computed; the latents are not
//! valid for any others. Each record has `latents` [frames, tokens, dim] in f32 and `parameters`, a single f64.

use crate::fields::field::Shape;
use crate::fields::parameter::Parameter;
use crate::fields::split::SplitName;
use crate::fields::split_set::TrajectorySet;
use crate::fields::stats::{Moments, Statistics};
use crate::inputs::InputFile;
use crate::provenance::Provenance;
use crate::seal::SealedFile;
pub use crate::store::FillCounts;
use crate::store::{RecordArray, Store, StoreLayout, Writer};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::Range;
use std::path::Path;
use tensor::FileDtype;
use unix::{Context, Error, Result};

const FILE: SealedFile = SealedFile {
    format: "longhaul-latents",
    version: 1,
    made_by: "latent-cache make",
    max_bytes: 256 << 20,
};

/// Identifies the inputs from which the latents were computed. Stores with equal keys and layouts hold equal latents.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key {
    /// BLAKE3 hash of the codec's weights.
    pub codec: String,
    /// BLAKE3 hash of the normalization that is applied before encoding.
    pub normalisation: String,
    /// BLAKE3 hash of the split manifest.
    pub split: String,
    /// Name of the split within the manifest.
    pub split_name: SplitName,
    /// BLAKE3 hash of each data file.
    pub data: Vec<String>,
    /// Compute dtype of the codec: `f32`, `bf16`, …
    pub dtype: String,
}

impl Key {
    /// Creates the key for latents of `set` from the hashes of the codec and the normalization.
    pub fn new(codec: &str, normalisation: &str, dtype: &str, set: &TrajectorySet) -> Self {
        Self {
            codec: codec.into(),
            normalisation: normalisation.into(),
            split: set.manifest_hash().into(),
            split_name: set.name(),
            data: set.file_hashes(),
            dtype: dtype.into(),
        }
    }

    /// Checks that `found` equals this key. Errors: 65, naming the first part that differs.
    fn require(&self, found: &Self, folder: &Path) -> Result<()> {
        let differs = [
            ("codec", self.codec != found.codec),
            ("normalisation", self.normalisation != found.normalisation),
            ("split", (&self.split, self.split_name) != (&found.split, found.split_name)),
            ("data files", self.data != found.data),
            ("dtype", self.dtype != found.dtype),
        ];
        match differs.into_iter().find(|(_, differs)| *differs) {
            None => Ok(()),
            Some((what, _)) => Err(Error::data(format!(
                "{}: these latents were made with another {what}",
                folder.display()
            ))),
        }
    }
}

/// The layout of a latent store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LatentLayout {
    /// Frames per trajectory.
    pub frames: usize,
    /// Tokens per frame, in row-major order.
    pub tokens: usize,
    /// Rows of tokens; 1 for one-dimensional fields.
    pub rows: usize,
    /// Width of a token.
    pub dim: usize,
    /// Trajectories per shard; the last shard may have fewer.
    pub shard_samples: usize,
}

/// Formats as `21 frames of 16 tokens of width 8, in shards of 64 trajectories`.
impl fmt::Display for LatentLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { frames, tokens, dim, shard_samples, .. } = self;
        write!(
            f,
            "{frames} frames of {tokens} tokens of width {dim}, in shards of {shard_samples} trajectories"
        )
    }
}

impl LatentLayout {
    /// Token grid, [rows, columns].
    pub fn token_grid(&self) -> [usize; 2] {
        [self.rows, self.tokens / self.rows]
    }

    /// Values per frame.
    pub fn frame_len(&self) -> usize {
        self.tokens * self.dim
    }

    /// Values per trajectory.
    pub fn sample_len(&self) -> usize {
        self.frames * self.frame_len()
    }

    fn of_store(&self, records: usize) -> StoreLayout {
        let shape = [self.frames, self.tokens, self.dim];
        let latents = RecordArray::fixed("latents", FileDtype::F32, &shape);
        let arrays = vec![latents, RecordArray::fixed("parameters", FileDtype::F64, &[])];
        StoreLayout { arrays, records, shard_records: self.shard_samples }
    }
}

/// Metadata of the latents, stored in the index.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Description {
    key: Key,
    layout: LatentLayout,
    /// Name of the equation's parameter.
    parameter: String,
    /// Names of all parameters of the equation, if there are several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    equation: Option<String>,
    /// Time between frames.
    frame_interval: f64,
    /// The encoded trajectories, in order.
    trajectories: Vec<Provenance>,
    /// Statistics of the `dim` latent channels over all trajectories, frames and tokens; filled in once all shards are
    /// complete.
    channels: Vec<Statistics>,
}

/// A batch of trajectories to encode.
#[derive(Debug)]
pub struct TrajectoryBatch<'a> {
    /// Index of the first trajectory in the set.
    pub first: usize,
    /// Values, [trajectories, frames, grid…, channels].
    pub values: &'a [f32],
    /// Shape of `values`.
    pub shape: Shape,
    /// The parameter of each trajectory.
    pub parameters: &'a [f64],
}

/// Encodes all trajectories of `set` into the store `folder`, `batch` trajectories at a time.
///
/// `encode_batch` returns [trajectories, frames, tokens, dim] for a batch. If it fails, completed shards are kept, and
/// the next call resumes after them. Damaged shards are rewritten, as are all shards if the key or layout differs.
///
/// Errors: 65 for non-finite latents; 70 when `encode_batch` returns the wrong number of values; 73 and 74 for disk
/// errors; and those of `encode_batch`.
pub fn write_latents(
    folder: &Path,
    key: &Key,
    layout: LatentLayout,
    set: &TrajectorySet,
    batch: usize,
    mut encode_batch: impl FnMut(&TrajectoryBatch) -> Result<Vec<f32>>,
) -> Result<FillCounts> {
    if set.is_empty() || layout.shard_samples == 0 || layout.sample_len() == 0 || batch == 0 {
        return Err(Error::data(format!("no latents: {} trajectories, {layout}", set.len())));
    }
    let first = set.entry(0).parameter;
    let equation = first.names();
    if let Some(other) = (0..set.len()).find(|i| set.entry(*i).parameter.names() != equation) {
        return Err(Error::data(format!(
            "trajectory 0 has the parameters {equation}, but trajectory {other} has {}: make a manifest for each \
             equation and mix their latents in the configuration",
            set.entry(other).parameter.names()
        )));
    }
    let description = Description {
        key: key.clone(),
        layout,
        parameter: first.name.clone(),
        equation: Some(equation).filter(|names| *names != first.name),
        frame_interval: set.frame_interval(),
        trajectories: set.provenance(),
        channels: Vec::new(),
    };
    let mut writer = Writer::open(
        FILE,
        folder,
        layout.of_store(set.len()),
        description,
        |old: &Description| {
            key.require(&old.key, folder)?;
            let other = format!("{}: {}, not {layout}", folder.display(), old.layout);
            if old.layout == layout { Ok(()) } else { Err(Error::data(other)) }
        },
    )?;
    let done = writer.fill(|samples| {
        let mut latents = Vec::with_capacity(samples.len() * layout.sample_len());
        let mut parameters = Vec::with_capacity(samples.len());
        let mut encode_some = |first: usize, count: usize| {
            let length = set.shape().trajectory_len();
            let mut values = vec![0.0; count * length];
            for (i, values) in (first..).zip(values.chunks_exact_mut(length)) {
                set.read(i, values)?;
                parameters.push(set.entry(i).parameter.value);
            }
            encode_batch(&TrajectoryBatch {
                first,
                values: &values,
                shape: Shape { trajectories: count, ..set.shape().clone() },
                parameters: &parameters[parameters.len() - count..],
            })
        };
        for first in samples.clone().step_by(batch) {
            let count = batch.min(samples.end - first);
            let encoded = encode_some(first, count)
                .context(|| format!("latents of trajectory {first} and on"))?;
            require_latents(&encoded, count * layout.sample_len(), first)?;
            latents.extend(encoded);
        }
        let channel = |i: usize| Moments::of(latents.iter().skip(i).step_by(layout.dim).copied());
        let moments: Vec<Moments> = (0..layout.dim).map(channel).collect();
        let bytes = [bytemuck::cast_slice(&latents), bytemuck::cast_slice(&parameters)];
        Ok((bytes.map(<[u8]>::to_vec).to_vec(), moments))
    })?;
    let mut channels = vec![Moments::default(); layout.dim];
    for entry in writer.index.shards.iter().flatten() {
        channels.iter_mut().zip(&entry.summary).for_each(|(all, one)| all.merge(one));
    }
    writer.index.description.channels = channels.iter().map(Moments::statistics).collect();
    writer.save()?;
    Ok(done)
}

fn require_latents(latents: &[f32], expected: usize, first: usize) -> Result<()> {
    if latents.len() != expected {
        return Err(Error::bug(format!(
            "the codec returned {} values for the trajectories from {first} on, not {expected}",
            latents.len()
        )));
    }
    match latents.iter().position(|z| !z.is_finite()) {
        None => Ok(()),
        Some(at) => Err(Error::data(format!(
            "latent {at} of the trajectories from {first} on is {}; is the codec trained?",
            latents[at]
        ))),
    }
}

/// The complete latents of a split, memory-mapped. Can be shared between threads; reads do not copy.
#[derive(Debug)]
pub struct LatentStore(Store<Description, Vec<Moments>>);

impl LatentStore {
    /// Maps the latents in `folder`. If `key` is given, it must equal the key of the store.
    ///
    /// Errors: 66 when the store does not exist; 65 when it is incomplete, has the wrong size or shape, or does not
    /// match `key`. Only [`verify`](Self::verify) checks hashes.
    pub fn open(folder: &Path, key: Option<&Key>) -> Result<Self> {
        let store = Self(Store::open(FILE, folder)?);
        if let Some(key) = key {
            key.require(store.key(), folder)?;
        }
        let (layout, channels) = (store.layout(), store.channels().len());
        let LatentLayout { tokens, rows, dim, .. } = layout;
        let arrays = store.0.index().layout == layout.of_store(store.len());
        if !arrays || rows == 0 || !tokens.is_multiple_of(rows) || channels != dim {
            let error = Error::data("index.json: its sizes contradict each other");
            return Err(error.context(folder.display()));
        }
        Ok(store)
    }

    fn description(&self) -> &Description {
        &self.0.index().description
    }

    /// The folder of the store.
    pub fn folder(&self) -> &Path {
        self.0.folder()
    }

    /// Number of trajectories.
    pub fn len(&self) -> usize {
        self.0.index().layout.records
    }

    /// Whether the store has no trajectories.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Layout of the latents.
    pub fn layout(&self) -> LatentLayout {
        self.description().layout
    }

    /// Identifies the inputs from which the latents were computed.
    pub fn key(&self) -> &Key {
        &self.description().key
    }

    /// The BLAKE3 hash of the index, which identifies the content of the whole store.
    pub fn hash(&self) -> &str {
        self.0.hash()
    }

    /// The encoded trajectories, identified by the content of their files.
    pub fn provenance(&self) -> &[Provenance] {
        &self.description().trajectories
    }

    /// The files of the store with their recorded hashes.
    pub fn input_files(&self) -> Vec<InputFile> {
        self.0.input_files()
    }

    /// Statistics of each latent channel.
    pub fn channels(&self) -> &[Statistics] {
        &self.description().channels
    }

    /// Latents of trajectory `i`, [frames, tokens, dim]. Panics if `i` is out of range.
    pub fn sample(&self, i: usize) -> &[f32] {
        bytemuck::cast_slice(self.0.bytes(0, i))
    }

    /// Latents of `frames` of trajectory `i`, [frames.len(), tokens, dim]. Panics if either is out of range.
    pub fn frames(&self, i: usize, frames: Range<usize>) -> &[f32] {
        let length = self.layout().frame_len();
        &self.sample(i)[frames.start * length..frames.end * length]
    }

    /// The equation's parameter for trajectory `i`.
    pub fn parameter(&self, i: usize) -> Parameter {
        Parameter::new(&self.description().parameter, FileDtype::F64.read(self.0.bytes(1, i)))
    }

    /// Parameter names of the data set; see [`Parameter::names`].
    pub fn equation(&self) -> &str {
        let description = self.description();
        description.equation.as_deref().unwrap_or(&description.parameter)
    }

    /// Time between frames.
    pub fn frame_interval(&self) -> f64 {
        self.description().frame_interval
    }

    /// Reads every shard and compares it with its hash. Errors: 65, naming all damaged shards.
    pub fn verify(&self) -> Result<()> {
        self.0.verify()
    }
}
