//! Linear baselines: least-squares maps from the input around a point to its target, fitted to the training split.

use crate::common::cholesky::Cholesky;
use data::records::{RecordSet, ValueShape};
use rayon::prelude::*;
use unix::{Error, Result};

/// Maximum number of features of a linear map; the work grows with its square.
const MAX_FEATURES: usize = 1500;
/// Maximum number of points to which a map is fitted; they are spread evenly over the training split.
const MAX_POINTS: usize = 200_000;
/// Number of points per partial sum.
const BLOCK: usize = 1024;
/// Added to the diagonal of the normal equations, relative to its mean, because constant inputs make them singular.
const RIDGE: f64 = 1e-10;

/// A linear map with an intercept.
#[derive(Clone, Debug)]
pub(super) struct Linear {
    sides: [ValueShape; 2],
    /// Radius of the stencil along each axis, in points, with zero padding; `None`: the whole input.
    radius: Option<usize>,
    /// [features + 1, channels of the target]; the last row is the intercept.
    weights: Vec<f64>,
}

impl Linear {
    /// Fits the map; returns None if it would have more than [`MAX_FEATURES`] features, or the grids differ.
    ///
    /// Errors: 65 when the normal equations cannot be solved because the values differ too much in magnitude.
    pub fn fit(train: &RecordSet, radius: Option<usize>) -> Result<Option<Self>> {
        let [input, target] = train.sides();
        let local = radius.is_some();
        if local == target.grid.is_empty() || local && input.grid != target.grid {
            return Ok(None);
        }
        let mut map = Self { sides: train.sides().clone(), radius, weights: Vec::new() };
        let (features, outputs) = (map.features() + 1, target.channels);
        if features > MAX_FEATURES {
            return Ok(None);
        }
        let points = map.points();
        let all = train.len() * points;
        // An odd stride covers all columns of a grid.
        let stride = all.div_ceil(MAX_POINTS) | 1;
        let chosen: Vec<usize> = (0..all).step_by(stride).collect();
        let width = features + outputs;
        // Sums of φ·[φ, t] over the points.
        let block = |points_of: &[usize]| -> Vec<f64> {
            let mut sums = vec![0.0; features * width];
            let mut row = vec![0.0; width];
            for at in points_of {
                let (record, point) = (at / points, at % points);
                map.row(train.input(record), point, &mut row);
                let own = &train.target(record)[point * outputs..][..outputs];
                row[features..].iter_mut().zip(own).for_each(|(to, t)| *to = f64::from(*t));
                for (i, sums) in sums.chunks_exact_mut(width).enumerate() {
                    let factor = row[i];
                    sums.iter_mut().zip(&row).for_each(|(sum, x)| *sum += factor * x);
                }
            }
            sums
        };
        let mut sums = vec![0.0; features * width];
        // Process as many blocks at once as fit into memory, and add them in order.
        for some in chosen.chunks(BLOCK * 16) {
            let blocks: Vec<Vec<f64>> = some.par_chunks(BLOCK).map(block).collect();
            for own in &blocks {
                sums.iter_mut().zip(own).for_each(|(sum, x)| *sum += x);
            }
        }
        map.weights = solve(&sums, features, outputs).ok_or_else(|| {
            Error::data("the linear baseline cannot be fitted: the inputs have values of very different size")
        })?;
        Ok(Some(map))
    }

    /// Number of points at which the map predicts.
    fn points(&self) -> usize {
        self.sides[1].grid.iter().product()
    }

    /// Number of input values that the map reads at each point.
    fn features(&self) -> usize {
        let [input, _] = &self.sides;
        match self.radius {
            None => input.len(),
            Some(radius) => (2 * radius + 1).pow(input.grid.len() as u32) * input.channels,
        }
    }

    /// Fills `row` with the features of a point, followed by 1 for the intercept.
    fn row(&self, input: &[f32], point: usize, row: &mut [f64]) {
        let [side, _] = &self.sides;
        let features = self.features();
        row[features] = 1.0;
        let Some(radius) = self.radius else {
            row.iter_mut().zip(input).for_each(|(to, x)| *to = f64::from(*x));
            return;
        };
        let width = 2 * radius + 1;
        for (tap, out) in row[..features].chunks_exact_mut(side.channels).enumerate() {
            // Compute the position of the tap, from the last axis to the first.
            let (mut at, mut stride, mut tap, mut rest) = (Some(0), 1, tap, point);
            for n in side.grid.iter().rev() {
                let place = (rest % n + tap % width).checked_sub(radius).filter(|place| place < n);
                at = at.zip(place).map(|(at, place)| at + place * stride);
                (stride, tap, rest) = (stride * n, tap / width, rest / n);
            }
            match at {
                None => out.fill(0.0),
                Some(at) => {
                    let own = &input[at * side.channels..][..side.channels];
                    out.iter_mut().zip(own).for_each(|(to, x)| *to = f64::from(*x));
                }
            }
        }
    }

    /// Predicts the target of an input [x.., channels].
    pub fn predict(&self, input: &[f32]) -> Vec<f32> {
        let outputs = self.sides[1].channels;
        let mut row = vec![0.0; self.features() + 1];
        let mut found = Vec::with_capacity(self.points() * outputs);
        for point in 0..self.points() {
            self.row(input, point, &mut row);
            for c in 0..outputs {
                let weights = self.weights.iter().skip(c).step_by(outputs);
                found.push(row.iter().zip(weights).map(|(x, w)| x * w).sum::<f64>() as f32);
            }
        }
        found
    }
}

/// Solves A·W = B: `sums` holds rows [A, B] of n + m numbers, A symmetric. `None` if A is not positive definite.
fn solve(sums: &[f64], n: usize, m: usize) -> Option<Vec<f64>> {
    let rows = || sums.chunks_exact(n + m);
    let mut a: Vec<f64> = rows().flat_map(|row| &row[..n]).copied().collect();
    let mut weights: Vec<f64> = rows().flat_map(|row| &row[n..]).copied().collect();
    let trace: f64 = (0..n).map(|i| a[i * n + i]).sum();
    let ridge = (RIDGE * trace / n as f64).max(f64::MIN_POSITIVE);
    (0..n).for_each(|i| a[i * n + i] += ridge);
    Cholesky::factor(a, n)?.solve(&mut weights, m);
    Some(weights)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equations_are_solved() {
        // A = [[4, 2], [2, 3]], W = [[1, -1], [2, 0.5]].
        let sums = [4.0, 2.0, 8.0, -3.0, 2.0, 3.0, 8.0, -0.5];
        let found = solve(&sums, 2, 2).unwrap();
        for (found, expected) in found.iter().zip([1.0, -1.0, 2.0, 0.5]) {
            assert!((found - expected).abs() < 1e-8, "{found} {expected}");
        }
        assert!(solve(&[1.0, 2.0, 0.0, 2.0, 1.0, 0.0], 2, 1).is_none());
    }

    #[test]
    fn a_point_sees_its_neighbours_and_zeros_beyond_the_grid() {
        let side = |channels| ValueShape { grid: vec![2, 3], channels };
        let map = Linear { sides: [side(1), side(1)], radius: Some(1), weights: Vec::new() };
        let mut row = vec![0.0; 10];
        map.row(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 5, &mut row);
        assert_eq!(row, [2.0, 3.0, 0.0, 5.0, 6.0, 0.0, 0.0, 0.0, 0.0, 1.0]);
        map.row(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 1, &mut row);
        assert_eq!(row, [0.0, 0.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 1.0]);
    }
}
