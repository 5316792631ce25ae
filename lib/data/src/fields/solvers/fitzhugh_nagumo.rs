//! Diffusion-reaction in two dimensions, the FitzHugh-Nagumo model as in PDEBench: u_t = Du Δu + u - u³ - k - v, v_t =
//! Dv Δv + u - v on the square (-1, 1)² with no-flux boundaries.
//!
//! Strang splitting: the exact semigroup of the central second differences, axis by axis, and one step of classical
//! fourth-order Runge-Kutta in every cell. Second order in time and space. Arithmetic is f64.

use super::diffusion::{self, Diffusion, Ends};
use super::symmetry::{Point, Symmetries};

/// Maximum time step.
pub const STEP: f64 = 0.01;
/// Side length of the square.
pub const SIDE: f64 = 2.0;

/// The reflections and rotations of the square.
pub const SYMMETRIES: Symmetries =
    Symmetries { points: &Point::SQUARE, translation: None, centred: true, conserved: &[] };

/// Model constants.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Constants {
    /// The constant k.
    pub k: f64,
    /// Diffusivities of u and v.
    pub diffusivity: [f64; 2],
}

/// The scheme for one grid; can be shared between threads.
#[derive(Clone)]
pub struct FitzHughNagumo {
    constants: Constants,
    cells: usize,
    steps: usize,
    step: f64,
    diffusion: Diffusion,
    /// Diffusion factors of u and v for a half step.
    half: [Vec<f64>; 2],
    whole: [Vec<f64>; 2],
}

/// Buffers for one trajectory.
pub struct Workspace {
    line: diffusion::Workspace,
    turned: Vec<f64>,
}

impl FitzHughNagumo {
    /// Creates a scheme on `cells` cells per side for frames `interval` apart, with time steps of at most `step`.
    pub fn new(constants: Constants, cells: usize, interval: f64, step: f64) -> Self {
        let steps = (interval / step).ceil().max(1.0);
        let step = interval / steps;
        let diffusion = Diffusion::new(cells, Ends::Closed);
        let factors = |time: f64| constants.diffusivity.map(|d| diffusion.factors(d, time, SIDE));
        Self {
            constants,
            cells,
            steps: steps as usize,
            step,
            half: factors(0.5 * step),
            whole: factors(step),
            diffusion,
        }
    }

    /// Allocates buffers for one trajectory at a time.
    pub fn workspace(&self) -> Workspace {
        Workspace { line: self.diffusion.workspace(), turned: vec![0.0; self.cells * self.cells] }
    }

    /// Solves from u and v, each [x, y] at the cell centres, which are overwritten by the last frame, and writes the
    /// frames to `out` [frames, x, y, 2]. Returns `None` when the solution is no longer finite.
    pub fn solve(
        &self,
        state: &mut [Vec<f64>; 2],
        out: &mut [f32],
        work: &mut Workspace,
    ) -> Option<()> {
        for (frame, out) in out.chunks_exact_mut(2 * self.cells * self.cells).enumerate() {
            if frame > 0 {
                self.advance(state, work);
            }
            let [u, v] = &*state;
            for ((out, u), v) in out.chunks_exact_mut(2).zip(u).zip(v) {
                out.copy_from_slice(&[*u as f32, *v as f32]);
            }
            if out.iter().any(|x| !x.is_finite()) {
                return None;
            }
        }
        Some(())
    }

    /// Computes the time derivative of the discretised equation. `field` and `out` are [x, y, 2] at the cell centres.
    pub fn rate(&self, field: &[f64], out: &mut [f64]) {
        let (n, Constants { k, diffusivity }) = (self.cells, self.constants);
        let curvature = (n as f64 / SIDE).powi(2);
        let at = |i: usize, j: usize, channel: usize| field[2 * (i * n + j) + channel];
        // No flux: the cell beyond the boundary equals the cell inside it.
        let around = |i: usize| [i.saturating_sub(1), (i + 1).min(n - 1)];
        for (cell, out) in out.chunks_exact_mut(2).enumerate() {
            let (i, j) = (cell / n, cell % n);
            let ([up, down], [left, right]) = (around(i), around(j));
            let [u, v] = [0, 1].map(|channel| at(i, j, channel));
            let [of_u, of_v] = [0, 1].map(|channel| {
                let neighbours = [(up, j), (down, j), (i, left), (i, right)];
                let sum: f64 = neighbours.into_iter().map(|(i, j)| at(i, j, channel)).sum();
                diffusivity[channel] * curvature * (sum - 4.0 * at(i, j, channel))
            });
            out.copy_from_slice(&[of_u + u - u * u * u - k - v, of_v + u - v]);
        }
    }

    /// Advances a field [x, y, 2] by the frame interval of the scheme.
    pub fn advance_field(&self, field: &mut [f64], work: &mut Workspace) {
        let channel = |channel: usize| field.iter().skip(channel).step_by(2).copied().collect();
        let mut state: [Vec<f64>; 2] = [channel(0), channel(1)];
        self.advance(&mut state, work);
        let cells = field.chunks_exact_mut(2).zip(state[0].iter().zip(&state[1]));
        cells.for_each(|(cell, (u, v))| cell.copy_from_slice(&[*u, *v]));
    }

    fn advance(&self, state: &mut [Vec<f64>; 2], work: &mut Workspace) {
        self.diffuse(state, &self.half, work);
        for left in (0..self.steps).rev() {
            let [u, v] = &mut *state;
            pulp::Arch::new().dispatch(|| self.react(u, v));
            // Two consecutive half steps of diffusion are merged into one whole step.
            self.diffuse(state, if left == 0 { &self.half } else { &self.whole }, work);
        }
    }

    fn diffuse(&self, state: &mut [Vec<f64>; 2], factors: &[Vec<f64>; 2], work: &mut Workspace) {
        let n = self.cells;
        for (field, factors) in state.iter_mut().zip(factors) {
            for _ in 0..2 {
                for line in field.chunks_exact_mut(n) {
                    self.diffusion.apply(line, factors, &mut work.line);
                }
                transpose::transpose(field, &mut work.turned, n, n);
                std::mem::swap(field, &mut work.turned);
            }
        }
    }

    #[inline(always)]
    fn react(&self, u: &mut [f64], v: &mut [f64]) {
        let (h, k) = (self.step, self.constants.k);
        let rate = |u: f64, v: f64| (u - u * u * u - k - v, u - v);
        for (u, v) in u.iter_mut().zip(v) {
            let (a, b) = (*u, *v);
            let (u1, v1) = rate(a, b);
            let (u2, v2) = rate(a + 0.5 * h * u1, b + 0.5 * h * v1);
            let (u3, v3) = rate(a + 0.5 * h * u2, b + 0.5 * h * v2);
            let (u4, v4) = rate(a + h * u3, b + h * v3);
            *u = a + h / 6.0 * (u1 + 2.0 * (u2 + u3) + u4);
            *v = b + h / 6.0 * (v1 + 2.0 * (v2 + v3) + v4);
        }
    }
}
