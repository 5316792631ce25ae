//! Power spectrum: decomposes the mean square of a field by wave number, treating the grid as periodic.

use fft::{Fft, RealToComplex};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// Wave number bands in which errors are reported, each with the name of its quantity.
pub const BANDS: [(&str, Range<usize>); 3] = [
    ("fourier_rmse_low", 0..4),
    ("fourier_rmse_middle", 4..12),
    ("fourier_rmse_high", 12..usize::MAX),
];

/// FFT of fields of one size, [x.., channels] with one or two axes.
#[derive(Clone)]
pub struct Spectrum {
    grid: Vec<usize>,
    channels: usize,
    /// FFT plan for the last axis.
    lines: Arc<dyn RealToComplex<f64>>,
    /// FFT plan for the first of two axes.
    columns: Arc<dyn Fft<f64>>,
}

impl fmt::Debug for Spectrum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Spectrum({:?} points, {} channels)", self.grid, self.channels)
    }
}

impl Spectrum {
    /// Creates the FFT plans for fields with `channels` channels on `grid`, which has one or two axes.
    pub fn new(grid: &[usize], channels: usize) -> Self {
        let last = grid.last().copied().unwrap_or(1);
        Self {
            grid: grid.to_vec(),
            channels,
            lines: fft::real(last).0,
            columns: fft::complex(grid[0]).0,
        }
    }

    /// Number of channels.
    pub fn channels(&self) -> usize {
        self.channels
    }

    /// Grid points along each axis.
    pub fn grid(&self) -> &[usize] {
        &self.grid
    }

    /// Number of wave numbers, including 0.
    pub fn wave_numbers(&self) -> usize {
        let half = |n: usize| (n / 2) as f64;
        match self.grid[..] {
            [x, y] => half(x).hypot(half(y)).round() as usize + 1,
            _ => self.lines.len() / 2 + 1,
        }
    }

    /// Returns the contribution of each of the [`wave_numbers`](Self::wave_numbers) to the mean square over points and
    /// channels. On one axis of n points it is c_k·|Σ_j u_j exp(-2πi·jk/n)|²/n², with c_k = 1 for k = 0 and k = n/2 and
    /// 2 otherwise. On two axes, wave vectors are grouped by their length, rounded to an integer. The contributions add
    /// up to the mean square (Parseval).
    ///
    /// # Panics
    /// If the length of `values` differs from points · channels.
    pub fn energies(&self, values: Vec<f64>) -> Vec<f64> {
        let (points, channels) = (self.grid.iter().product::<usize>(), self.channels);
        assert_eq!(values.len(), points * channels, "a field of another size than {self:?}");
        let mut energies = vec![0.0; self.wave_numbers()];
        if channels == 1 {
            self.add_energies(values, &mut energies);
        } else {
            for channel in 0..channels {
                let own = values.iter().skip(channel).step_by(channels);
                self.add_energies(own.copied().collect(), &mut energies);
            }
            energies.iter_mut().for_each(|energy| *energy /= channels as f64);
        }
        energies
    }

    fn add_energies(&self, mut values: Vec<f64>, energies: &mut [f64]) {
        let n = self.lines.len();
        let mut waves = self.lines.make_output_vec();
        let width = waves.len();
        let rows = values.len() / n;
        let points = (values.len() * values.len()) as f64;
        let pair = |k: usize| if k == 0 || 2 * k == n { 1.0 } else { 2.0 };
        let mut columns = vec![Default::default(); if rows > 1 { width * rows } else { 0 }];
        for (row, values) in values.chunks_exact_mut(n).enumerate() {
            // The buffer lengths match the plan, so this cannot fail.
            let done = self.lines.process(values, &mut waves);
            debug_assert!(done.is_ok());
            match rows {
                1 => {
                    for (k, energy) in energies.iter_mut().enumerate() {
                        *energy += pair(k) * waves[k].norm_sqr() / points;
                    }
                }
                _ => waves.iter().enumerate().for_each(|(k, wave)| columns[k * rows + row] = *wave),
            }
        }
        for (k, column) in columns.chunks_exact_mut(rows.max(1)).enumerate() {
            self.columns.process(column);
            for (row, wave) in column.iter().enumerate() {
                let other = row.min(rows - row) as f64;
                let shell = (k as f64).hypot(other).round() as usize;
                energies[shell] += pair(k) * wave.norm_sqr() / points;
            }
        }
    }
}

/// Sums the energies within each of [`BANDS`].
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
        let spectrum = Spectrum::new(&[n], 1);
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
        let energies = Spectrum::new(&[7], 1).energies(vec![-2.0; 7]);
        assert!((energies[0] - 4.0).abs() < 1e-12 && energies[1..].iter().all(|e| *e < 1e-24));
    }

    #[test]
    fn energies_sum_to_the_mean_square() {
        for n in [1, 2, 5, 8, 30, 127] {
            let u: Vec<f64> =
                (0..n).map(|i| ((i * i * 37 + 11) % 101) as f64 / 50.0 - 1.0).collect();
            let mean_square = u.iter().map(|x| x * x).sum::<f64>() / n as f64;
            let energies = Spectrum::new(&[n], 1).energies(u);
            assert_eq!(energies.len(), n / 2 + 1);
            assert!((energies.iter().sum::<f64>() - mean_square).abs() < 1e-12, "{n}");
            assert!((in_bands(&energies).iter().sum::<f64>() - mean_square).abs() < 1e-12, "{n}");
        }
    }

    #[test]
    fn on_two_axes_waves_lie_in_their_shells_and_channels_share() {
        let (x, y) = (12, 15);
        let spectrum = Spectrum::new(&[x, y], 2);
        for (p, q) in [(0, 0), (3, 4), (6, 0), (5, -2), (0, 7), (1, -1)] {
            let at = |i: usize| {
                let (i, j) = (i / y, i % y);
                let angle = TAU * (f64::from(p) * i as f64 / x as f64);
                // A wave at the Nyquist wave number along x is its own mirror image: a cosine.
                (angle + TAU * f64::from(q) * j as f64 / y as f64).cos()
            };
            let values: Vec<f64> = (0..x * y).flat_map(|i| [at(i), 3.0]).collect();
            let energies = spectrum.energies(values);
            assert_eq!(energies.len(), spectrum.wave_numbers());
            let shell = f64::from(p).hypot(f64::from(q)).round() as usize;
            let own = if (p, q) == (0, 0) || (p, q) == (6, 0) { 0.5 } else { 0.25 };
            for (k, energy) in energies.into_iter().enumerate() {
                let mean = if k == 0 { 4.5 } else { 0.0 };
                let expected = mean + if k == shell { own } else { 0.0 };
                assert!((energy - expected).abs() < 1e-12, "({p}, {q}), {k}: {energy}");
            }
        }
        let u: Vec<f64> = (0..2 * x * y).map(|i| ((i * i * 37 + 11) % 101) as f64 / 50.0).collect();
        let mean_square = u.iter().map(|x| x * x).sum::<f64>() / u.len() as f64;
        assert!((spectrum.energies(u).iter().sum::<f64>() - mean_square).abs() < 1e-12);
    }
}
