//! Random flips and rotations of a sample: the symmetries of a line, a rectangle, a square, a cuboid and a cube.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tensor::random::Philox;

/// Random symmetries, applied to input and target alike. Nothing is done that is not declared here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Augmentation {
    /// Flip each axis at random.
    pub flips: bool,
    /// Rotate at random by multiples of 90°, in each plane of two axes with equally many points.
    pub rotations: bool,
    /// Vectors among the channels, which are flipped and rotated with the grid. Required for records with flips or
    /// rotations; an empty mapping declares that all channels are scalars.
    // Not serialised when absent, so that an empty mapping in a resolved configuration is always a declaration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vectors: Option<Vectors>,
    /// Train on random windows of the samples: points of the input along each axis; empty for whole samples. Validations
    /// and evaluations use whole samples.
    // Not serialised when empty, so that configurations older than this key keep their hash.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("default" = []))]
    pub crop: Vec<usize>,
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

/// A symmetry of a grid: a permutation of its axes, followed by flips. It has no effect beyond the axes of the grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Symmetry {
    /// Whether each axis is flipped.
    pub flipped: [bool; 3],
    /// `from[axis]` is the original axis that becomes `axis`.
    pub from: [usize; 3],
}

impl Default for Symmetry {
    fn default() -> Self {
        Self { flipped: [false; 3], from: [0, 1, 2] }
    }
}

/// All permutations of three axes, the even ones first. The first of each half leaves the last axis in place.
const ORDERS: [[usize; 3]; 6] = [[0, 1, 2], [1, 2, 0], [2, 0, 1], [1, 0, 2], [2, 1, 0], [0, 2, 1]];

impl Augmentation {
    /// Draws the symmetry of sample `place` of a micro-batch on `grid`.
    pub(super) fn draw(&self, random: &Philox, place: u64, grid: &[usize]) -> Symmetry {
        let bits = random.below(place, 0, 8);
        let bit = |n: usize| bits >> n & 1 == 1;
        let there = |axis: usize| axis < grid.len();
        let same = |order: &[usize; 3]| {
            let equal = |axis: usize| there(axis) && grid.get(axis) == grid.get(order[axis]);
            (0..3).all(|axis| axis == order[axis] || equal(axis))
        };
        let orders: Vec<[usize; 3]> =
            ORDERS.into_iter().filter(|order| self.rotations && same(order)).collect();
        let chosen = match orders.len() {
            0 | 1 => 0,
            // A square needs no further random bits.
            2 if !there(2) => usize::from(bit(2)),
            count => random.below(place, 1, count as u64) as usize,
        };
        let from = orders.get(chosen).copied().unwrap_or(ORDERS[0]);
        let mut flipped = [0, 1, 2].map(|axis| there(axis) && bit(axis));
        if !self.flips {
            // Rotations only: flip only axes that rotations move, with the same parity as the permutation.
            let turns = |axis: usize| orders.iter().any(|order| order[axis] != axis);
            flipped = [0, 1, 2].map(|axis| flipped[axis] && turns(axis));
            if let Some(last) = (0..3).rev().find(|axis| turns(*axis)) {
                let odd = ORDERS[3..].contains(&from);
                let others =
                    flipped.iter().enumerate().filter(|(axis, one)| **one && *axis != last);
                flipped[last] = (others.count() % 2 == 1) != odd;
            }
        }
        Symmetry { flipped, from }
    }

