//! Error measures as sums over samples, in f64. Merging sums in the same order yields bit-identical results.
//! longhaul-files(5) defines each quantity.

use super::spectrum::{BANDS, Spectrum, in_bands};
use crate::pde::corrector::energy_score;
use learn::score::{Bits, bits};
use serde::{Deserialize, Serialize};

/// Names and values of quantities.
pub type Quantities = Vec<(&'static str, f64)>;

/// Error sums over predictions and targets of any shape. One sample is one state of one trajectory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Errors {
    samples: u64,
    elements: u64,
    /// Σ (p - t)², over all elements.
    #[serde(with = "bits")]
    squared: f64,
    /// Σ |p - t|.
    #[serde(with = "bits")]
    absolute: f64,
    /// max |p - t|.
    #[serde(with = "bits")]
    largest: f64,
    /// Σ t².
    #[serde(with = "bits")]
    target: f64,
    /// Σ over samples of √(Σ (p - t)²/Σ t²).
    #[serde(with = "bits")]
    relative: f64,
    /// Σ over samples of the energy score, which is |p - t| for a single forecast.
    #[serde(with = "bits")]
    energy: f64,
    /// Σ over samples of |t|.
    #[serde(with = "bits")]
    norm: f64,
    /// Σ over samples of the summed ensemble variances, times (M + 1)/M for M members; None for single forecasts.
    variance: Option<Bits>,
    /// Sums that only exist for fields on a grid.
    grid: Option<GridErrors>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct GridErrors {
    /// Σ over samples of the mean over channels of (mean over the grid of p - t)².
    #[serde(with = "bits")]
    conserved: f64,
    /// Σ over samples of the mean of (p - t)² over the border cells.
    #[serde(with = "bits")]
    boundary: f64,
    /// Σ over samples of the mean square of p - t in each wave number band.
    bands: [Bits; 3],
}

impl Errors {
    /// Computes the errors of one sample; `spectrum` is given for fields on its grid.
    pub fn of(prediction: &[f32], target: &[f32], spectrum: Option<&Spectrum>) -> Self {
        let mut errors = Self { samples: 1, elements: target.len() as u64, ..Self::default() };
        for (p, t) in prediction.iter().zip(target) {
            let (p, t) = (f64::from(*p), f64::from(*t));
            let error = (p - t).abs();
            errors.squared += error * error;
            errors.target += t * t;
            errors.absolute += error;
            errors.largest = larger(errors.largest, error);
        }
        (errors.energy, errors.norm) = (errors.squared.sqrt(), errors.target.sqrt());
        // An exact prediction has a relative error of 0 even if the target is zero.
        errors.relative = errors.nrmse();
        errors.grid = spectrum.map(|spectrum| {
            let pairs = prediction.iter().zip(target);
            let error: Vec<f64> = pairs.map(|(p, t)| f64::from(*p) - f64::from(*t)).collect();
            let boundary = at_border(&error, spectrum);
            let energies = spectrum.energies(error);
            GridErrors { conserved: energies[0], boundary, bands: in_bands(&energies).map(Bits) }
        });
        errors
    }

    /// Number of values.
    pub fn elements(&self) -> u64 {
        self.elements
    }

    /// Returns Σ (p - t)² and Σ t².
    pub fn sums(&self) -> [f64; 2] {
        [self.squared, self.target]
    }

    /// Adds the energy score and the spread of an ensemble to the errors of its mean.
    pub fn with_ensemble(mut self, members: &[&[f32]], mean: &[f32], target: &[f32]) -> Self {
        let count = members.len() as f64;
        self.energy = energy_score(members, target)[0];
        let deviations = members.iter().flat_map(|member| member.iter().zip(mean));
        let squares: f64 = deviations.map(|(x, mean)| f64::from(x - mean).powi(2)).sum();
        self.variance = Some(Bits(squares / (count - 1.0) * (count + 1.0) / count));
        self
    }

    /// Returns √(Σ (p - t)²/Σ t²).
    pub fn nrmse(&self) -> f64 {
        nrmse(self.squared, self.target)
    }

    /// Root mean squared error.
    pub fn rmse(&self) -> f64 {
        (self.squared / self.elements as f64).sqrt()
    }

    /// Root mean square of the targets.
    pub fn target_rms(&self) -> f64 {
        (self.target / self.elements as f64).sqrt()
    }

    /// Adds the sums over further samples.
    pub fn merge(&mut self, other: &Self) {
        self.samples += other.samples;
        self.elements += other.elements;
        self.squared += other.squared;
        self.absolute += other.absolute;
        self.largest = larger(self.largest, other.largest);
        self.target += other.target;
        self.relative += other.relative;
        self.energy += other.energy;
        self.norm += other.norm;
        if let Some(other) = other.variance {
            self.variance.get_or_insert_default().0 += other.0;
        }
        if let Some(other) = &other.grid {
            let grid = self.grid.get_or_insert_default();
            grid.conserved += other.conserved;
            grid.boundary += other.boundary;
            grid.bands.iter_mut().zip(other.bands).for_each(|(sum, band)| sum.0 += band.0);
        }
    }

    /// Computes the quantities from the sums.
    pub fn quantities(&self) -> Quantities {
        let mut quantities = vec![
            ("nrmse", self.nrmse()),
            ("nrmse_pdebench", self.relative / self.samples as f64),
            ("rmse", self.rmse()),
            ("mae", self.absolute / self.elements as f64),
            ("max_error", self.largest),
            ("energy_score", self.energy / self.norm),
        ];
        if let Some(variance) = self.variance {
            quantities.push(("spread_skill", (variance.0 / self.squared).sqrt()));
        }
        if let Some(GridErrors { conserved, boundary, bands }) = &self.grid {
            let root = |sum: f64| (sum / self.samples as f64).sqrt();
            quantities.push(("conserved_rmse", root(*conserved)));
            quantities.push(("boundary_rmse", root(*boundary)));
            quantities.extend(BANDS.iter().zip(bands).map(|((name, _), sum)| (*name, root(sum.0))));
        }
        quantities
    }
}

/// Returns √(Σ (p - t)²/Σ t²), or 0 if there is no error.
pub fn nrmse(squared: f64, target: f64) -> f64 {
    if squared == 0.0 { 0.0 } else { (squared / target).sqrt() }
}

/// Returns the larger of two numbers, or NaN if either is NaN, unlike `f64::max`.
fn larger(a: f64, b: f64) -> f64 {
    if b > a || b.is_nan() { b } else { a }
}

/// Returns the mean square over the border cells; on one axis, these are the first and the last.
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

#[cfg(test)]
mod tests;
