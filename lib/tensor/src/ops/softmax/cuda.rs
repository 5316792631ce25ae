//! How the kernels are launched.

use crate::args;
use crate::kernel::rows::forward_grid;
use crate::kernel::{ALL_ELEMENTS, Source};
use crate::op::Slot;
use crate::tensor::Tensor;

/// The kernels.
pub static SOURCE: Source =
    Source { name: "softmax", text: include_str!("softmax.cu"), elements: ALL_ELEMENTS };

pub(super) fn forward(x: &Tensor, out: &mut Tensor) {
    const KERNELS: [&str; 3] =
        ["softmax_forward_warp", "softmax_forward_block", "softmax_forward_wide"];
    let (rows, width) = (x.rows(), x.width());
    let (kind, grid) = forward_grid(rows, width);
    SOURCE.launch(x.dtype(), KERNELS[kind], grid, args![x, out, rows, width]);
}

pub(super) fn backward(y: &Tensor, dy: &Tensor, slot: &mut Slot) {
    const KERNELS: [&str; 3] =
        ["softmax_backward_warp", "softmax_backward_block", "softmax_backward_wide"];
    let (rows, width) = (y.rows(), y.width());
    let (kind, grid) = forward_grid(rows, width);
    let args = args![y, dy, &mut slot.tensor, slot.add, rows, width];
    SOURCE.launch(y.dtype(), KERNELS[kind], grid, args);
}
