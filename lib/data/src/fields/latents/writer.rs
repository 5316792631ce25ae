//! Making a latent store, shard by shard; what is there and whole is kept.

use super::index::{Index, Key, Layout, ShardEntry, shard_name};
use super::shard::{encode, moments};
use crate::fields::field::Shape;
use crate::fields::split_set::TrajectorySet;
use std::path::Path;
use unix::publish::{create_folder, hash_file, publish_bytes};
use unix::{Context, Error, Exit, Result};

/// Trajectories for the codec to encode.
#[derive(Debug)]
pub struct TrajectoryBatch<'a> {
    /// Number of the first in the set.
    pub first: usize,
    /// [trajectories, frames, grid…, channels].
    pub values: &'a [f32],
    /// Sizes of `values`.
    pub shape: Shape,
    /// Parameter of each trajectory.
    pub parameters: &'a [f64],
}

/// What a call of [`write_latents`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Made {
    /// Shards that were whole already.
    pub kept: usize,
    /// Shards that were made.
    pub made: usize,
}

/// Encodes all trajectories of `set` into the store `folder`, `batch` trajectories at a time.
///
/// `encode_batch` returns [trajectories, frames, tokens, dim] for a batch. When it fails, the shards
/// made so far stay, and the next call goes on after them. A shard whose size or content is not what
/// the index says is made again.
///
/// Latents of another key or layout are stale and made again. Errors: 65 for latents that are not
/// finite; 70 for a wrong number of latents; 73, 74 for the disk; and what `encode_batch` says.
pub fn write_latents(
    folder: &Path,
    key: &Key,
    layout: Layout,
    set: &TrajectorySet,
    batch: usize,
    mut encode_batch: impl FnMut(&TrajectoryBatch) -> Result<Vec<f32>>,
) -> Result<Made> {
    if set.is_empty() || layout.shard_samples == 0 || layout.sample_len() == 0 || batch == 0 {
        return Err(Error::data(format!("no latents: {} trajectories, {layout}", set.len())));
    }
    let mut index = begin(folder, key, layout, set)?;
    let mut done = Made { kept: 0, made: 0 };
    for number in 0..index.shards.len() {
        let path = folder.join(shard_name(number));
        if index.shards[number].as_ref().is_some_and(|entry| is_whole(&path, entry)) {
            done.kept += 1;
            continue;
        }
        let samples = index.samples_of(number);
        let mut latents = Vec::with_capacity(samples.len() * layout.sample_len());
        let mut parameters = Vec::with_capacity(samples.len());
        for first in samples.clone().step_by(batch) {
            let count = batch.min(samples.end - first);
            let encoded = encode_some(set, first, count, &mut parameters, &mut encode_batch)
                .context(|| format!("latents of trajectory {first} and on"))?;
            require_latents(&encoded, count * layout.sample_len(), first)?;
            latents.extend(encoded);
        }
        let bytes = encode(&layout, &latents, &parameters);
        publish_bytes(&path, &bytes)?;
        index.shards[number] = Some(ShardEntry {
            bytes: bytes.len() as u64,
            blake3: blake3::hash(&bytes).to_hex().to_string(),
            moments: moments(&latents, layout.dim),
        });
        index.save(folder)?;
        done.made += 1;
    }
    index.merge_statistics();
    index.save(folder)?;
    Ok(done)
}

/// The index to go on with: the one in the folder, or a new one where there is none or it is stale.
/// Latents can always be made again, and who has mapped the old ones keeps them.
fn begin(folder: &Path, key: &Key, layout: Layout, set: &TrajectorySet) -> Result<Index> {
    let samples = set.len();
    create_folder(folder)?;
    if Index::path(folder).exists() {
        match Index::load(folder)
            .and_then(|(index, hash)| index.require(key, folder).map(|()| (index, hash)))
        {
            Ok((index, _)) if (index.layout, index.samples) == (layout, samples) => {
                return Ok(index);
            }
            Ok((index, _)) => unix::note!(
                "{}: made for {} trajectories of {}, now {samples} of {layout}: made again",
                folder.display(),
                index.samples,
                index.layout
            ),
            Err(error) if error.exit == Exit::Data => unix::note!("{error}: made again"),
            Err(error) => return Err(error),
        }
    }
    let bytes = 4 * (samples * layout.sample_len()) as u64;
    unix::space::ensure_space(&Index::path(folder), bytes)?;
    // Published before any shard is: what an older index vouched for is not trusted from here on.
    let index = Index::new(key.clone(), layout, set);
    index.save(folder)?;
    Ok(index)
}

fn is_whole(path: &Path, entry: &ShardEntry) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.len() == entry.bytes)
        && hash_file(path).is_ok_and(|hash| hash == entry.blake3)
}

fn encode_some(
    set: &TrajectorySet,
    first: usize,
    count: usize,
    parameters: &mut Vec<f64>,
    encode_batch: &mut impl FnMut(&TrajectoryBatch) -> Result<Vec<f32>>,
) -> Result<Vec<f32>> {
    let length = set.shape().trajectory_len();
    let mut values = vec![0.0; count * length];
    for (i, values) in values.chunks_exact_mut(length).enumerate() {
        set.read(first + i, values)?;
        parameters.push(set.entry(first + i).parameter.value);
    }
    encode_batch(&TrajectoryBatch {
        first,
        values: &values,
        shape: Shape { trajectories: count, ..set.shape().clone() },
        parameters: &parameters[parameters.len() - count..],
    })
}

fn require_latents(latents: &[f32], expected: usize, first: usize) -> Result<()> {
    if latents.len() != expected {
        return Err(Error::bug(format!(
            "the codec gave {} numbers for the trajectories from {first} on, not {expected}",
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
