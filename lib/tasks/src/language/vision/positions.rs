//! Positions of patches in an image, and of tokens in a sequence with images.

use super::config::VisionConfig;
use tensor::{Dtype, Tensor};

/// The base of the frequencies by which a vision tower rotates queries and keys.
const THETA: f64 = 1e4;

/// The patches of an image, both numbers multiples of `spatial_merge_size`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Rows of patches.
    pub rows: usize,
    /// Patches in a row.
    pub columns: usize,
}

impl Grid {
    /// Number of patches.
    pub fn patches(self) -> usize {
        self.rows * self.columns
    }

    /// Row and column of each patch, in the order in which they are merged: squares of `merge`² patches row by row, and row by
    /// row within each square.
    pub(super) fn places(self, merge: usize) -> impl Iterator<Item = [usize; 2]> {
        let squares = self.columns / merge;
        (0..self.patches()).map(move |i| {
            let (square, inside) = (i / (merge * merge), i % (merge * merge));
            [square / squares * merge + inside / merge, square % squares * merge + inside % merge]
        })
    }

    /// The rows of the table of learned positions between which each patch lies, and their weights: bilinear interpolation of
    /// a square grid whose corners are those of the image.
    pub(super) fn interpolation(
        self,
        config: &VisionConfig,
    ) -> impl Iterator<Item = [(i32, f64); 4]> {
        let side = config.positions_per_side();
        // Position, the next one, and the weight of the next one.
        let along = move |at: usize, count: usize| {
            let place = (at * (side - 1)) as f64 / (count.max(2) - 1) as f64;
            let first = place.floor() as usize;
            (first, (first + 1).min(side - 1), place - first as f64)
        };
        self.places(config.spatial_merge_size).map(move |[row, column]| {
            let (top, bottom, down) = along(row, self.rows);
            let (left, right, aside) = along(column, self.columns);
            let number = |row: usize, column: usize| (row * side + column) as i32;
            [
                (number(top, left), (1.0 - down) * (1.0 - aside)),
                (number(top, right), (1.0 - down) * aside),
                (number(bottom, left), down * (1.0 - aside)),
                (number(bottom, right), down * aside),
            ]
        })
    }

    /// Cosines and sines of the angles of each patch, [patches, D] for heads of D features: a quarter of the features turns with
    /// the row and a quarter with the column.
    pub(super) fn angles(self, config: &VisionConfig) -> impl Iterator<Item = Vec<f64>> {
        let quarter = config.head_size() / 4;
        self.places(config.spatial_merge_size).map(move |place| {
            let frequency = |k: usize| THETA.powf(-(k as f64) / quarter as f64);
            let of =
                |at: &usize| (0..quarter).map(|k| *at as f64 * frequency(k)).collect::<Vec<_>>();
            let angles: Vec<f64> = place.iter().flat_map(of).collect();
            let cosines = angles.iter().map(|angle| angle.cos());
            cosines.chain(angles.iter().map(|angle| angle.sin())).collect()
        })
    }
}

/// Where the tokens of a sequence stand.
#[derive(Clone, Debug, PartialEq)]
pub struct Placed {
    /// Position of each token: time, height and width.
    pub positions: Vec<[i32; 3]>,
    /// What the next token has on all axes.
    pub next: i32,
}

/// Places the tokens of a sequence (Wang et al. 2024, "Qwen2-VL", §2.1). Tokens of text count up on all axes. Each run of tokens
/// `image_token` is an image, whose tokens share the time and have the height and width of their place; the text after it begins
/// beyond the largest of them.
///
/// Errors: how the image tokens differ from those of images with these `grids`, of which `merge`² patches become one token.
pub fn place(
    ids: &[i32],
    image_token: i32,
    grids: &[Grid],
    merge: usize,
) -> Result<Placed, String> {
    let (mut positions, mut next, mut images) = (Vec::with_capacity(ids.len()), 0, 0);
    while positions.len() < ids.len() {
        let at = positions.len();
        if ids[at] != image_token {
            positions.push([next; 3]);
            next += 1;
            continue;
        }
        let Some(&Grid { rows, columns }) = grids.get(images) else {
            return Err(format!("token {at} is one of an image, but there are {images} images"));
        };
        if rows % merge > 0 || columns % merge > 0 || rows == 0 || columns == 0 {
            return Err(format!(
                "image {images} has {rows} x {columns} patches, which are not squares of {merge} x {merge}"
            ));
        }
        let (rows, columns) = (rows / merge, columns / merge);
        let tokens = ids[at..].iter().take_while(|id| **id == image_token).count();
        // A run may be that of several images.
        if rows.checked_mul(columns).is_none_or(|own| own > tokens) {
            return Err(format!(
                "image {images} has {rows} x {columns} tokens, but there are {tokens} image tokens from token {at} on"
            ));
        }
        let cells = (0..rows).flat_map(|row| (0..columns).map(move |column| [row, column]));
        positions
            .extend(cells.map(|[row, column]| [next, next + row as i32, next + column as i32]));
        next += rows.max(columns) as i32;
        images += 1;
    }
    match images == grids.len() {
        true => Ok(Placed { positions, next }),
        false => Err(format!("there are {} images, but the tokens of {images}", grids.len())),
    }
}

