//! How the kernels are launched.

use super::Softmax;
use crate::args;
use crate::kernel::rows::forward_grid;
use crate::kernel::{ALL_ELEMENTS, Source};
use crate::op::{GradBuffer, Grads, Launch, Saved};
use crate::tensor::Tensor;

/// The kernels.
pub static SOURCE: Source =
    Source { name: "softmax", text: include_str!("softmax.cu"), elements: ALL_ELEMENTS };

impl Launch for Softmax {
    fn launch_forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        const KERNELS: [&str; 3] =
            ["softmax_forward_warp", "softmax_forward_block", "softmax_forward_wide"];
        let x = inputs[0];
        let (rows, width) = (x.rows(), x.width());
        let (kind, grid) = forward_grid(rows, width);
        SOURCE.launch(x.dtype(), KERNELS[kind], grid, args![x, &mut *out, rows, width]);
        vec![out.clone()]
    }

    fn launch_backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads) {
        const KERNELS: [&str; 3] =
            ["softmax_backward_warp", "softmax_backward_block", "softmax_backward_wide"];
        let Some(GradBuffer { tensor: dx, accumulate }) = grads.buffer(0) else { return };
        let (rows, width) = (dy.rows(), dy.width());
        let (kind, grid) = forward_grid(rows, width);
        let args = args![&saved[0], &dy, dx, *accumulate, rows, width];
        SOURCE.launch(dy.dtype(), KERNELS[kind], grid, args);
    }
}
