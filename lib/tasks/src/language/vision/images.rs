//! Images as tensors, and the places of their features in sequences.

use super::config::VisionConfig;
use super::positions::{Grid, Placed, of_patches, place};
use crate::language::batch::Labelled;
use tensor::{Dtype, Tensor};
use unix::{Error, Result};

/// The images of a sequence, in the order of their tokens.
#[derive(Clone, Copy, Debug, Default)]
pub struct Images<'a> {
    /// The patches of each image.
    pub grids: &'a [Grid],
    /// Values of one frame of each patch, [patches of all images, 3·patch_size²]: colour by colour and row by row. Patches are in
    /// the order in which they are merged.
    pub values: &'a [f32],
}

/// The positions of the tokens of each sequence. Errors: 65 when the image tokens of a sequence are not those of its images.
pub(in crate::language) fn placed(
    config: &VisionConfig,
    sequences: &[Labelled],
) -> Result<Vec<Placed>> {
    let of = |(number, own): (usize, &Labelled)| {
        let bad =
            |what: String| Error::data(format!("sequence {number} of a batch (from 0): {what}"));
        let merge = config.spatial_merge_size;
        let token = config.image_token_id as i32;
        let placed = place(own.ids, token, own.images.grids, merge).map_err(bad)?;
        // No more than the tokens now permit.
        let patches: usize = own.images.grids.iter().map(|grid| grid.patches()).sum();
        let (given, needed) = (own.images.values.len(), patches * config.patch_values());
        match given == needed {
            true => Ok(placed),
            false => Err(bad(format!(
                "{patches} patches of 3 x {0} x {0} values are {needed}, but there are {given}",
                config.patch_size
            ))),
        }
    };
    sequences.iter().enumerate().map(of).collect()
}

/// The tensors of the images of sequences that [`placed`] accepts, padded to `width` tokens, and to the patches of the largest
/// image; floating-point ones in `dtype`. Names and shapes: see [`Language::batch`](crate::language::Language::batch).
pub(in crate::language) fn tensors(
    config: &VisionConfig,
    sequences: &[Labelled],
    width: usize,
    dtype: Dtype,
) -> [(&'static str, Tensor); 7] {
    let (count, per_patch) = (sequences.len(), config.patch_values());
    let merged = config.spatial_merge_size * config.spatial_merge_size;
    let grids: Vec<Grid> = sequences.iter().flat_map(|own| own.images.grids).copied().collect();
    let most = grids.iter().map(|grid| grid.patches()).max().unwrap_or(0);
    let mut values = vec![0.0_f32; grids.len() * most * per_patch];
    let (mut rows, mut features, mut image) = (Vec::new(), Vec::new(), 0);
    for (b, own) in sequences.iter().enumerate() {
        // The rows of the features of the images of this sequence.
        let mut found = Vec::new();
        let mut rest = own.images.values;
        for grid in own.images.grids {
            let (first, others) = rest.split_at(grid.patches() * per_patch);
            values[image * most * per_patch..][..first.len()].copy_from_slice(first);
            rest = others;
            let first = image * most / merged;
            found.extend(first..first + grid.patches() / merged);
            image += 1;
        }
        let mut found = found.into_iter();
        for t in 0..width {
            let is_image = own.ids.get(t) == Some(&(config.image_token_id as i32));
            let row = if is_image { found.next() } else { None };
            rows.push(row.map_or(b * width + t, |row| count * width + row) as i32);
            features.push(row.map_or(0, |row| row as i32 + 1));
        }
    }
    let [angles, around, weights, counts] = of_patches(&grids, config, dtype);
    let values = Tensor::from_slice(&values, &[grids.len(), most, per_patch]).to_dtype(dtype);
    [
        ("patches", values),
        ("patch_angles", angles),
        ("patch_positions", around),
        ("patch_weights", weights),
        ("patch_counts", counts),
        ("image_rows", Tensor::from_slice(&rows, &[count * width])),
        ("image_features", Tensor::from_slice(&features, &[count * width])),
    ]
}
