//! Interpolation to another grid size, channels last. x [B, rows, columns, C], y [B, rows', columns', C] with the given
//! new grid; a one-dimensional grid has one row.
//!
//! Cells are areas (PyTorch's `align_corners=False`): the centre of new cell i of n' is at (i + 1/2)·n/n' - 1/2 in the
//! n old cells. Nearest takes cell ⌊i·n/n'⌋; linear interpolates between the two adjacent cells in each direction,
//! clamped at the border. Positions are exact integer fractions. dx is the adjoint: every old cell gathers from the new
//! cells that read it.

mod cpu;
mod cuda;

pub use cuda::SOURCE;

use crate::op::{Case, Grads, Op, Saved};
use crate::tensor::Tensor;
use crate::with_float;

/// The interpolation method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interpolation {
    /// The old cell that contains the corner of the new one.
    Nearest,
    /// Linear in each direction (bilinear in two dimensions).
    Linear,
}

/// Interpolation to a given grid.
#[derive(Clone, Copy, Debug)]
pub struct Interpolate {
    /// The method.
    pub interpolation: Interpolation,
    /// Rows and columns of the new grid.
    pub grid: [usize; 2],
}

impl Op for Interpolate {
    fn shape(&self, inputs: &[&[usize]]) -> Result<Vec<usize>, String> {
        match inputs {
            [[b, rows, columns, c]] if rows * columns > 0 && self.grid[0] * self.grid[1] > 0 => {
                Ok(vec![*b, self.grid[0], self.grid[1], *c])
            }
            _ => Err(format!("takes x [B, rows, columns, C], to a grid {:?}", self.grid)),
        }
    }

    fn forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        with_float!(out.dtype(), T => cpu::forward::<T>(self, inputs[0], out));
        vec![]
    }

    fn backward(&self, _saved: &Saved, dy: Tensor, grads: &mut Grads) {
        if let Some(grad) = grads.buffer(0) {
            with_float!(dy.dtype(), T => cpu::backward::<T>(self, &dy, grad));
        }
    }
}

/// Finer, coarser, equal and mixed sizes; one and two dimensions; odd channels.
pub fn cases() -> Vec<Case> {
    let mut cases = vec![];
    for interpolation in [Interpolation::Nearest, Interpolation::Linear] {
        for (shape, grid) in [
            ([1, 1, 1, 1], [1, 1]),
            ([2, 1, 7, 3], [1, 19]),
            ([2, 1, 19, 3], [1, 7]),
            ([3, 4, 6, 5], [8, 12]),
            ([2, 9, 5, 17], [4, 11]),
            ([2, 6, 4, 24], [3, 9]),
            ([16, 16, 16, 64], [32, 32]),
        ] {
            cases.push(Case::new(Interpolate { interpolation, grid }, &[&shape]));
        }
    }
    cases
}
