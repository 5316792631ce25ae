use super::{Affine, NormKind, Normalization};
use crate::args;
use crate::dtype::Dtype;
use crate::kernel::reduce_rows::{self, Target, zeroed};
use crate::kernel::rows::{backward_grid, forward_grid, narrow_grid};
use crate::kernel::{ALL_DTYPES, Arg, Source, source};
use crate::op::{Grads, Launch, Saved};
use crate::tensor::Tensor;

/// Source of the forward kernels.
pub static SOURCE: Source = source!("normalization", ALL_DTYPES);
/// Source of the backward kernels.
pub static GRADIENT: Source = source!("normalization_backward", ALL_DTYPES);

/// Picks the kernel for rows of the given width: the first if it is a multiple of 16 bytes, otherwise the second.
fn pick([whole, odd]: [&'static str; 2], dtype: Dtype, width: usize) -> &'static str {
    if (width * dtype.bytes()).is_multiple_of(16) { whole } else { odd }
}

const FORWARD: [&str; 2] = ["normalization_forward", "normalization_forward_odd"];
const BACKWARD: [&str; 2] = ["normalization_backward", "normalization_backward_odd"];

impl Launch for Normalization {
    /// Saves x, the weights, and μ and r of each row: f32 [rows, 2].
    fn launch_forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        let (x, affine) = (inputs[0], Affine::new(self, inputs));
        let (rows, width) = (x.rows(), x.width());
        let mut stats = Tensor::empty_on(x.device(), &[rows, 2], Dtype::F32);
        let (kernel, (kind, grid)) = match narrow_grid(rows, width * x.dtype().bytes()) {
            Some(narrow) => ("normalization_forward_narrow", narrow),
            None => (pick(FORWARD, x.dtype(), width), forward_grid(rows, width, x.dtype())),
        };
        let group_rows = (rows / affine.groups.max(1)).max(1);
        let Affine { w, b, offset, .. } = affine;
        let [w_start, b_start, stride] =
            [affine.w_start, affine.b_start, affine.stride].map(|n| n as i64);
        let [offset, epsilon] = [offset, self.epsilon].map(|x| x as f32);
        let vectors = args![x, w, w_start, b, b_start, &mut stats, out];
        let sizes =
            args![rows, group_rows, width, stride, offset, epsilon, self.is_centred(), kind];
        SOURCE.launch(x.dtype(), kernel, grid, &[vectors, sizes].concat());
        vec![x.clone(), inputs[1].clone(), stats]
    }

    fn launch_backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads) {
        let [x, w, stats] = [0, 1, 2].map(|i| &saved[i]);
        let affine = Affine::new(self, &[x, w]);
        let (width, groups) = (x.width(), affine.groups);
        let rows = x.rows() / groups.max(1);
        let (warps, grid, parts) = backward_grid(groups, rows, width, x.dtype());
        if !matches!(self.kind, NormKind::Adaptive { .. }) {
            grads.widen(&[1, 2]);
        }
        let [dx, dw, db] = grads.buffers([0, 1, 2]);
        let found = dw.as_ref().or(db.as_ref()).map(|grad| grad.tensor.dtype());
        let targets = match (self.kind, dw) {
            // The remaining vectors of m get a zero gradient.
            (NormKind::Adaptive { shift, scale }, Some(dm)) => {
                let out = Arg::from(zeroed(dm));
                [scale, shift].map(|i| Some(Target { out, start: i * width, add: true }))
            }
            (_, dw) => [dw, db].map(|grad| grad.map(Target::whole)),
        };
        let mut partials = targets
            .iter()
            .any(Option::is_some)
            .then(|| Tensor::empty_on(x.device(), &[groups, parts, 2, width], Dtype::F32));
        let add = dx.as_ref().is_some_and(|grad| grad.accumulate);
        let [w_start, stride] = [affine.w_start, affine.stride].map(|n| n as i64);
        let (dx, offset) = (dx.map(|grad| &mut grad.tensor), affine.offset as f32);
        let vectors = args![x, w, w_start, stats, &dy, dx, add, partials.as_mut()];
        let sizes = args![rows, width, stride, offset, parts, self.is_centred(), warps];
        let kernel = pick(BACKWARD, x.dtype(), width);
        GRADIENT.launch(x.dtype(), kernel, grid, &[vectors, sizes].concat());
        if let Some(partials) = partials {
            reduce_rows::sum(&partials, found.unwrap_or(x.dtype()), affine.stride, targets);
        }
    }
}
