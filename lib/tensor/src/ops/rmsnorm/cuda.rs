//! How the kernels are launched.

use super::RmsNorm;
use crate::args;
use crate::dtype::Dtype;
use crate::kernel::columns;
use crate::kernel::rows::{backward_grid, forward_grid};
use crate::kernel::{ALL_ELEMENTS, Source};
use crate::op::{Grads, Launch, Saved};
use crate::tensor::Tensor;

/// The kernels.
pub static SOURCE: Source =
    Source { name: "rmsnorm", text: include_str!("rmsnorm.cu"), elements: ALL_ELEMENTS };

impl Launch for RmsNorm {
    /// Saves x, w and, of each row, 0 and r: f32 [rows, 2].
    fn launch_forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        const KERNELS: [&str; 3] =
            ["rmsnorm_forward_warp", "rmsnorm_forward_block", "rmsnorm_forward_wide"];
        let (x, w) = (inputs[0], inputs[1]);
        let (rows, width) = (x.rows(), x.width());
        let mut stats = Tensor::arbitrary_on(x.device(), &[rows, 2], Dtype::F32);
        let (kind, grid) = forward_grid(rows, width);
        let args = args![x, w, &mut stats, out, rows.max(1), width, self.epsilon as f32];
        SOURCE.launch(x.dtype(), KERNELS[kind], grid, args);
        vec![x.clone(), w.clone(), stats]
    }

    fn launch_backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads) {
        const KERNELS: [&str; 3] =
            ["rmsnorm_backward_warp", "rmsnorm_backward_block", "rmsnorm_backward_wide"];
        let [x, w, stats] = [0, 1, 2].map(|i| &saved[i]);
        let (rows, width) = (x.rows(), x.width());
        let (kind, grid, parts) = backward_grid(1, rows, width);
        let [dx, dw] = grads.buffers([0, 1]);
        let mut partials =
            dw.is_some().then(|| Tensor::arbitrary_on(x.device(), &[parts, width], Dtype::F32));
        let add = dx.as_ref().is_some_and(|grad| grad.accumulate);
        let dx = dx.map(|grad| &mut grad.tensor);
        let args = args![x, w, stats, &dy, dx, add, partials.as_mut(), rows, width, parts];
        SOURCE.launch(x.dtype(), KERNELS[kind], grid, args);
        if let (Some(partials), Some(grad)) = (partials, dw) {
            columns::sum_rows(&partials, grad);
        }
    }
}
