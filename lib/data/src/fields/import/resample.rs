//! Resamples fields to a different grid.

use crate::fields::field::grid_text;
use std::ops::Range;
use unix::{Error, Result};

/// The old points from which a new point is computed, with their weights, which sum to 1. Along a periodic axis,
/// indices may lie outside the axis and wrap around.
type Weights = Vec<(isize, f64)>;

/// Like [`Weights`], but with all indices within the axis.
type Mixed = Vec<(usize, f64)>;

/// Memory in bytes for the weights of one point.
const WEIGHTS: u64 = 96;

/// One spatial axis: the points to keep, and the number of new points.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Cut {
    pub keep: Range<usize>,
    pub points: usize,
    /// Whether the axis is periodic: the last kept point is followed by the first.
    pub periodic: bool,
}

impl Cut {
    /// Returns the weights of new point `i`.
    ///
    /// If the new size divides the old size, blocks are averaged, which preserves the spatial mean. Otherwise the new
    /// points are the centres of equal cells, with linear interpolation between neighbours: across the boundary of a
    /// periodic axis; at any other boundary, the outermost value is extended.
    fn weights(&self, i: usize) -> Weights {
        let (begin, old) = (self.keep.start as isize, self.keep.len());
        if old.is_multiple_of(self.points) {
            let block = old / self.points;
            let first = begin + (i * block) as isize;
            return (0..block as isize).map(|j| (first + j, 1.0 / block as f64)).collect();
        }
        let place = (i as f64 + 0.5) * old as f64 / self.points as f64 - 0.5;
        let (low, last) = (place.floor(), old as isize - 1);
        let part = place - low;
        let low = low as isize;
        let at = |j: isize| begin + if self.periodic { j } else { j.clamp(0, last) };
        vec![(at(low), 1.0 - part), (at(low + 1), part)]
    }

    /// Wraps the index of a point in [`weights`](Self::weights) into the axis.
    fn index(&self, point: isize) -> usize {
        let (begin, old) = (self.keep.start as isize, self.keep.len() as isize);
        (begin + (point - begin).rem_euclid(old)) as usize
    }

    /// Returns the coordinates of the new points; empty for an axis without coordinates.
    pub fn coordinates(&self, old: &[f64]) -> Vec<f64> {
        if old.len() < self.keep.end {
            return Vec::new();
        }
        let (first, last) = (old[self.keep.start], old[self.keep.end - 1]);
        // Beyond the boundary of a periodic axis, coordinates continue with the same spacing.
        let spacing = (last - first) / (self.keep.len() - 1).max(1) as f64;
        let coordinate = |point: isize| match usize::try_from(point) {
            Ok(point) if self.keep.contains(&point) => old[point],
            Ok(point) if point >= self.keep.end => last + spacing,
            _ => first - spacing,
        };
        let at = |i| self.weights(i).into_iter().map(|(j, weight)| weight * coordinate(j)).sum();
        (0..self.points).map(at).collect()
    }
}

/// Resamples frames, one axis at a time.
#[derive(Clone, Debug)]
pub(super) struct Resampler {
    /// For each axis: the source length, and the weights of each new point.
    axes: Vec<(usize, Vec<Mixed>)>,
    channels: usize,
}

impl Resampler {
    /// Returns `None` if frames do not change. Errors: 2 if the range to keep is empty or exceeds the axis, or the new
    /// frames do not fit into memory.
    pub fn new(grid: &[usize], cuts: &[Cut], channels: usize) -> Result<Option<Self>> {
        for (size, cut) in grid.iter().zip(cuts) {
            if cut.keep.is_empty() || cut.keep.end > *size || cut.points == 0 {
                return Err(Error::usage(format!(
                    "points {}:{} of {size} cannot become {} points",
                    cut.keep.start, cut.keep.end, cut.points
                )));
            }
        }
        let same = |(size, cut): (&usize, &Cut)| cut.keep == (0..*size) && cut.points == *size;
        if grid.iter().zip(cuts).all(same) {
            return Ok(None);
        }
        let mut most = grid.iter().zip(cuts).map(|(size, cut)| *size.max(&cut.points) as u64);
        let points: u64 = cuts.iter().fold(0, |sum, cut| sum.saturating_add(cut.points as u64));
        let numbers = most.try_fold(2 * channels as u64, |n, size| n.checked_mul(size));
        let bytes =
            numbers.and_then(|n| n.checked_mul(8)?.checked_add(points.checked_mul(WEIGHTS)?));
        let new_grid: Vec<usize> = cuts.iter().map(|cut| cut.points).collect();
        let what = format!("resampling to {} points", grid_text(&new_grid));
        unix::memory::ensure(&what, bytes).map_err(Error::usage)?;
        let of_axis = |(size, cut): (&usize, &Cut)| {
            let of_point = |i| {
                let weights = cut.weights(i).into_iter();
                weights.map(|(point, weight)| (cut.index(point), weight)).collect()
            };
            (*size, (0..cut.points).map(of_point).collect())
        };
        Ok(Some(Self { axes: grid.iter().zip(cuts).map(of_axis).collect(), channels }))
    }

