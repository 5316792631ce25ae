//! Trajectories told apart by what is in them.

use crate::field::{Field, Shape};
use rayon::prelude::*;
use std::path::Path;
use unix::Result;

/// What tells a trajectory from all others before anything is solved: the input of a steady problem, else
/// the first frame. `frame` is the first frame, [grid…, channels]. When all its points are equal it tells
/// nothing (a fluid at rest), and the `name` of the trajectory takes its place.
pub(crate) fn begin(
    shape: &Shape,
    inputs: usize,
    frame: &[f32],
    name: (&Path, usize),
) -> blake3::Hash {
    let width = if shape.frames > 1 || inputs == 0 { shape.channels } else { inputs };
    let points = frame.chunks_exact(shape.channels).map(|point| &point[..width]);
    let mut hasher = blake3::Hasher::new();
    if points.clone().all(|point| point == &frame[..width]) {
        hasher.update(name.0.as_os_str().as_encoded_bytes());
        hasher.update(&name.1.to_le_bytes());
    } else if width == shape.channels {
        hasher.update(bytemuck::cast_slice(frame));
    } else {
        points.for_each(|point| {
            hasher.update(bytemuck::cast_slice(point));
        });
    }
    hasher.finalize()
}

/// [`begin`] of every trajectory of a file.
pub(crate) fn begins(field: &Field) -> Result<Vec<blake3::Hash>> {
    let shape = field.shape();
    (0..shape.trajectories)
        .into_par_iter()
        .map_init(
            || vec![0.0; shape.frame_len()],
            |frame, trajectory| {
                field.read_frames(trajectory, 0..1, frame)?;
                Ok(begin(shape, field.inputs(), frame, (field.path(), trajectory)))
            },
        )
        .collect()
}
