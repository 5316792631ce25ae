//! How the kernels are launched.

use crate::args;
use crate::dtype::Dtype;
use crate::kernel::columns;
use crate::kernel::rows::{backward_grid, forward_grid};
use crate::kernel::{ALL_ELEMENTS, Source};
use crate::op::Slot;
use crate::tensor::Tensor;

/// The kernels.
pub static SOURCE: Source =
    Source { name: "rmsnorm", text: include_str!("rmsnorm.cu"), elements: ALL_ELEMENTS };

/// Writes `out`; gives 0 and r of each row, f32 [rows, 2].
pub(super) fn forward(epsilon: f64, [x, w]: [&Tensor; 2], out: &mut Tensor) -> Tensor {
    const KERNELS: [&str; 3] =
        ["rmsnorm_forward_warp", "rmsnorm_forward_block", "rmsnorm_forward_wide"];
    let (rows, width) = (x.rows(), x.width());
    let mut stats = Tensor::arbitrary_on(x.device(), &[rows, 2], Dtype::F32);
    let (kind, grid) = forward_grid(rows, width);
    let args = args![x, w, &mut stats, out, rows.max(1), width, epsilon as f32];
    SOURCE.launch(x.dtype(), KERNELS[kind], grid, args);
    stats
}

pub(super) fn backward(
    [x, w, stats]: [&Tensor; 3],
    dy: &Tensor,
    dx: &mut Option<Slot>,
    dw: &mut Option<Slot>,
) {
    const KERNELS: [&str; 3] =
        ["rmsnorm_backward_warp", "rmsnorm_backward_block", "rmsnorm_backward_wide"];
    let (rows, width) = (x.rows(), x.width());
    let (kind, grid, parts) = backward_grid(1, rows, width);
    let mut partials =
        dw.is_some().then(|| Tensor::arbitrary_on(x.device(), &[parts, width], Dtype::F32));
    let add = dx.as_ref().is_some_and(|slot| slot.add);
    let dx = dx.as_mut().map(|slot| &mut slot.tensor);
    let args = args![x, w, stats, dy, dx, add, partials.as_mut(), rows, width, parts];
    SOURCE.launch(x.dtype(), KERNELS[kind], grid, args);
    if let (Some(partials), Some(slot)) = (partials, dw) {
        columns::sum_rows(&partials, slot);
    }
}