    /// Resamples a frame [grid…, channels].
    pub fn frame(&self, frame: &[f32]) -> Vec<f32> {
        let mut values: Vec<f64> = frame.iter().map(|value| f64::from(*value)).collect();
        let mut before = 1;
        let mut after: usize =
            self.axes.iter().map(|(size, _)| size).product::<usize>() * self.channels;
        for (size, weights) in &self.axes {
            after /= size;
            let mut next = vec![0.0; before * weights.len() * after];
            for block in 0..before {
                for (i, of_point) in weights.iter().enumerate() {
                    let to = (block * weights.len() + i) * after;
                    for (j, weight) in of_point {
                        let from = (block * size + j) * after;
                        let row = &values[from..from + after];
                        let new = &mut next[to..to + after];
                        new.iter_mut().zip(row).for_each(|(n, v)| *n += weight * v);
                    }
                }
            }
            values = next;
            before *= weights.len();
        }
        values.into_iter().map(|value| value as f32).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(keep: Range<usize>, points: usize) -> Cut {
        Cut { keep, points, periodic: false }
    }

    fn resampler(grid: &[usize], cuts: &[(Range<usize>, usize)], channels: usize) -> Resampler {
        let cuts: Vec<Cut> = cuts.iter().map(|(keep, points)| cut(keep.clone(), *points)).collect();
        Resampler::new(grid, &cuts, channels).unwrap().unwrap()
    }

    #[test]
    fn blocks_are_averaged_and_other_sizes_interpolate_linear_functions_exactly() {
        // f(x, y) = 3x + 5y and its negative, on cell centres of [0, 1]².
        let f = |x: f64, y: f64| 3.0 * x + 5.0 * y;
        let centre = |i: usize, n: usize| (i as f64 + 0.5) / n as f64;
        let sample = |nx: usize, ny: usize| -> Vec<f32> {
            let points = (0..nx).flat_map(|i| (0..ny).map(move |j| (centre(i, nx), centre(j, ny))));
            points.flat_map(|(x, y)| [f(x, y) as f32, -f(x, y) as f32]).collect()
        };
        for (nx, ny) in [(6, 4), (3, 2), (5, 7)] {
            let found = resampler(&[12, 8], &[(0..12, nx), (0..8, ny)], 2).frame(&sample(12, 8));
            for (a, b) in found.iter().zip(sample(nx, ny)) {
                assert!((a - b).abs() < 1e-5, "{nx}x{ny}: {a} for {b}");
            }
        }
        let finer = resampler(&[4], &[(0..4, 8)], 1).frame(&[0.0, 1.0, 2.0, 3.0]);
        assert_eq!(finer[1..7], [0.25, 0.75, 1.25, 1.75, 2.25, 2.75]);
    }

    #[test]
    fn crops_are_exact_and_nonsense_is_refused() {
        let cropped = resampler(&[5, 3], &[(1..4, 3), (2..3, 1)], 1);
        let frame: Vec<f32> = (0..15).map(|i| i as f32).collect();
        assert_eq!(cropped.frame(&frame), [5.0, 8.0, 11.0]);
        assert_eq!(cut(2..4, 1).coordinates(&[0.0, 1.0, 2.0, 3.0]), [2.5]);
        assert!(Resampler::new(&[4], &[cut(0..4, 4)], 1).unwrap().is_none());
        for (keep, points) in [(0..5, 5), (2..2, 1), (0..4, 0)] {
            assert!(Resampler::new(&[4], &[cut(keep, points)], 1).is_err());
        }
    }

    #[test]
    fn a_periodic_axis_is_interpolated_across_its_boundary() {
        // Frequency 1 on 16 cells: linear interpolation errs by at most (2 pi / 16)^2 / 8 everywhere.
        let sine = |x: f64| (std::f64::consts::TAU * x).sin() as f32;
        let centres = |n: usize| (0..n).map(move |i| (i as f64 + 0.5) / n as f64);
        let frame: Vec<f32> = centres(16).map(|x| sine(x + 0.3)).collect();
        let old: Vec<f64> = centres(16).collect();
        for points in [17, 32, 50] {
            let cut = Cut { periodic: true, ..cut(0..16, points) };
            for (x, expected) in cut.coordinates(&old).into_iter().zip(centres(points)) {
                assert!((x - expected).abs() < 1e-12, "{points}: {x} for {expected}");
            }
            let resampler = Resampler::new(&[16], &[cut], 1).unwrap().unwrap();
            for (u, x) in resampler.frame(&frame).into_iter().zip(centres(points)) {
                assert!((u - sine(x + 0.3)).abs() < 0.0193, "{points} points, {x}: {u}");
            }
        }
    }
}
