//! Linear advection, u_t + β u_x = 0 on the periodic unit interval. The exact solution is the shifted initial state.

use super::symmetry::{Point, Symmetries};
use super::{cell_centres, frame_times};
use fft::{Complex64, ComplexToReal, RealToComplex};
use std::f64::consts::TAU;
use std::sync::Arc;

/// u -> -u, as the equation is linear, and translations; the mean is conserved. A reflection would change the sign of
/// β.
pub const SYMMETRIES: Symmetries = Symmetries {
    points: &[Point { negate: true, ..Point::IDENTITY }],
    translation: Some([1, 0]),
    centred: false,
    conserved: &[0],
};

/// Writes the trajectory to `out`, [frames, grid]: u(x, t) = u₀(x - β t) at the cell centres.
pub fn solve(initial: impl Fn(f64) -> f64, beta: f64, grid: usize, end: f64, out: &mut [f32]) {
    let x = cell_centres(grid);
    let times = frame_times(out.len() / grid, end);
    for (frame, time) in out.chunks_exact_mut(grid).zip(times) {
        for (value, x) in frame.iter_mut().zip(&x) {
            *value = initial(x - beta * time) as f32;
        }
    }
}

/// Translates sampled states by trigonometric interpolation; can be shared between threads.
pub struct Translation {
    beta: f64,
    forward: Arc<dyn RealToComplex<f64>>,
    inverse: Arc<dyn ComplexToReal<f64>>,
}

impl Translation {
    /// Creates the translation on `grid` cells at speed β.
    pub fn new(beta: f64, grid: usize) -> Self {
        let (forward, inverse) = fft::real(grid);
        Self { beta, forward, inverse }
    }

    /// Computes u(x - β t) from u.
    pub fn step(&self, u: &[f64], time: f64, out: &mut [f64]) {
        self.filter(u, out, |k| Complex64::from_polar(1.0, -TAU * k * self.beta * time));
    }

    /// Computes u_t = -β u_x.
    pub fn rate(&self, u: &[f64], out: &mut [f64]) {
        self.filter(u, out, |k| Complex64::new(0.0, -TAU * k * self.beta));
    }

    /// Multiplies Fourier coefficient k by `factor(k)`.
    fn filter(&self, u: &[f64], out: &mut [f64], factor: impl Fn(f64) -> Complex64) {
        let (mut real, mut waves) = (u.to_vec(), self.forward.make_output_vec());
        // The buffers have the lengths that the FFT plans require.
        let done = self.forward.process(&mut real, &mut waves);
        debug_assert!(done.is_ok());
        let scale = 1.0 / u.len() as f64;
        for (k, wave) in waves.iter_mut().enumerate() {
            *wave *= factor(k as f64) * scale;
        }
        // The first coefficient, and with an even number of cells the last one, must stay real.
        waves[0].im = 0.0;
        if u.len().is_multiple_of(2)
            && let Some(last) = waves.last_mut()
        {
            last.im = 0.0;
        }
        let done = self.inverse.process(&mut waves, out);
        debug_assert!(done.is_ok());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::initial::Sinusoids;

    /// For band-limited states on any number of cells, translation and rate are exact up to rounding.
    #[test]
    fn translations_and_rates_of_waves_are_exact() {
        for grid in [37, 40] {
            let (beta, time) = (0.7, 0.123);
            let wave = |x: f64| (TAU * x).sin() + 0.3 * (3.0 * TAU * x).cos() - 0.2;
            let slope = |x: f64| TAU * (TAU * x).cos() - 0.9 * TAU * (3.0 * TAU * x).sin();
            let x = cell_centres(grid);
            let u: Vec<f64> = x.iter().map(|x| wave(*x)).collect();
            let translation = Translation::new(beta, grid);
            let (mut moved, mut rate) = (vec![0.0; grid], vec![0.0; grid]);
            translation.step(&u, time, &mut moved);
            translation.rate(&u, &mut rate);
            for (i, x) in x.iter().enumerate() {
                assert!((moved[i] - wave(x - beta * time)).abs() < 1e-13, "{grid} {i}");
                assert!((rate[i] + beta * slope(*x)).abs() < 1e-11, "{grid} {i}");
            }
        }
    }

    /// After a whole period the initial state returns; a shift by whole cells is a roll.
    #[test]
    fn shifts_the_initial_state() {
        let initial = Sinusoids::draw(3, 0.5, 1);
        let grid = 64;
        let mut out = vec![0.0; 5 * grid];
        solve(|x| initial.at(x), 0.5, grid, 2.0, &mut out);
        for i in 0..grid {
            assert!((out[i] - out[4 * grid + i]).abs() < 1e-6);
            // Frame 1: t = 0.5, a shift of 0.25 = 16 cells.
            assert!((out[i] - out[grid + (i + 16) % grid]).abs() < 1e-6);
        }
    }
}
