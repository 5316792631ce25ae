//! Batched matrix product, like `torch.matmul`: y[b] = A[b] x[b], or A x[b] with a shared A. A [B, S, T] or [S, T],
//! x [B, T, C], y [B, S, C].
//!
//! A constant A expresses pooling, interpolation and transforms over tokens.
//! dx[b] = A[b]ᵀ dy[b], dA[b] = dy[b] x[b]ᵀ, summed over b for a shared A.

mod cpu;
mod cuda;

use crate::op::{Case, Draw, Grads, Op, Saved};
use crate::tensor::Tensor;
use crate::with_float;

/// y[b] = A[b] x[b]; inputs A, x.
#[derive(Clone, Copy, Debug)]
pub struct MatMul;

/// Sizes of a product.
struct Sizes {
    batch: usize,
    s: usize,
    t: usize,
    c: usize,
    /// Batch stride of A in elements; 0 if A is shared.
    step: usize,
}

impl Sizes {
    fn of(a: &Tensor, x: &Tensor) -> Self {
        let [&[batch, t, c], &[.., s, _]] = [x.shape(), a.shape()] else {
            unreachable!("checked by the shape of the op")
        };
        Self { batch, s, t, c, step: if a.shape().len() == 2 { 0 } else { s * t } }
    }
}

impl Op for MatMul {
    fn shape(&self, inputs: &[&[usize]]) -> Result<Vec<usize>, String> {
        match inputs {
            [[s, at], [b, t, c]] if at == t => Ok(vec![*b, *s, *c]),
            [[ab, s, at], [b, t, c]] if (ab, at) == (b, t) => Ok(vec![*b, *s, *c]),
            _ => Err("takes A [S, T] or [B, S, T] and x [B, T, C]".into()),
        }
    }

    fn flops(&self, inputs: &[&[usize]]) -> usize {
        2 * inputs[0][inputs[0].len() - 2] * inputs[1].iter().product::<usize>()
    }

    fn forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        with_float!(out.dtype(), T => cpu::forward::<T>(inputs[0], inputs[1], out.write()));
        vec![inputs[0].clone(), inputs[1].clone()]
    }

    fn backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads) {
        let [da, dx] = grads.buffers([0, 1]);
        with_float!(dy.dtype(), T => {
            cpu::backward::<T>(&saved[0], &saved[1], dy.read(), da, dx);
        });
    }
}

/// Returns test cases: fewer and more rows out than in, one row, several kernel tiles in each direction; constant,
/// learned and batched A.
pub fn cases() -> Vec<Case> {
    let case = |b: usize, s: usize, t: usize, c: usize| {
        Case::new(MatMul, &[&[s, t], &[b, t, c]]).flops(2 * b * s * t * c)
    };
    let batched = |b: usize, s: usize, t: usize, c: usize| {
        Case::new(MatMul, &[&[b, s, t], &[b, t, c]]).flops(2 * b * s * t * c)
    };
    vec![
        case(1, 1, 1, 1),
        case(2, 3, 7, 5),
        case(3, 9, 5, 17).draw(0, Draw::Constant),
        case(2, 65, 1, 9),
        case(3, 67, 33, 65),
        case(4, 72, 136, 16),
        case(64, 32, 64, 96).draw(0, Draw::Constant),
        batched(3, 5, 7, 2),
        batched(9, 64, 40, 24),
        batched(2, 67, 33, 65).draw(1, Draw::Constant),
    ]
}