    /// Returns the violation in the vectors of `name` for this grid and number of channels, if any.
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
    /// Applies the symmetry to a field [x.., channels] on a `grid` of one to three axes, and to the field's vectors.
    pub fn apply(self, field: &mut [f32], grid: &[usize], vectors: &[Vec<usize>]) {
        if self == Self::default() {
            return;
        }
        let channels = field.len() / grid.iter().product::<usize>();
        let mut steps = [channels; 3];
        for axis in (1..grid.len()).rev() {
            steps[axis - 1] = steps[axis] * grid[axis];
        }
        let old = field.to_vec();
        for (at, point) in field.chunks_exact_mut(channels).enumerate() {
            let (mut rest, mut from) = (at, 0);
            for (axis, n) in grid.iter().enumerate().rev() {
                let place = if self.flipped[axis] { n - 1 - rest % n } else { rest % n };
                from += place * steps[self.from[axis]];
                rest /= n;
            }
            let own = &old[from..][..channels];
            point.copy_from_slice(own);
            for vector in vectors {
                for (axis, to) in vector.iter().enumerate() {
                    let sign = if self.flipped[axis] { -1.0 } else { 1.0 };
                    point[*to] = sign * own[vector[self.from[axis]]];
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// A transformed gradient is the gradient of the transformed field, for all 8 symmetries of a square and all 48 of a
    /// cube.
    #[test]
    fn vectors_transform_like_gradients() {
        const N: usize = 5;
        for axes in [1, 2, 3] {
            let grid = vec![N; axes];
            let points = N.pow(axes as u32);
            // Periodic central differences along each axis.
            let gradient = |u: &[f32]| -> Vec<f32> {
                let difference = |at: usize, axis: usize| {
                    let step = N.pow((axes - 1 - axis) as u32);
                    let place = at / step % N;
                    let to = |next: usize| u[at - place * step + (place + next) % N * step];
                    to(1) - to(N - 1)
                };
                let each = |at: usize| {
                    std::iter::once(u[at]).chain((0..axes).map(move |axis| difference(at, axis)))
                };
                (0..points).flat_map(each).collect()
            };
            let u: Vec<f32> = (0..points).map(|i| ((i * i * i + 3 * i) % 31) as f32).collect();
            let vector: Vec<usize> = (1..=axes).collect();
            let mut results = HashSet::new();
            for from in ORDERS.into_iter().filter(|order| (axes..3).all(|i| order[i] == i)) {
                for bits in 0..1 << axes {
                    let flipped = [0, 1, 2].map(|axis| bits >> axis & 1 == 1);
                    let symmetry = Symmetry { flipped, from };
                    let mut field = gradient(&u);
                    symmetry.apply(&mut field, &grid, std::slice::from_ref(&vector));
                    let moved: Vec<f32> = field.iter().step_by(axes + 1).copied().collect();
                    assert_eq!(field, gradient(&moved), "{symmetry:?}");
                    results.insert(format!("{moved:?}"));
                }
            }
            assert_eq!(results.len(), [2, 8, 48][axes - 1]);
        }
    }

    #[test]
    fn draws_are_exactly_the_symmetries_that_are_asked_for() {
        let random = Philox::new(3, tensor::random::Purpose::Augmentation);
        for (flips, rotations, grid, count) in [
            (true, true, &[5][..], 2),
            (false, true, &[5], 1),
            (true, false, &[4, 4], 4),
            (false, true, &[4, 4], 4),
            (true, true, &[4, 4], 8),
            (false, true, &[4, 5], 1),
            (true, false, &[4, 4, 4], 8),
            (false, true, &[4, 4, 4], 24),
            (true, true, &[4, 4, 4], 48),
            (false, true, &[5, 4, 4], 4),
            (false, true, &[4, 5, 4], 4),
            (true, true, &[4, 4, 5], 16),
            (false, true, &[3, 4, 5], 1),
        ] {
            let augmentation = Augmentation { flips, rotations, ..Augmentation::default() };
            let draw = |place| augmentation.draw(&random, place, grid);
            let found: HashSet<Symmetry> = (0..1000).map(draw).collect();
            assert_eq!(found.len(), count, "{flips} {rotations} {grid:?}");
            for symmetry in &found {
                let odd = ORDERS[3..].contains(&symmetry.from);
                let flipped = symmetry.flipped.iter().filter(|one| **one).count() % 2 == 1;
                // The determinant of a rotation is 1.
                assert!(flips || odd == flipped, "{grid:?}: {symmetry:?}");
            }
        }
    }
}
