//! Training on random windows of the samples.
//!
//! The model is built a second time for the size of a window, with the same parameters, so training on windows trains
//! the model of whole samples. Models whose parameters depend on the grid are refused.

use super::model::{Regression, RegressionModel, on_grid};
use super::pairs::Pair;
use super::task::Preparation;
use learn::params::ParamSet;
use tensor::random::Philox;
use unix::{Error, Result};

/// The model for windows.
pub(super) struct Crop {
    pub model: Regression,
    pub preparation: Preparation,
    /// Points of a whole input along each axis.
    grid: Vec<usize>,
    /// Points of a window of the input along each axis.
    size: Vec<usize>,
    /// Points of the target per point of the input, along each axis.
    factor: usize,
}

/// Counter of the first random number for a sample's window; lower counters belong to its symmetry.
const FIRST_COUNTER: u64 = 2;

impl Crop {
    /// Prepares windows of `size` input points; `whole` prepares whole samples for the model with `params`.
    ///
    /// Errors (78): `size` does not fit, the target has no grid, or the parameters depend on the grid.
    pub fn new(
        size: &[usize],
        config: &RegressionModel,
        seed: u64,
        whole: &Preparation,
        params: &ParamSet,
    ) -> Result<Self> {
        let refuse = |why: String| Error::config(format!("data.augmentation.crop: {why}"));
        let [input, target] = whole.tokens.each_ref().map(|side| &side.patches);
        let grid = input.grid();
        if size.len() != grid.len() || size.iter().zip(grid).any(|(n, all)| *n == 0 || n > all) {
            return Err(refuse(format!(
                "{size:?} must be {} sizes of at least 1 and at most those of the inputs, {grid:?}",
                grid.len()
            )));
        }
        let factor = target.grid()[0] / grid[0];
        if target.grid().iter().zip(grid).any(|(to, from)| *to != factor * from) {
            return Err(refuse("needs targets with a grid".into()));
        }
        let (model, preparation) = on_grid(size, config, seed, whole, params)
            .map_err(|error| error.context("data.augmentation.crop"))?;
        Ok(Self { model, preparation, grid: grid.to_vec(), size: size.to_vec(), factor })
    }

    /// Crops sample `place` of a micro-batch to a random window.
    pub fn cut(&self, random: &Philox, place: u64, pair: &mut Pair) {
        let start = |(axis, (all, n)): (usize, (&usize, &usize))| {
            random.below(place, FIRST_COUNTER + axis as u64, (all - n + 1) as u64) as usize
        };
        let start: Vec<usize> = self.grid.iter().zip(&self.size).enumerate().map(start).collect();
        let scaled =
            |values: &[usize]| -> Vec<usize> { values.iter().map(|n| n * self.factor).collect() };
        pair.input = window(&pair.input, &self.grid, &start, &self.size);
        let [grid, start, size] = [&self.grid, &start, &self.size].map(|values| scaled(values));
        pair.target = window(&pair.target, &grid, &start, &size);
    }
}

/// Returns the window of `size` points, starting at `start`, of a field [x.., channels] on `grid`.
fn window(field: &[f32], grid: &[usize], start: &[usize], size: &[usize]) -> Vec<f32> {
    let (last, channels) = (grid.len() - 1, field.len() / grid.iter().product::<usize>());
    let mut out = Vec::with_capacity(size.iter().product::<usize>() * channels);
    for row in 0..size[..last].iter().product() {
        let (mut rest, mut stride, mut from) = (row, grid[last], start[last]);
        for axis in (0..last).rev() {
            from += (start[axis] + rest % size[axis]) * stride;
            rest /= size[axis];
            stride *= grid[axis];
        }
        out.extend_from_slice(&field[from * channels..][..size[last] * channels]);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each value is its own index.
    #[test]
    fn a_window_has_the_values_at_its_place() {
        let line: Vec<f32> = (0..14).map(|i| i as f32).collect();
        assert_eq!(window(&line, &[7], &[2], &[3]), [4.0, 5.0, 6.0, 7.0, 8.0, 9.0]);
        let cube: Vec<f32> = (0..4 * 5 * 6).map(|i| i as f32).collect();
        let found = window(&cube, &[4, 5, 6], &[1, 3, 2], &[2, 2, 3]);
        let at = |x: usize, y: usize, z: usize| ((x * 5 + y) * 6 + z) as f32;
        let places =
            (1..3).flat_map(|x| (3..5).flat_map(move |y| (2..5).map(move |z| at(x, y, z))));
        assert_eq!(found, places.collect::<Vec<_>>());
    }
}
