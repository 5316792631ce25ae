//! The index of a latent store, `index.json`.

use crate::fields::provenance::Provenance;
use crate::fields::split::SplitName;
use crate::fields::split_set::TrajectorySet;
use crate::inputs::InputFile;
use crate::seal;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::{Path, PathBuf};
use unix::publish::publish_bytes;
use unix::{Error, Result, small};

/// What the latents were made from. Two stores with equal keys and layouts hold equal latents.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key {
    /// BLAKE3 of the codec's weights.
    pub codec: String,
    /// BLAKE3 of the normalisation applied before encoding.
    pub normalisation: String,
    /// BLAKE3 of the split manifest.
    pub split: String,
    /// Which split of it.
    pub split_name: SplitName,
    /// BLAKE3 of each data file.
    pub data: Vec<String>,
    /// The numbers that the codec computed with: `f32`, `bf16`, …
    pub dtype: String,
}

impl Key {
    /// The key of latents of `set` by the codec and normalisation with these hashes.
    pub fn new(codec: &str, normalisation: &str, dtype: &str, set: &TrajectorySet) -> Self {
        Self {
            codec: codec.into(),
            normalisation: normalisation.into(),
            split: set.manifest_hash().into(),
            split_name: set.name(),
            data: set.file_hashes().to_vec(),
            dtype: dtype.into(),
        }
    }
}

/// Sizes of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// Frames of a trajectory.
    pub frames: usize,
    /// Tokens of a frame, row by row.
    pub tokens: usize,
    /// Rows of tokens; one of fields on one axis.
    #[serde(default = "one_row")]
    pub rows: usize,
    /// Numbers of a token.
    pub dim: usize,
    /// Trajectories of a shard; the last one may have fewer.
    pub shard_samples: usize,
}

/// `21 frames of 16 tokens of width 8, in shards of 64 trajectories`.
impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { frames, tokens, dim, shard_samples, .. } = self;
        write!(
            f,
            "{frames} frames of {tokens} tokens of width {dim}, in shards of {shard_samples} trajectories"
        )
    }
}

fn one_row() -> usize {
    1
}

impl Layout {
    /// Rows and columns of the tokens.
    pub fn token_grid(&self) -> [usize; 2] {
        [self.rows, self.tokens / self.rows]
    }

    /// Numbers of a frame.
    pub fn frame_len(&self) -> usize {
        self.tokens * self.dim
    }

    /// Numbers of a trajectory.
    pub fn sample_len(&self) -> usize {
        self.frames * self.frame_len()
    }
}

/// Mean and standard deviation of one of the `dim` channels over all trajectories, frames and tokens.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChannelStatistics {
    /// Mean.
    pub mean: f64,
    /// Standard deviation of the population.
    pub std: f64,
}

/// The file `index.json`; published again after every shard.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Index {
    pub format: String,
    pub version: u32,
    pub key: Key,
    pub layout: Layout,
    pub samples: usize,
    /// Name of the parameter of the equation.
    pub parameter: String,
    /// Time from one frame to the next.
    pub frame_interval: f64,
    /// The trajectories that were encoded, in order.
    pub trajectories: Vec<Provenance>,
    /// Shards that are done, by number.
    pub shards: Vec<Option<ShardEntry>>,
    /// Of each channel; there when all shards are.
    pub channels: Vec<ChannelStatistics>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct ShardEntry {
    pub bytes: u64,
    pub blake3: String,
    /// Of each channel: mean, and sum of squares about it.
    pub moments: Vec<[f64; 2]>,
}

const FORMAT: &str = "longhaul-latents";
const VERSION: u32 = 1;
/// Largest index, in bytes.
const MAX_BYTES: u64 = 256 << 20;

impl Index {
    pub fn new(key: Key, layout: Layout, set: &TrajectorySet) -> Self {
        Self {
            format: FORMAT.into(),
            version: VERSION,
            key,
            layout,
            samples: set.len(),
            parameter: set.entry(0).parameter.name.clone(),
            frame_interval: set.frame_interval(),
            trajectories: set.provenance(),
            shards: vec![None; set.len().div_ceil(layout.shard_samples)],
            channels: Vec::new(),
        }
    }

