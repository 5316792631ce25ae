//! How the kernels of layer normalisation are launched; they serve `adaln` too.

use super::LayerNorm;
use crate::args;
use crate::dtype::Dtype;
use crate::kernel::columns::{self, Target};
use crate::kernel::rows::{backward_grid, forward_grid};
use crate::kernel::{ALL_ELEMENTS, Source};
use crate::op::{GradBuffer, Grads, Launch, Saved};
use crate::tensor::Tensor;

/// The kernels.
pub static SOURCE: Source =
    Source { name: "layernorm", text: include_str!("layernorm.cu"), elements: ALL_ELEMENTS };

/// The vectors a row is multiplied with and moved by: one pair for each group of rows.
pub(crate) struct Affine<'a> {
    /// Weight and, where there is one, bias: a tensor, and the element where the first group's begins.
    pub(crate) w: (&'a Tensor, usize),
    pub(crate) b: (Option<&'a Tensor>, usize),
    /// Groups, and elements between the vectors of two.
    pub(crate) groups: usize,
    pub(crate) stride: usize,
    /// What is added to the stored weight.
    pub(crate) offset: f32,
}

impl<'a> Affine<'a> {
    /// One weight and bias for all rows.
    fn plain(w: &'a Tensor, b: Option<&'a Tensor>) -> Self {
        Affine { w: (w, 0), b: (b, 0), groups: 1, stride: 0, offset: 0.0 }
    }
}

/// Writes `out`; gives mean and 1/√(variance + ε) of each row, f32 [rows, 2].
pub(crate) fn forward(x: &Tensor, affine: &Affine, epsilon: f64, out: &mut Tensor) -> Tensor {
    const KERNELS: [&str; 3] =
        ["layernorm_forward_warp", "layernorm_forward_block", "layernorm_forward_wide"];
    let (rows, width) = (x.rows(), x.width());
    let mut stats = Tensor::arbitrary_on(x.device(), &[rows, 2], Dtype::F32);
    let (kind, grid) = forward_grid(rows, width);
    SOURCE.launch(
        x.dtype(),
        KERNELS[kind],
        grid,
        args![
            x,
            affine.w.0,
            affine.w.1 as i64,
            affine.b.0,
            affine.b.1 as i64,
            &mut stats,
            out,
            rows,
            (rows / affine.groups.max(1)).max(1),
            width,
            affine.stride as i64,
            affine.offset,
            epsilon as f32,
        ],
    );
    stats
}

/// dx into its grad, and dw and db into the targets that are wanted.
pub(crate) fn backward(
    (x, stats, dy): (&Tensor, &Tensor, &Tensor),
    affine: &Affine,
    dx: Option<&mut GradBuffer>,
    targets: [Option<Target<'_>>; 2],
) {
    const KERNELS: [&str; 3] =
        ["layernorm_backward_warp", "layernorm_backward_block", "layernorm_backward_wide"];
    let (width, groups) = (x.width(), affine.groups);
    let rows = x.rows() / groups.max(1);
    let (kind, grid, parts) = backward_grid(groups, rows, width);
    let mut partials = targets
        .iter()
        .any(Option::is_some)
        .then(|| Tensor::arbitrary_on(x.device(), &[groups, parts, 2, width], Dtype::F32));
    let add = dx.as_ref().is_some_and(|grad| grad.accumulate);
    SOURCE.launch(
        x.dtype(),
        KERNELS[kind],
        grid,
        args![
            x,
            affine.w.0,
            affine.w.1 as i64,
            stats,
            dy,
            dx.map(|grad| &mut grad.tensor),
            add,
            partials.as_mut(),
            rows,
            width,
            affine.stride as i64,
            affine.offset,
            parts,
        ],
    );
    if let Some(partials) = partials {
        columns::sum(&partials, x.dtype(), affine.stride, targets);
    }
}

impl Launch for LayerNorm {
    fn launch_forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        let [x, w, b] = [0, 1, 2].map(|i| inputs[i]);
        let stats = forward(x, &Affine::plain(w, Some(b)), self.epsilon, out);
        vec![x.clone(), w.clone(), stats]
    }

    fn launch_backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads) {
        let [x, w, stats] = [0, 1, 2].map(|i| &saved[i]);
        let [dx, dw, db] = grads.buffers([0, 1, 2]);
        let targets = [dw, db].map(|grad| grad.map(Target::whole));
        backward((x, stats, &dy), &Affine::plain(w, None), dx, targets);
    }
}
