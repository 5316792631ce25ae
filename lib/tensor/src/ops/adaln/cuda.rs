//! How the kernels of layer normalisation are launched with the vectors of each group.

use super::AdaLn;
use crate::kernel::Arg;
use crate::kernel::columns::{Target, zeroed};
use crate::op::Slot;
use crate::ops::layernorm::cuda::{self, Affine};
use crate::tensor::Tensor;

fn affine(op: AdaLn, m: &Tensor, h: usize) -> Affine<'_> {
    Affine {
        w: (m, op.scale * h),
        b: (Some(m), op.shift * h),
        groups: m.rows(),
        stride: m.width(),
        offset: 1.0,
    }
}

pub(super) fn forward(op: AdaLn, [x, m]: [&Tensor; 2], out: &mut Tensor) -> Tensor {
    cuda::forward(x, &affine(op, m, x.width()), op.epsilon, out)
}

pub(super) fn backward(
    op: AdaLn,
    [x, m, stats]: [&Tensor; 3],
    dy: &Tensor,
    dx: &mut Option<Slot>,
    dm: &mut Option<Slot>,
) {
    let h = x.width();
    let mut targets = [None; 2];
    if let Some(slot) = dm {
        // Vectors of m that are not used have no gradient.
        let out = Arg::from(zeroed(slot));
        targets = [op.scale, op.shift].map(|i| Some(Target { out, start: i * h, add: true }));
    }
    cuda::backward((x, stats, dy), &affine(op, m, h), dx.as_mut(), targets);
}
