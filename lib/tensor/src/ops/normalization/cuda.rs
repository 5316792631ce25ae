use super::{Affine, Kind, Normalization};
use crate::args;
use crate::dtype::Dtype;
use crate::kernel::columns::{self, Target, zeroed};
use crate::kernel::rows::{backward_grid, forward_grid};
use crate::kernel::{ALL_DTYPES, Arg, Source};
use crate::op::{Grads, Launch, Saved};
use crate::tensor::Tensor;

/// The kernels.
pub static SOURCE: Source =
    Source { name: "normalization", text: include_str!("normalization.cu"), dtypes: ALL_DTYPES };

impl Launch for Normalization {
    /// Saves x, the weights, and μ and r of each row: f32 [rows, 2].
    fn launch_forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        let (x, affine) = (inputs[0], Affine::new(self, inputs));
        let (rows, width) = (x.rows(), x.width());
        let mut stats = Tensor::empty_on(x.device(), &[rows, 2], Dtype::F32);
        let (kind, grid) = forward_grid(rows, width);
        SOURCE.launch(
            x.dtype(),
            "normalization_forward",
            grid,
            args![
                x,
                affine.w,
                affine.w_start as i64,
                affine.b,
                affine.b_start as i64,
                &mut stats,
                out,
                rows,
                (rows / affine.groups.max(1)).max(1),
                width,
                affine.stride as i64,
                affine.offset as f32,
                self.epsilon as f32,
                self.is_centred(),
                kind,
            ],
        );
        vec![x.clone(), inputs[1].clone(), stats]
    }

    fn launch_backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads) {
        let [x, w, stats] = [0, 1, 2].map(|i| &saved[i]);
        let affine = Affine::new(self, &[x, w]);
        let (width, groups) = (x.width(), affine.groups);
        let rows = x.rows() / groups.max(1);
        let (kind, grid, parts) = backward_grid(groups, rows, width);
        let [dx, dw, db] = grads.buffers([0, 1, 2]);
        let targets = match (self.kind, dw) {
            // Unused vectors of m get a zero gradient.
            (Kind::Adaptive { shift, scale }, Some(dm)) => {
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
        SOURCE.launch(
            x.dtype(),
            "normalization_backward",
            grid,
            args![
                x,
                w,
                affine.w_start as i64,
                stats,
                &dy,
                dx.map(|grad| &mut grad.tensor),
                add,
                partials.as_mut(),
                rows,
                width,
                affine.stride as i64,
                affine.offset as f32,
                parts,
                self.is_centred(),
                kind,
            ],
        );
        if let Some(partials) = partials {
            columns::sum(&partials, x.dtype(), affine.stride, targets);
        }
    }
}
