//! How the mean square of a field on a periodic grid divides over wave numbers.

use realfft::{RealFftPlanner, RealToComplex};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// The bands of wave numbers in which errors are told, each with the name of its quantity.
pub const BANDS: [(&str, Range<usize>); 3] = [
    ("fourier_rmse_low", 0..4),
    ("fourier_rmse_middle", 4..12),
    ("fourier_rmse_high", 12..usize::MAX),
];

/// The Fourier transform of fields of one size.
#[derive(Clone)]
pub struct Spectrum {
    transform: Arc<dyn RealToComplex<f64>>,
}

impl fmt::Debug for Spectrum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Spectrum({} points)", self.transform.len())
    }
}

impl Spectrum {
    /// For fields of `points` points.
    pub fn new(points: usize) -> Self {
        Self { transform: RealFftPlanner::new().plan_fft_forward(points) }
    }

    /// Share of each wave number in the mean square, [points/2 + 1]: c_k·|Σ_j u_j exp(-2πi·jk/n)|²/n²
    /// with c = 1 for the mean and the shortest wave of an even n, else 2. Their sum is the mean square
    /// (Parseval).
    ///
    /// # Panics
    /// When `values` has another length than the fields this was made for.
    pub fn energies(&self, mut values: Vec<f64>) -> Vec<f64> {
        let n = self.transform.len();
        let mut waves = self.transform.make_output_vec();
        let done = self.transform.process(&mut values, &mut waves);
        assert!(done.is_ok(), "a field of {} points, not {n}", values.len());
        let energy = |k: usize| {
            let pair = if k == 0 || 2 * k == n { 1.0 } else { 2.0 };
            pair * waves[k].norm_sqr() / (n * n) as f64
        };
        (0..waves.len()).map(energy).collect()
    }
}

/// Sums the energies of each of [`BANDS`].
pub fn in_bands(energies: &[f64]) -> [f64; 3] {
    BANDS.map(|(_, band)| {
        let (start, end) = (band.start.min(energies.len()), band.end.min(energies.len()));
        energies[start..end].iter().sum()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::f64::consts::TAU;

    fn wave(n: usize, k: usize, amplitude: f64) -> Vec<f64> {
        (0..n).map(|j| amplitude * (TAU * (k * j) as f64 / n as f64 + 0.3).sin()).collect()
    }

    #[test]
    fn a_pure_wave_lies_in_its_band_and_nowhere_else() {
        let n = 96;
        let spectrum = Spectrum::new(n);
        for (k, band) in [(1, 0), (3, 0), (4, 1), (11, 1), (12, 2), (40, 2)] {
            let found = in_bands(&spectrum.energies(wave(n, k, 3.0)));
            for (b, energy) in found.into_iter().enumerate() {
                let expected = if b == band { 4.5 } else { 0.0 };
                assert!((energy - expected).abs() < 1e-12, "wave {k}, band {b}: {energy}");
            }
        }
    }

    #[test]
    fn the_mean_is_wave_number_zero() {
        let energies = Spectrum::new(7).energies(vec![-2.0; 7]);
        assert!((energies[0] - 4.0).abs() < 1e-12 && energies[1..].iter().all(|e| *e < 1e-24));
    }

    #[test]
    fn energies_sum_to_the_mean_square() {
        for n in [1, 2, 5, 8, 30, 127] {
            let u: Vec<f64> =
                (0..n).map(|i| ((i * i * 37 + 11) % 101) as f64 / 50.0 - 1.0).collect();
            let mean_square = u.iter().map(|x| x * x).sum::<f64>() / n as f64;
            let energies = Spectrum::new(n).energies(u);
            assert_eq!(energies.len(), n / 2 + 1);
            assert!((energies.iter().sum::<f64>() - mean_square).abs() < 1e-12, "{n}");
            assert!((in_bands(&energies).iter().sum::<f64>() - mean_square).abs() < 1e-12, "{n}");
        }
    }
}
