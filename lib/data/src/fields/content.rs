//! Identifies trajectories by their content.

use crate::fields::field::{Field, Shape};
use crate::split::GroupBy;
use blake3::Hasher;
use rayon::prelude::*;
use std::path::Path;
use unix::Result;

/// Number of values that are copied at a time for hashing.
const BLOCK: usize = 1024;

/// Adds `values` to a hash. Values that compare equal hash equally: -0.0 is hashed as 0.0.
pub(crate) fn hash_values(hasher: &mut Hasher, values: &[f32]) {
    let mut buffer = [0.0; BLOCK];
    for block in values.chunks(BLOCK) {
        let buffer = &mut buffer[..block.len()];
        buffer.iter_mut().zip(block).for_each(|(to, value)| *to = value + 0.0);
        hasher.update(bytemuck::cast_slice(buffer));
    }
}

/// Hashes the data that determine the solution: the inputs of a steady problem, otherwise the first frame. `frame` is
/// the first frame, [grid…, channels].
///
/// Returns `None` if all finite points are equal or no point is finite: a fluid at rest or a frame of NaN does not
/// identify a trajectory.
pub(crate) fn initial_state(shape: &Shape, inputs: usize, frame: &[f32]) -> Option<blake3::Hash> {
    let width = if shape.frames > 1 || inputs == 0 { shape.channels } else { inputs };
    let points = frame.chunks_exact(shape.channels).map(|point| &point[..width]);
    let mut finite = points.clone().filter(|point| point.iter().all(|value| value.is_finite()));
    let first = finite.next()?;
    if finite.all(|point| point == first) {
        return None;
    }
    let mut hasher = Hasher::new();
    if width == shape.channels {
        hash_values(&mut hasher, frame);
    } else {
        hash_values(&mut hasher, &points.flatten().copied().collect::<Vec<f32>>());
    }
    Some(hasher.finalize())
}

/// Returns [`initial_state`], or a hash of the trajectory's `name` (file and index) if the first frame does not
/// identify it.
pub(crate) fn begin(
    shape: &Shape,
    inputs: usize,
    frame: &[f32],
    name: (&Path, usize),
) -> blake3::Hash {
    initial_state(shape, inputs, frame).unwrap_or_else(|| {
        let mut hasher = Hasher::new();
        hasher.update(name.0.as_os_str().as_encoded_bytes());
        hasher.update(&name.1.to_le_bytes());
        hasher.finalize()
    })
}

/// Computes the key of a trajectory from its frames. Trajectories with equal keys must be in the same split.
pub(crate) enum GroupKey {
    /// The initial state is the key.
    State(blake3::Hash),
    /// The key is a hash of all frames.
    Content(Box<Hasher>),
}

impl GroupKey {
    /// Starts a key. `frames` holds at least the first frame; pass these and all remaining frames to
    /// [`update`](Self::update).
    pub fn new(by: GroupBy, shape: &Shape, inputs: usize, frames: &[f32]) -> Self {
        let state = match by {
            GroupBy::State => initial_state(shape, inputs, &frames[..shape.frame_len()]),
            GroupBy::Content => None,
        };
        state.map_or_else(|| Self::Content(Box::default()), Self::State)
    }

    /// Adds frames, in order.
    pub fn update(&mut self, frames: &[f32]) {
        if let Self::Content(hasher) = self {
            hash_values(hasher, frames);
        }
    }

    /// Returns the key.
    pub fn finish(&self) -> blake3::Hash {
        match self {
            Self::State(hash) => *hash,
            Self::Content(hasher) => hasher.finalize(),
        }
    }
}

/// Computes the [`GroupKey`] of each trajectory in a file. Reads only the first frames where these suffice.
pub(crate) fn group_keys(field: &Field, by: GroupBy) -> Result<Vec<blake3::Hash>> {
    let shape = field.shape();
    (0..shape.trajectories)
        .into_par_iter()
        .map_init(Vec::new, |buffer, trajectory| {
            buffer.resize(shape.frame_len(), 0.0);
            field.read_frames(trajectory, 0..1, buffer)?;
            let mut key = GroupKey::new(by, shape, field.inputs(), buffer);
            if matches!(key, GroupKey::Content(_)) {
                for frames in shape.frame_blocks() {
                    buffer.resize(frames.len() * shape.frame_len(), 0.0);
                    field.read_frames(trajectory, frames, buffer)?;
                    key.update(buffer);
                }
            }
            Ok(key.finish())
        })
        .collect()
}