    pub fn path(folder: &Path) -> PathBuf {
        folder.join("index.json")
    }

    /// The second value is the BLAKE3 of the file.
    ///
    /// Errors: 66 when it cannot be read; 65 when it was edited or damaged, or contradicts itself.
    pub fn load(folder: &Path) -> Result<(Self, String)> {
        let path = Self::path(folder);
        let bytes = small::read(&path, MAX_BYTES)?;
        let bad = |what: String| Error::data(format!("{}: {what}", path.display()));
        let index: Self = serde_json::from_slice(&bytes)
            .map_err(|cause| bad(format!("no index of latents: {cause}")))?;
        if index.format != FORMAT || index.version != VERSION {
            return Err(bad(format!("format `{}` version {}", index.format, index.version)));
        }
        let Layout { frames, tokens, rows, dim, shard_samples } = index.layout;
        let sizes = [frames, tokens, dim, shard_samples, 4];
        let size = sizes.iter().try_fold(1usize, |size, n| size.checked_mul(*n));
        if size.is_none_or(|size| size == 0)
            || rows == 0
            || !tokens.is_multiple_of(rows)
            || index.shards.len() != index.samples.div_ceil(shard_samples)
            || index.shards.iter().flatten().any(|shard| shard.moments.len() != dim)
        {
            return Err(bad("its sizes contradict each other".into()));
        }
        seal::require(&path, &bytes, "latent-cache make")?;
        Ok((index, blake3::hash(&bytes).to_hex().to_string()))
    }

    pub fn save(&self, folder: &Path) -> Result<()> {
        let text = seal::sealed(&serde_json::to_string_pretty(self).map_err(Error::bug)?);
        publish_bytes(&Self::path(folder), text.as_bytes())
    }

    /// The shards that are done, with their hashes.
    pub fn shard_files(&self, folder: &Path) -> Vec<InputFile> {
        let done =
            self.shards.iter().enumerate().filter_map(|(i, entry)| Some((i, entry.as_ref()?)));
        let file = |(number, entry): (usize, &ShardEntry)| InputFile {
            path: folder.join(shard_name(number)),
            blake3: entry.blake3.clone(),
            recorded_in: Self::path(folder).display().to_string(),
            remedy: "run `latent-cache make` again, it replaces damaged shards",
        };
        done.map(file).collect()
    }

    /// The trajectories of a shard.
    pub fn samples_of(&self, shard: usize) -> std::ops::Range<usize> {
        let first = shard * self.layout.shard_samples;
        first..self.samples.min(first.saturating_add(self.layout.shard_samples))
    }

    /// Refuses (65) latents of another codec, normalisation or data, and says which it is.
    pub fn require(&self, key: &Key, folder: &Path) -> Result<()> {
        let differs = [
            ("codec", self.key.codec != key.codec),
            ("normalisation", self.key.normalisation != key.normalisation),
            ("split", (&self.key.split, self.key.split_name) != (&key.split, key.split_name)),
            ("data files", self.key.data != key.data),
            ("dtype", self.key.dtype != key.dtype),
        ];
        match differs.into_iter().find(|(_, differs)| *differs) {
            None => Ok(()),
            Some((what, _)) => Err(Error::data(format!(
                "{}: these latents were made with another {what}",
                folder.display()
            ))),
        }
    }

    /// Merges the moments of the shards, in their order.
    pub fn merge_statistics(&mut self) {
        let per_sample = (self.layout.frames * self.layout.tokens) as f64;
        let statistics = |channel: usize| {
            let (mut count, mut mean, mut squares) = (0.0, 0.0, 0.0);
            for (number, shard) in self.shards.iter().enumerate() {
                let Some(shard) = shard else { continue };
                let [other, other_squares] = shard.moments[channel];
                let n = self.samples_of(number).len() as f64 * per_sample;
                let delta = other - mean;
                mean += delta * n / (count + n);
                squares += other_squares + delta * delta * count * n / (count + n);
                count += n;
            }
            ChannelStatistics { mean, std: (squares / count).sqrt() }
        };
        self.channels = (0..self.layout.dim).map(statistics).collect();
    }
}

/// File name of a shard.
pub(super) fn shard_name(shard: usize) -> String {
    format!("shard-{shard:05}.safetensors")
}
