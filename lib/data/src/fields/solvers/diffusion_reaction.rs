//! Diffusion-reaction in one dimension with the Fisher-KPP source, u_t = ν u_xx + ρ u (1 - u) on the periodic unit
//! interval.
//!
//! Strang splitting of two exact flows: the semigroup of the central second difference, and the logistic function in
//! every cell. Second order in time and space; preserves 0 ≤ u ≤ 1. Arithmetic is f64.

use super::diffusion::{self, Diffusion, Ends};
use super::symmetry::{Point, Symmetries};

/// Maximum time step, in units of 1/ρ.
pub const STEP: f64 = 0.01;

/// u(x) -> u(-x), and translations.
pub const SYMMETRIES: Symmetries = Symmetries {
    points: &[Point { flip: [true, false], ..Point::IDENTITY }],
    translation: Some([1, 0]),
    centred: false,
    conserved: &[],
};

/// The scheme for one grid, diffusivity and rate; can be shared between threads.
#[derive(Clone)]
pub struct DiffusionReaction {
    nu: f64,
    rho: f64,
    grid: usize,
    steps: usize,
    diffusion: Diffusion,
    half: Vec<f64>,
    whole: Vec<f64>,
    /// exp(ρ Δt).
    growth: f64,
}

impl DiffusionReaction {
    /// Creates a scheme on `grid` cells for frames `interval` apart, with time steps of at most `step`/ρ.
    pub fn new(nu: f64, rho: f64, grid: usize, interval: f64, step: f64) -> Self {
        let steps = (interval * rho.abs() / step).ceil().max(1.0);
        let time = interval / steps;
        let diffusion = Diffusion::new(grid, Ends::Periodic);
        Self {
            nu,
            rho,
            grid,
            steps: steps as usize,
            half: diffusion.factors(nu, 0.5 * time, 1.0),
            whole: diffusion.factors(nu, time, 1.0),
            growth: (rho * time).exp(),
            diffusion,
        }
    }

    /// Allocates buffers for one trajectory at a time.
    pub fn workspace(&self) -> diffusion::Workspace {
        self.diffusion.workspace()
    }

    /// Solves from `u` (values at the cell centres), which is overwritten by the last frame, and writes the frames to
    /// `out`, of shape [frames, grid].
    pub fn solve(&self, u: &mut [f64], out: &mut [f32], work: &mut diffusion::Workspace) {
        for (frame, out) in out.chunks_exact_mut(self.grid).enumerate() {
            if frame > 0 {
                self.advance(u, work);
            }
            out.iter_mut().zip(&*u).for_each(|(out, u)| *out = *u as f32);
        }
    }

    /// Computes u_t of the discretised equation.
    pub fn rate(&self, u: &[f64], out: &mut [f64]) {
        let n = self.grid;
        let diffusivity = self.nu * (n * n) as f64;
        for (i, out) in out.iter_mut().enumerate() {
            let curvature = u[(i + 1) % n] - 2.0 * u[i] + u[(i + n - 1) % n];
            *out = diffusivity * curvature + self.rho * u[i] * (1.0 - u[i]);
        }
    }

    /// Advances `u` by the frame interval of the scheme.
    pub fn advance(&self, u: &mut [f64], work: &mut diffusion::Workspace) {
        self.diffusion.apply(u, &self.half, work);
        for left in (0..self.steps).rev() {
            if self.rho != 0.0 {
                pulp::Arch::new().dispatch(|| react(u, self.growth));
            }
            // Two consecutive half steps of diffusion are merged into one whole step.
            self.diffusion.apply(u, if left == 0 { &self.half } else { &self.whole }, work);
        }
    }
}

/// Applies the logistic flow over the time in which a small u grows by the factor `growth`.
#[inline(always)]
fn react(u: &mut [f64], growth: f64) {
    u.iter_mut().for_each(|u| *u = *u * growth / (1.0 + *u * (growth - 1.0)));
}
