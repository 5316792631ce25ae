//! Random flips and rotations of a sample: the symmetries of a line and of a square.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tensor::random::Philox;

/// Random symmetries, applied to input and target alike. Nothing is done that is not declared here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Augmentation {
    /// Flip each axis at random.
    pub flips: bool,
    /// Rotate square grids by a random multiple of 90°.
    pub rotations: bool,
    /// Vectors among the channels, which are flipped and rotated with the grid.
    pub vectors: Vectors,
}

/// Channels that are the components of a vector, one for each axis of the grid, in the order of the axes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Vectors {
    /// Lists of channels of the input.
    pub input: Vec<Vec<usize>>,
    /// Lists of channels of the target.
    pub target: Vec<Vec<usize>>,
}

/// A symmetry of a line or of a square: axes that are flipped, after they were swapped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Symmetry {
    /// Which axes are flipped.
    pub flipped: [bool; 2],
    /// Whether both axes are swapped.
    pub swapped: bool,
}

impl Augmentation {
    /// The symmetry of sample `place` of a micro-batch on `grid`.
    pub(super) fn draw(&self, random: &Philox, place: u64, grid: &[usize]) -> Symmetry {
        let bits = random.below(place, 0, 8);
        let bit = |n: u32| bits >> n & 1 == 1;
        let square = matches!(grid, [a, b] if a == b);
        let swapped = self.rotations && square && bit(2);
        match (self.flips, self.rotations && square) {
            (true, _) => Symmetry { flipped: [bit(0), grid.len() > 1 && bit(1)], swapped },
            // Rotations alone: an odd number of flips with a swap, an even number without.
            (false, true) => Symmetry { flipped: [bit(0), bit(0) != swapped], swapped },
            (false, false) => Symmetry::default(),
        }
    }

    /// What is wrong with the vectors of `name` for this grid and number of channels, if anything.
    pub(super) fn violation(
        vectors: &[Vec<usize>],
        name: &str,
        grid: &[usize],
        channels: usize,
    ) -> Option<String> {
        let wrong = vectors.iter().find(|vector| {
            vector.len() != grid.len() || vector.iter().any(|channel| *channel >= channels)
        })?;
        Some(format!(
            "data.augmentation.vectors.{name}: {wrong:?} must name {} channels below {channels}, one for each axis",
            grid.len()
        ))
    }
}

impl Symmetry {
    /// Applies it to a field [x.., channels] on `grid` of one or two axes, and to its vectors.
    pub fn apply(self, field: &mut [f32], grid: &[usize], vectors: &[Vec<usize>]) {
        if self == Self::default() {
            return;
        }
        let (rows, columns) = match grid {
            [rows, columns] => (*rows, *columns),
            [points] => (*points, 1),
            _ => return,
        };
        let channels = field.len() / (rows * columns);
        let old = field.to_vec();
        let flip = |flipped: bool, at: usize, n: usize| if flipped { n - 1 - at } else { at };
        for (at, point) in field.chunks_exact_mut(channels).enumerate() {
            let row = flip(self.flipped[0], at / columns, rows);
            let column = flip(self.flipped[1], at % columns, columns);
            let from = if self.swapped { column * columns + row } else { row * columns + column };
            let own = &old[from * channels..][..channels];
            point.copy_from_slice(own);
            for vector in vectors {
                for (axis, to) in vector.iter().enumerate() {
                    let source = if self.swapped { vector.len() - 1 - axis } else { axis };
                    let sign = if self.flipped[axis] { -1.0 } else { 1.0 };
                    point[*to] = sign * own[vector[source]];
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A rotated gradient is the gradient of the rotated field.
    #[test]
    fn vectors_transform_like_gradients() {
        const N: usize = 6;
        let f = |i: usize, j: usize| ((3 * i + 7 * j + i * j * j) % 11) as f32;
        let gradient = |u: &dyn Fn(usize, usize) -> f32| -> Vec<f32> {
            // Centred differences, periodic.
            let each = |at: usize| {
                let (i, j) = (at / N, at % N);
                let dx = u((i + 1) % N, j) - u((i + N - 1) % N, j);
                [u(i, j), dx, u(i, (j + 1) % N) - u(i, (j + N - 1) % N)]
            };
            (0..N * N).flat_map(each).collect()
        };
        for bits in 0..8 {
            let symmetry =
                Symmetry { flipped: [bits & 1 == 1, bits & 2 == 2], swapped: bits & 4 == 4 };
            let mut field = gradient(&f);
            symmetry.apply(&mut field, &[N, N], &[vec![1, 2]]);
            let moved: Vec<f32> = field.iter().step_by(3).copied().collect();
            assert_eq!(field, gradient(&|i, j| moved[i * N + j]), "{symmetry:?}");
        }
        let mut line = [1.0, 10.0, 2.0, 20.0, 3.0, 30.0];
        let flip = Symmetry { flipped: [true, false], swapped: false };
        flip.apply(&mut line, &[3], &[vec![1]]);
        assert_eq!(line, [3.0, -30.0, 2.0, -20.0, 1.0, -10.0]);
    }

    #[test]
    fn rotations_alone_are_the_four_rotations() {
        let rotations = Augmentation { rotations: true, ..Augmentation::default() };
        let random = Philox::new(3, tensor::random::Purpose::Augmentation);
        let mut found = std::collections::HashSet::new();
        for place in 0..200 {
            let symmetry = rotations.draw(&random, place, &[4, 4]);
            // The determinant of a rotation is 1.
            let odd = [symmetry.flipped[0], symmetry.flipped[1], symmetry.swapped];
            assert!(odd.iter().filter(|one| **one).count() % 2 == 0, "{symmetry:?}");
            found.insert(format!("{symmetry:?}"));
            assert_eq!(rotations.draw(&random, place, &[4, 5]), Symmetry::default());
        }
        assert_eq!(found.len(), 4);
    }
}
