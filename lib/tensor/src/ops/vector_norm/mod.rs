//! Norm over the last axis: y = Σ x², y = √(Σ x² + ε²) or its logarithm y = ½·ln(Σ x² + ε²). x [.., N], y [..].
//!
//! dx = 2·dy·x, dx = dy·x/y or dx = dy·x·exp(-2y); ε keeps the latter two finite at zero.

mod cuda;

pub use cuda::SOURCE;

use crate::dtype::{Dtype, Float};
use crate::kernel::ONLY_F32;
use crate::op::{Case, GradBuffer, Grads, Op, Saved};
use crate::simd::sum;
use crate::tensor::Tensor;
use crate::{for_rows, with_float};

/// Norm over the last axis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum VectorNorm {
    /// Σ x².
    Squared,
    /// √(Σ x² + ε²).
    Root {
        /// ε, which keeps the gradient finite at zero.
        epsilon: f64,
    },
    /// ½·ln(Σ x² + ε²).
    Log {
        /// ε, which keeps the value and the gradient finite at zero.
        epsilon: f64,
    },
}

impl VectorNorm {
    /// Returns ε², which is added to Σ x².
    fn floor(&self) -> f64 {
        match self {
            VectorNorm::Squared => 0.0,
            VectorNorm::Root { epsilon } | VectorNorm::Log { epsilon } => epsilon * epsilon,
        }
    }

    /// Returns the index of the variant, as in `vector_norm.cu`.
    fn kind(&self) -> i32 {
        match self {
            VectorNorm::Squared => 0,
            VectorNorm::Root { .. } => 1,
            VectorNorm::Log { .. } => 2,
        }
    }

    fn forward<T: Float>(&self, n: usize, x: &[T], out: &mut [T]) {
        for_rows!((out, 1), n, |row, y| {
            let squares = sum([&x[row * n..][..n]], |[x]| x * x);
            y[0] = match self {
                VectorNorm::Squared => squares,
                VectorNorm::Root { .. } => (squares + T::of(self.floor())).sqrt(),
                VectorNorm::Log { .. } => T::of(0.5 * (squares.f64() + self.floor()).ln()),
            };
        });
    }

    fn backward<T: Float>(&self, n: usize, [x, y, dy]: [&[T]; 3], grad: &mut GradBuffer) {
        let add = grad.accumulate;
        for_rows!((grad.tensor.write::<T>(), n), n, |row, dx| {
            let factor = match self {
                VectorNorm::Squared => T::of(2.0) * dy[row],
                VectorNorm::Root { .. } => dy[row] / y[row],
                VectorNorm::Log { .. } => dy[row] * (T::of(-2.0) * y[row]).exp(),
            };
            for (dx, x) in dx.iter_mut().zip(&x[row * n..][..n]) {
                *dx = if add { *dx + factor * *x } else { factor * *x };
            }
        });
    }
}

impl Op for VectorNorm {
    fn shape(&self, inputs: &[&[usize]]) -> Result<Vec<usize>, String> {
        match inputs {
            [[rows @ .., _]] if !rows.is_empty() => Ok(rows.to_vec()),
            _ => Err("takes x [.., N] of two axes or more".into()),
        }
    }

    fn dtypes(&self) -> &'static [Dtype] {
        ONLY_F32
    }

    fn forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        let x = inputs[0];
        with_float!(x.dtype(), T => self.forward::<T>(x.width(), x.read(), out.write()));
        vec![x.clone(), out.clone()]
    }

    fn backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads) {
        if let Some(grad) = grads.buffer(0) {
            let (x, y) = (&saved[0], &saved[1]);
            with_float!(dy.dtype(), T => {
                self.backward::<T>(x.width(), [x.read(), y.read(), dy.read()], grad);
            });
        }
    }
}

/// Returns test cases: one element, odd widths, rows summed by one warp and by several.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let epsilon = 0.5;
    for op in [VectorNorm::Squared, VectorNorm::Root { epsilon }, VectorNorm::Log { epsilon }] {
        for shape in [&[1, 1][..], &[3, 7], &[2, 5, 2], &[129, 33], &[3, 1500], &[64, 4100]] {
            cases.push(Case::new(op, &[shape]));
        }
    }
    cases
}
