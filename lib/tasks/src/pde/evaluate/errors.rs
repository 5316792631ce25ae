//! Error measures as sums over samples, in f64; sums of parts can be merged in any number, and give
//! the same bits when merged in the same order. What each quantity is: [`super::DEFINITIONS`].

use super::spectrum::{BANDS, Spectrum, in_bands};

/// Values by the name of the quantity.
pub type Quantities = Vec<(&'static str, f64)>;

/// Sums over samples that can be merged and told as quantities.
pub trait Sums: Clone + Default {
    /// Adds the sums of other samples.
    fn merge(&mut self, other: &Self);
    /// The quantities that follow.
    fn quantities(&self) -> Quantities;
}

/// Sums over predictions and targets of any shape; one sample is one state of one trajectory.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Errors {
    samples: u64,
    elements: u64,
    /// Σ (p - t)², over all elements.
    squared: f64,
    /// Σ |p - t|.
    absolute: f64,
    /// max |p - t|.
    largest: f64,
    /// Σ t².
    target: f64,
    /// Σ over samples of √(Σ (p - t)²/Σ t²).
    relative: f64,
}

impl Errors {
    /// Adds one sample.
    pub fn add(&mut self, prediction: &[f32], target: &[f32]) {
        let (mut squared, mut energy) = (0.0, 0.0);
        for (p, t) in prediction.iter().zip(target) {
            let (p, t) = (f64::from(*p), f64::from(*t));
            let error = (p - t).abs();
            squared += error * error;
            energy += t * t;
            self.absolute += error;
            self.largest = larger(self.largest, error);
        }
        self.samples += 1;
        self.elements += target.len() as u64;
        self.squared += squared;
        self.target += energy;
        // A prediction without error is exact even of a target of zero.
        self.relative += if squared == 0.0 { 0.0 } else { (squared / energy).sqrt() };
    }

    /// √(Σ (p - t)²/Σ t²).
    pub fn nrmse(&self) -> f64 {
        if self.squared == 0.0 { 0.0 } else { (self.squared / self.target).sqrt() }
    }

    /// Root of the mean square of the error.
    pub fn rmse(&self) -> f64 {
        (self.squared / self.elements as f64).sqrt()
    }

    /// Root of the mean square of the targets.
    pub fn target_rms(&self) -> f64 {
        (self.target / self.elements as f64).sqrt()
    }
}

impl Sums for Errors {
    fn merge(&mut self, other: &Self) {
        self.samples += other.samples;
        self.elements += other.elements;
        self.squared += other.squared;
        self.absolute += other.absolute;
        self.largest = larger(self.largest, other.largest);
        self.target += other.target;
        self.relative += other.relative;
    }

    fn quantities(&self) -> Quantities {
        vec![
            ("nrmse", self.nrmse()),
            ("nrmse_pdebench", self.relative / self.samples as f64),
            ("rmse", self.rmse()),
            ("mae", self.absolute / self.elements as f64),
            ("max_error", self.largest),
        ]
    }
}

/// The larger of two numbers; NaN where one is, unlike `f64::max`.
fn larger(a: f64, b: f64) -> f64 {
    if b > a || b.is_nan() { b } else { a }
}

/// As [`Errors`], with what only a field on a grid has: mean, border, waves.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FieldErrors {
    errors: Errors,
    /// Σ over samples of the mean over channels of (mean over the grid of p - t)².
    conserved: f64,
    /// Σ over samples of the mean of (p - t)² at the cells of the border.
    boundary: f64,
    /// Σ over samples of the mean square of p - t in each band of wave numbers.
    bands: [f64; 3],
}

impl FieldErrors {
    /// Adds one sample, a field of the size that `spectrum` is for.
    pub fn add(&mut self, prediction: &[f32], target: &[f32], spectrum: &Spectrum) {
        self.errors.add(prediction, target);
        let pairs = prediction.iter().zip(target);
        let error: Vec<f64> = pairs.map(|(p, t)| f64::from(*p) - f64::from(*t)).collect();
        self.boundary += at_border(&error, spectrum);
        let energies = spectrum.energies(error);
        self.conserved += energies[0];
        self.bands.iter_mut().zip(in_bands(&energies)).for_each(|(sum, band)| *sum += band);
    }

    /// The measures that need no grid.
    pub fn errors(&self) -> &Errors {
        &self.errors
    }
}

/// Mean square at the cells of the border; on one axis the first and the last.
fn at_border(error: &[f64], spectrum: &Spectrum) -> f64 {
    let grid = spectrum.grid();
    let row = error.len() / grid[0];
    let squares = |cells: &[f64]| cells.iter().map(|e| e * e).sum::<f64>();
    let (first, last) = (&error[..row], &error[error.len() - row..]);
    let (mut sum, mut count) = (squares(first) + squares(last), 2 * row);
    if grid.len() > 1 {
        let cell = spectrum.channels();
        let inner = error.chunks_exact(row).skip(1).take(grid[0].saturating_sub(2));
        for line in inner {
            sum += squares(&line[..cell]) + squares(&line[row - cell..]);
            count += 2 * cell;
        }
    }
    sum / count as f64
}

impl Sums for FieldErrors {
    fn merge(&mut self, other: &Self) {
        self.errors.merge(&other.errors);
        self.conserved += other.conserved;
        self.boundary += other.boundary;
        self.bands.iter_mut().zip(other.bands).for_each(|(sum, band)| *sum += band);
    }

    fn quantities(&self) -> Quantities {
        let root = |sum: f64| (sum / self.errors.samples as f64).sqrt();
        let mut quantities = self.errors.quantities();
        quantities.push(("conserved_rmse", root(self.conserved)));
        quantities.push(("boundary_rmse", root(self.boundary)));
        let names = BANDS.map(|(name, _)| name);
        quantities.extend(names.into_iter().zip(self.bands.map(root)));
        quantities
    }
}

#[cfg(test)]
mod tests;
