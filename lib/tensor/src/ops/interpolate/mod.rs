//! Interpolation to a different grid size, channels last. x [B, depth, rows, columns, C],
//! y [B, depth', rows', columns', C]; depth defaults to 1, and a one-dimensional grid has one row.
//!
//! Cells are areas (PyTorch's `align_corners=False`): in units of the n old cells, the centre of new cell i of n' is at
//! (i + 1/2)·n/n' - 1/2. Nearest takes cell ⌊i·n/n'⌋; linear interpolates between the two adjacent cells in each
//! direction, clamped at the border. Positions are exact integer fractions. dx is the adjoint: every old cell sums over
//! the new cells that read it.

mod cpu;
mod cuda;

pub use cuda::SOURCE;

use crate::op::{Case, Grads, Op, Saved};
use crate::ops::grid;
use crate::tensor::Tensor;
use crate::with_float;

/// Interpolation method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interpolation {
    /// The old cell that contains the lower corner of the new cell.
    Nearest,
    /// Linear in each direction (bilinear in two dimensions, trilinear in three).
    Linear,
}

/// Interpolation to a given grid.
#[derive(Clone, Copy, Debug)]
pub struct Interpolate {
    /// Interpolation method.
    pub interpolation: Interpolation,
    /// Depth, rows and columns of the new grid.
    pub grid: [usize; 3],
}

impl Op for Interpolate {
    fn shape(&self, inputs: &[&[usize]]) -> Result<Vec<usize>, String> {
        match (inputs, inputs.first().and_then(|x| grid::lengths(x))) {
            ([x], Some([b, from @ .., c])) if !from.contains(&0) && !self.grid.contains(&0) => {
                let [depth, rows, columns] = self.grid;
                grid::like(x, [b, depth, rows, columns, c])
            }
            _ => Err(format!("takes x [B, (depth,) rows, columns, C], to a grid {:?}", self.grid)),
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

/// Returns test cases: finer, coarser, equal and mixed sizes; one to three dimensions; odd channels.
pub fn cases() -> Vec<Case> {
    let mut cases = vec![];
    for interpolation in [Interpolation::Nearest, Interpolation::Linear] {
        let sizes: [(&[usize], _); _] = [
            (&[1, 1, 1, 1], [1, 1, 1]),
            (&[2, 1, 7, 3], [1, 1, 19]),
            (&[2, 1, 19, 3], [1, 1, 7]),
            (&[3, 4, 6, 5], [1, 8, 12]),
            (&[2, 9, 5, 17], [1, 4, 11]),
            (&[2, 6, 4, 24], [1, 3, 9]),
            (&[2, 3, 5, 4, 5], [6, 10, 8]),
            (&[2, 5, 3, 4, 8], [3, 7, 4]),
            (&[16, 16, 16, 64], [1, 32, 32]),
            (&[2, 8, 8, 16, 64], [16, 16, 32]),
        ];
        for (shape, grid) in sizes {
            cases.push(Case::new(Interpolate { interpolation, grid }, &[shape]));
        }
    }
    cases
}
