//! Steady flow through a porous medium (Darcy), -∇·(a∇u) = f on the unit square, u = 0 at the boundary.
//!
//! Finite volumes on equal cells: the flux through a face uses the harmonic mean of the two coefficients, which is
//! exact for a jump at the face; the flux through the boundary spans half a cell. Second order for smooth coefficients.
//! Solved by conjugate gradients, preconditioned with a multigrid V-cycle ([`multigrid`]). Arithmetic is f64.

mod multigrid;

use super::symmetry::{Point, Symmetries};
use multigrid::{Level, levels};

/// Tolerance on the residual relative to the right-hand side.
pub const TOLERANCE: f64 = 1e-10;
/// The reflections and rotations of the square, applied to both coefficient and solution.
pub const SYMMETRIES: Symmetries =
    Symmetries { points: &Point::SQUARE, translation: None, centred: true, conserved: &[] };
/// Maximum number of iterations; a solve that needs more fails.
const MAX_ITERATIONS: usize = 10_000;

/// A solver with buffers for one problem at a time.
pub struct Darcy {
    cells: usize,
    levels: Vec<Level>,
    residual: Vec<f64>,
    direction: Vec<f64>,
    product: Vec<f64>,
}

impl Darcy {
    /// Creates a solver for a grid with `cells` cells per side.
    pub fn new(cells: usize) -> Self {
        let zeros = || vec![0.0; cells * cells];
        Self {
            cells,
            levels: levels(cells),
            residual: zeros(),
            direction: zeros(),
            product: zeros(),
        }
    }

    /// Solves for `u` [x, y] at the cell centres, with coefficients `a` > 0 and sources `f` of the same shape. Returns
    /// the number of iterations, or `None` if the iteration does not converge.
    pub fn solve(&mut self, a: &[f64], f: &[f64], u: &mut [f64]) -> Option<usize> {
        let area = (1.0 / self.cells as f64).powi(2);
        self.levels[0].set_coefficients(a);
        for i in 1..self.levels.len() {
            let (finer, coarser) = self.levels.split_at_mut(i);
            coarser[0].average_coefficients(&finer[i - 1]);
        }
        u.fill(0.0);
        self.residual.iter_mut().zip(f).for_each(|(r, f)| *r = area * f);
        let goal = TOLERANCE * dot(&self.residual, &self.residual).sqrt();
        if goal == 0.0 {
            return Some(0);
        }
        let mut energy = 0.0;
        for iteration in 1..=MAX_ITERATIONS {
            multigrid::cycle(&mut self.levels, &self.residual);
            let z = self.levels[0].solution();
            let before = energy;
            energy = dot(&self.residual, z);
            let keep = if iteration == 1 { 0.0 } else { energy / before };
            for (d, z) in self.direction.iter_mut().zip(z) {
                *d = z + keep * *d;
            }
            self.levels[0].apply(&self.direction, &mut self.product);
            let way = energy / dot(&self.direction, &self.product);
            u.iter_mut().zip(&self.direction).for_each(|(u, d)| *u += way * d);
            self.residual.iter_mut().zip(&self.product).for_each(|(r, p)| *r -= way * p);
            let left = dot(&self.residual, &self.residual).sqrt();
            if left <= goal {
                return Some(iteration);
            }
            if !left.is_finite() {
                return None;
            }
        }
        None
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}
