//! Symmetries of a grid: permutations and reflections of its axes, combined with the best shift.

use super::spectrum::Spectrum;
use crate::fields::field::coordinates;
use std::fmt;

/// Permutes the axes of a frame, mirrors some of them and shifts the result.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Symmetry {
    /// Which axis of the frame becomes each axis.
    order: Vec<usize>,
    /// Which axes of the frame are mirrored.
    mirrored: Vec<bool>,
    /// Periodic shift of the result in points along each axis.
    shift: Vec<usize>,
    grid: Vec<usize>,
}

impl Symmetry {
    /// All symmetries that map a grid onto itself, without shifts: 2 for a line, 8 for a square, 48 for a cube.
    fn all(grid: &[usize]) -> Vec<Self> {
        let axes = grid.len();
        let orders: Vec<Vec<usize>> = (0..axes.pow(axes as u32))
            .map(|code| (0..axes).map(|i| code / axes.pow(i as u32) % axes).collect())
            .filter(|order: &Vec<usize>| {
                (0..axes).all(|axis| order.contains(&axis) && grid[order[axis]] == grid[axis])
            })
            .collect();
        let mirrors = 0..1usize << axes;
        let of_order = |order: &Vec<usize>, mirror: usize| Self {
            order: order.clone(),
            mirrored: (0..axes).map(|axis| mirror >> axis & 1 == 1).collect(),
            shift: vec![0; axes],
            grid: grid.to_vec(),
        };
        orders.iter().flat_map(|o| mirrors.clone().map(move |m| of_order(o, m))).collect()
    }

    /// The symmetry that brings `frame` closest to `target`, both [points, channels], and the remaining Euclidean
    /// distance.
    pub fn best(target: &[f64], frame: &[f64], grid: &[usize], channels: usize) -> (Self, f64) {
        let spectrum = Spectrum::of(target, grid, channels);
        let mut best: Option<(Self, f64)> = None;
        for mut symmetry in Self::all(grid) {
            let seen = symmetry.apply(frame, channels);
            symmetry.shift = spectrum.best_shift(&Spectrum::of(&seen, grid, channels));
            let apart = distance(target, &symmetry.apply(frame, channels));
            if best.as_ref().is_none_or(|(_, least)| apart < *least) {
                best = Some((symmetry, apart));
            }
        }
        best.unwrap_or_else(|| (Self::identity(grid), f64::INFINITY))
    }

    fn identity(grid: &[usize]) -> Self {
        let axes = grid.len();
        let (order, mirrored) = ((0..axes).collect(), vec![false; axes]);
        Self { order, mirrored, shift: vec![0; axes], grid: grid.to_vec() }
    }

    /// Whether it is the identity.
    pub fn is_identity(&self) -> bool {
        *self == Self::identity(&self.grid)
    }

    fn apply(&self, frame: &[f64], channels: usize) -> Vec<f64> {
        let axes = self.grid.len();
        let mut strides = vec![channels; axes];
        for axis in (1..axes).rev() {
            strides[axis - 1] = strides[axis] * self.grid[axis];
        }
        let mut out = Vec::with_capacity(frame.len());
        for point in 0..frame.len() / channels {
            let at = coordinates(&self.grid, point);
            let from: usize = (0..axes)
                .map(|axis| {
                    let (n, source) = (self.grid[axis], self.order[axis]);
                    let place = (at[axis] + n - self.shift[axis]) % n;
                    strides[source] * if self.mirrored[source] { n - 1 - place } else { place }
                })
                .sum();
            out.extend_from_slice(&frame[from..from + channels]);
        }
        out
    }
}

/// `transposed (yx), mirrored in x and shifted by 3, 0 points`.
impl fmt::Display for Symmetry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letters = ['x', 'y', 'z'];
        let mut done = Vec::new();
        let mirrored: Vec<String> = (letters.iter().zip(&self.mirrored))
            .filter(|(_, mirrored)| **mirrored)
            .map(|(letter, _)| letter.to_string())
            .collect();
        if !mirrored.is_empty() {
            done.push(format!("mirrored in {}", mirrored.join(" and ")));
        }
        if !self.order.is_sorted() {
            let order: String = self.order.iter().map(|axis| letters[*axis]).collect();
            done.push(format!("transposed to {order}"));
        }
        if self.shift.iter().any(|shift| *shift > 0) {
            let shift: Vec<String> = self.shift.iter().map(usize::to_string).collect();
            done.push(format!("shifted by {} points", shift.join(", ")));
        }
        f.write_str(&done.join(", "))
    }
}

/// Euclidean distance.
pub(super) fn distance(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensor::random::{Philox, Purpose};

    #[test]
    fn every_symmetry_is_found_again() {
        let random = Philox::new(9, Purpose::Test);
        for (grid, count) in [(vec![9], 2), (vec![6, 6], 8), (vec![4, 6], 4), (vec![4, 4, 3], 16)] {
            let all = Symmetry::all(&grid);
            assert_eq!(all.len(), count);
            let points: usize = grid.iter().product();
            let uniform = |i| f64::from(random.uniform(points as u64, i));
            let frame: Vec<f64> = (0..2 * points as u64).map(uniform).collect();
            for (number, planted) in all.into_iter().enumerate() {
                let shift = grid.iter().map(|n| (number + 1) % n).collect();
                let planted = Symmetry { shift, ..planted };
                let copy = planted.apply(&frame, 2);
                let (found, apart) = Symmetry::best(&copy, &frame, &grid, 2);
                assert_eq!((found.apply(&frame, 2), apart), (copy, 0.0), "{planted} as {found}");
            }
        }
    }
}
