//! Diffusion-reaction in two dimensions, the FitzHugh-Nagumo model as in PDEBench: u_t = Du Δu + u - u³ - k - v, v_t =
//! Dv Δv + u - v on the square (-1, 1)² with no-flux boundaries.
//!
//! Strang splitting: the exact semigroup of the central second differences, axis by axis, and one step of classical
//! fourth-order Runge-Kutta in every cell. Second order in time and space. Arithmetic is f64.

use super::diffusion::{self, Diffusion, Ends};
use super::symmetry::{Point, Symmetries};

/// Longest step.
pub const STEP: f64 = 0.01;
/// Side length of the square.
pub const SIDE: f64 = 2.0;

/// The reflections and rotations of the square.
pub const SYMMETRIES: Symmetries =
    Symmetries { points: &Point::SQUARE, translation: None, centred: true, conserved: &[] };

/// Constants of the model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Constants {
    /// k.
    pub k: f64,
    /// Diffusivities of u and v.
    pub diffusivity: [f64; 2],
}

/// The scheme for one grid; can be shared between threads.
#[derive(Clone)]
pub struct FitzHughNagumo {
    k: f64,
    cells: usize,
    steps: usize,
    step: f64,
    diffusion: Diffusion,
    /// Factors of u and v.
    half: [Vec<f64>; 2],
    whole: [Vec<f64>; 2],
}

/// Buffers for one trajectory.
pub struct Workspace {
    line: diffusion::Workspace,
    turned: Vec<f64>,
}

impl FitzHughNagumo {
    /// A scheme on `cells` cells per side for frames `interval` apart, each step at most `step` long.
    pub fn new(constants: Constants, cells: usize, interval: f64, step: f64) -> Self {
        let steps = (interval / step).ceil().max(1.0);
        let step = interval / steps;
        let diffusion = Diffusion::new(cells, Ends::Closed);
        let factors = |time: f64| constants.diffusivity.map(|d| diffusion.factors(d, time, SIDE));
        Self {
            k: constants.k,
            cells,
            steps: steps as usize,
            step,
            half: factors(0.5 * step),
            whole: factors(step),
            diffusion,
        }
    }

    /// Buffers for one trajectory at a time.
    pub fn workspace(&self) -> Workspace {
        Workspace { line: self.diffusion.workspace(), turned: vec![0.0; self.cells * self.cells] }
    }

    /// Solves from u and v, each [x, y] at the cell centres, which are overwritten by the last frame, and writes the
    /// frames to `out` [frames, x, y, 2]. `None` when the solution is no longer finite.
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
        let (h, k) = (self.step, self.k);
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