/// The tensors of images, padded to the patches of the largest: [N, P, D] angles, i32 [N, P, 4] and [N, P, 4] rows of the table
/// of learned positions and their weights, and i32 [N] the number of patches; floating-point ones in `dtype`.
pub(super) fn of_patches(grids: &[Grid], config: &VisionConfig, dtype: Dtype) -> [Tensor; 4] {
    let most = grids.iter().map(|grid| grid.patches()).max().unwrap_or(0);
    let (mut angles, mut rows, mut weights) = (Vec::new(), Vec::new(), Vec::new());
    for (i, grid) in grids.iter().enumerate() {
        angles.extend(grid.angles(config).flatten());
        for (row, weight) in grid.interpolation(config).flatten() {
            rows.push(row);
            weights.push(weight);
        }
        angles.resize((i + 1) * most * config.head_size(), 0.0);
        rows.resize((i + 1) * most * 4, 0);
        weights.resize((i + 1) * most * 4, 0.0);
    }
    let counts: Vec<i32> = grids.iter().map(|grid| grid.patches() as i32).collect();
    let n = grids.len();
    [
        Tensor::from_slice(&angles, &[n, most, config.head_size()]).to_dtype(dtype),
        Tensor::from_slice(&rows, &[n, most, 4]),
        Tensor::from_slice(&weights, &[n, most, 4]).to_dtype(dtype),
        Tensor::from_slice(&counts, &[n]),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the documentation of transformers, and what does not fit.
    #[test]
    fn tokens_of_images_have_the_position_of_their_place() {
        let ids = [1, 1, 1, 9, 9, 9, 9, 9, 9, 1, 1, 1];
        let grid = Grid { rows: 4, columns: 6 };
        let placed = place(&ids, 9, &[grid], 2).unwrap();
        let on = |axis: usize| placed.positions.iter().map(|p| p[axis]).collect::<Vec<_>>();
        assert_eq!(on(0), [0, 1, 2, 3, 3, 3, 3, 3, 3, 6, 7, 8]);
        assert_eq!(on(1), [0, 1, 2, 3, 3, 3, 4, 4, 4, 6, 7, 8]);
        assert_eq!(on(2), [0, 1, 2, 3, 4, 5, 3, 4, 5, 6, 7, 8]);
        assert_eq!(placed.next, 9);
        let odd = Grid { rows: 3, columns: 8 };
        for (ids, grids, what) in [
            (&ids[..], &[][..], "token 3 is one of an image, but there are 0 images"),
            (&ids, &[grid, grid], "there are 2 images, but the tokens of 1"),
            (&ids[..8], &[grid], "2 x 3 tokens, but there are 5 image tokens from token 3 on"),
            (&ids, &[odd], "image 0 has 3 x 8 patches, which are not squares of 2 x 2"),
        ] {
            let error = place(ids, 9, grids, 2).unwrap_err();
            assert!(error.contains(what), "{error}");
        }
        // Two images without text between them.
        let two = place(
            &[9, 9, 9, 1],
            9,
            &[Grid { rows: 2, columns: 2 }, Grid { rows: 4, columns: 2 }],
            2,
        );
        let two = two.unwrap();
        assert_eq!(two.positions, [[0, 0, 0], [1, 1, 1], [1, 2, 1], [3, 3, 3]]);
    }

    #[test]
    fn patches_are_ordered_by_the_squares_that_become_tokens() {
        let places: Vec<_> = Grid { rows: 2, columns: 4 }.places(2).collect();
        let expected = [[0, 0], [0, 1], [1, 0], [1, 1], [0, 2], [0, 3], [1, 2], [1, 3]];
        assert_eq!(places, expected);
    }
}
