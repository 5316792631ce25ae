//! Diffusion on equal cells, solved exactly in time: the semigroup exp(dτL) of the central second difference L along
//! one axis, computed by FFT.
//!
//! The semigroup is a convolution with a positive kernel of sum 1, so it is stable for any step, does not increase
//! extrema and preserves the mean. Applying it along several axes in turn is exact as well.

use fft::{Complex64, ComplexToReal, RealToComplex};
use std::f64::consts::PI;
use std::sync::Arc;

/// Boundary condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    /// Periodic.
    Periodic,
    /// No flux (Neumann): cells are mirrored at the boundary.
    Closed,
}

/// The diffusion semigroup along an axis; can be shared between threads.
#[derive(Clone)]
pub struct Diffusion {
    cells: usize,
    ends: Ends,
    forward: Arc<dyn RealToComplex<f64>>,
    inverse: Arc<dyn ComplexToReal<f64>>,
}

/// Buffers for one line at a time.
pub struct Workspace {
    real: Vec<f64>,
    spectrum: Vec<Complex64>,
    forward_scratch: Vec<Complex64>,
    inverse_scratch: Vec<Complex64>,
}

impl Diffusion {
    /// Creates the semigroup for an axis of `cells` cells.
    pub fn new(cells: usize, ends: Ends) -> Self {
        // The mirrored line is periodic.
        let period = if ends == Ends::Closed { 2 * cells } else { cells };
        let (forward, inverse) = fft::real(period);
        Self { cells, ends, forward, inverse }
    }

    /// Allocates buffers for one line at a time.
    pub fn workspace(&self) -> Workspace {
        Workspace {
            real: self.forward.make_input_vec(),
            spectrum: self.forward.make_output_vec(),
            forward_scratch: self.forward.make_scratch_vec(),
            inverse_scratch: self.inverse.make_scratch_vec(),
        }
    }

    /// Computes exp(-dτλ_k) for an axis of length `length`, where λ_k = (2 - 2 cos 2πk/n)/h² is the symbol of the
    /// second difference on a period of n cells; includes the factor 1/n of the inverse transform.
    pub fn factors(&self, diffusivity: f64, time: f64, length: f64) -> Vec<f64> {
        let period = self.forward.len();
        let scale = 1.0 / period as f64;
        let factor = |k: usize| {
            // 2 - 2 cos 2a = 4 sin² a avoids cancellation for small a.
            let root = 2.0 * (PI * k as f64 / period as f64).sin() * (self.cells as f64 / length);
            scale * (-diffusivity * time * root * root).exp()
        };
        (0..period / 2 + 1).map(factor).collect()
    }

    /// Advances the line `u` by the time that `factors` were computed for.
    pub fn apply(&self, u: &mut [f64], factors: &[f64], work: &mut Workspace) {
        let Workspace { real, spectrum, forward_scratch, inverse_scratch } = work;
        real[..self.cells].copy_from_slice(u);
        if self.ends == Ends::Closed {
            let mirrored = real[self.cells..].iter_mut().zip(u.iter().rev());
            mirrored.for_each(|(copy, u)| *copy = *u);
        }
        // The buffers have the lengths that the plans require. The only other possible error is a complex first or last
        // coefficient of the inverse, but a forward transform and real factors leave these real.
        let done = self.forward.process_with_scratch(real, spectrum, forward_scratch);
        debug_assert!(done.is_ok());
        for (c, factor) in spectrum.iter_mut().zip(factors) {
            *c *= factor;
        }
        let out = if self.ends == Ends::Closed { &mut real[..] } else { &mut *u };
        let done = self.inverse.process_with_scratch(spectrum, out, inverse_scratch);
        debug_assert!(done.is_ok());
        if self.ends == Ends::Closed {
            u.copy_from_slice(&real[..self.cells]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// cos πmx at the cell centres is an eigenvector of the second difference with closed ends, cos 2πmx with periodic
    /// ends.
    #[test]
    fn waves_decay_according_to_the_symbol() {
        for (ends, half_waves) in [(Ends::Closed, 3), (Ends::Periodic, 4)] {
            let (cells, length) = (37, 2.0);
            let h = length / cells as f64;
            let angle = PI * f64::from(half_waves) / cells as f64;
            let wave: Vec<f64> = (0..cells).map(|i| (angle * (i as f64 + 0.5)).cos()).collect();
            let diffusion = Diffusion::new(cells, ends);
            let factors = diffusion.factors(0.3, 0.05, length);
            let mut u = wave.clone();
            diffusion.apply(&mut u, &factors, &mut diffusion.workspace());
            let decay = (-0.3 * 0.05 * (2.0 - 2.0 * angle.cos()) / (h * h)).exp();
            for (u, wave) in u.iter().zip(&wave) {
                assert!((u - decay * wave).abs() < 1e-14, "{ends:?}: {u} is not {decay} {wave}");
            }
        }
    }
}
