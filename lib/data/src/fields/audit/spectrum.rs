//! Discrete Fourier transforms of frames, for shift-invariant quantities and for finding the best shift.

use crate::fields::field::coordinates;
use rustfft::num_complex::Complex64;
use rustfft::{FftDirection, FftPlanner};

/// The unitary transform of each channel of a frame.
pub(super) struct Spectrum {
    grid: Vec<usize>,
    /// [channels, modes].
    values: Vec<Complex64>,
}

impl Spectrum {
    /// The spectrum of a frame [points, channels].
    pub fn of(frame: &[f64], grid: &[usize], channels: usize) -> Self {
        let points = frame.len() / channels;
        let mut values = Vec::with_capacity(frame.len());
        for channel in 0..channels {
            let of_channel = frame.iter().skip(channel).step_by(channels);
            values.extend(of_channel.map(|value| Complex64::new(*value, 0.0)));
        }
        let scale = (points as f64).sqrt().recip();
        for channel in values.chunks_exact_mut(points) {
            transform(channel, grid, FftDirection::Forward);
            channel.iter_mut().for_each(|value| *value *= scale);
        }
        Self { grid: grid.to_vec(), values }
    }

    /// Number of modes per channel.
    pub fn modes(&self) -> usize {
        self.grid.iter().product()
    }

    /// The wave number of each mode and its energy summed over channels.
    pub fn energies(&self) -> impl Iterator<Item = (f64, f64)> + '_ {
        (0..self.modes()).map(|mode| {
            let waves = coordinates(&self.grid, mode).into_iter().zip(&self.grid);
            let square: f64 = waves.map(|(k, n)| (k.min(n - k) as f64).powi(2)).sum();
            let of_mode = self.values.iter().skip(mode).step_by(self.modes());
            (square.sqrt(), of_mode.map(Complex64::norm_sqr).sum())
        })
    }

    /// The periodic shift of `other`, in points along each axis, that brings it closest to this frame: the maximum of
    /// the cross-correlation.
    pub fn best_shift(&self, other: &Self) -> Vec<usize> {
        let modes = self.modes();
        let mut product = vec![Complex64::default(); modes];
        for (i, (a, b)) in self.values.iter().zip(&other.values).enumerate() {
            product[i % modes] += a * b.conj();
        }
        transform(&mut product, &self.grid, FftDirection::Inverse);
        let best = (0..modes).max_by(|&i, &j| product[i].re.total_cmp(&product[j].re));
        coordinates(&self.grid, best.unwrap_or(0))
    }
}

/// Unnormalized transform along every axis.
fn transform(values: &mut [Complex64], grid: &[usize], direction: FftDirection) {
    let mut planner = FftPlanner::new();
    let mut stride = values.len();
    for &n in grid {
        let block = stride;
        stride /= n;
        let plan = planner.plan_fft(n, direction);
        let mut line = vec![Complex64::default(); n];
        for begin in (0..values.len()).step_by(block) {
            for at in begin..begin + stride {
                line.iter_mut().enumerate().for_each(|(i, v)| *v = values[at + i * stride]);
                plan.process(&mut line);
                line.iter().enumerate().for_each(|(i, v)| values[at + i * stride] = *v);
            }
        }
    }
}
