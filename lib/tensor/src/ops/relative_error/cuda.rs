//! How the kernels are launched.

use super::RelativeError;
use crate::args;
use crate::dtype::Dtype;
use crate::kernel::{Grid, ONLY_F32, Source, flat};
use crate::op::Slot;
use crate::tensor::Tensor;

/// The kernels.
pub static SOURCE: Source =
    Source { name: "relative_error", text: include_str!("relative_error.cu"), elements: ONLY_F32 };

/// Gives the terms of the groups, f32 [groups, 2], as on the host.
pub(super) fn forward(op: &RelativeError, [p, t]: [&Tensor; 2], out: &mut Tensor) -> Tensor {
    let groups = if op.per_sample { p.shape()[0] } else { 1 };
    let n = p.len() / groups;
    let (chunk, chunks) = flat::chunks(n);
    let mut partials = Tensor::arbitrary_on(p.device(), &[groups, chunks, 2], Dtype::F32);
    let mut terms = Tensor::arbitrary_on(p.device(), &[groups, 2], Dtype::F32);
    let grid = |blocks| Grid::new(blocks, flat::THREADS);
    let args = args![p, t, &mut partials, n as i64, chunk, chunks];
    SOURCE.launch(Dtype::F32, "relative_error_partials", grid(groups * chunks), args);
    let args = args![&partials, &mut terms, chunks, op.epsilon as f32, op.root];
    SOURCE.launch(Dtype::F32, "relative_error_terms", grid(groups), args);
    SOURCE.launch(Dtype::F32, "relative_error_mean", grid(1), args![&terms, out, groups]);
    terms
}

/// Gradient of the prediction or of the target.
pub(super) fn backward(
    op: &RelativeError,
    dy: &Tensor,
    [p, t, terms]: [&Tensor; 3],
    target: bool,
    slot: &mut Slot,
) {
    let groups = terms.rows();
    let n = p.len() / groups;
    let (chunk, chunks) = flat::chunks(n);
    let (add, dx) = (slot.add, &mut slot.tensor);
    SOURCE.launch(
        Dtype::F32,
        "relative_error_backward",
        Grid::new(groups * chunks, flat::THREADS),
        args![p, t, terms, dy, dx, add, target, op.root, groups, n as i64, chunk, chunks],
    );
}
