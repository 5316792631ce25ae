//! How the kernels are launched.

use super::RelativeError;
use crate::args;
use crate::dtype::Dtype;
use crate::kernel::{Grid, ONLY_F32, Source, flat};
use crate::op::{Grads, Launch, Saved};
use crate::tensor::Tensor;

/// The kernels.
pub static SOURCE: Source =
    Source { name: "relative_error", text: include_str!("relative_error.cu"), elements: ONLY_F32 };

impl Launch for RelativeError {
    /// Saves the terms of the groups, f32 [groups, 2], as on the CPU.
    fn launch_forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        let (p, t) = (inputs[0], inputs[1]);
        let groups = if self.per_sample { p.shape()[0] } else { 1 };
        let n = p.len() / groups;
        let (chunk, chunks) = flat::chunks(n);
        let mut partials = Tensor::arbitrary_on(p.device(), &[groups, chunks, 2], Dtype::F32);
        let mut terms = Tensor::arbitrary_on(p.device(), &[groups, 2], Dtype::F32);
        let grid = |blocks| Grid::new(blocks, flat::THREADS);
        let args = args![p, t, &mut partials, n as i64, chunk, chunks];
        SOURCE.launch(Dtype::F32, "relative_error_partials", grid(groups * chunks), args);
        let args = args![&partials, &mut terms, chunks, self.epsilon as f32, self.root];
        SOURCE.launch(Dtype::F32, "relative_error_terms", grid(groups), args);
        SOURCE.launch(Dtype::F32, "relative_error_mean", grid(1), args![&terms, out, groups]);
        vec![p.clone(), t.clone(), terms]
    }

    fn launch_backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads) {
        let [p, t, terms] = [0, 1, 2].map(|i| &saved[i]);
        let groups = terms.rows();
        let n = p.len() / groups;
        let (chunk, chunks) = flat::chunks(n);
        for (i, target) in [(0, false), (1, true)] {
            let Some(grad) = grads.buffer(i) else { continue };
            let (add, dx) = (grad.accumulate, &mut grad.tensor);
            SOURCE.launch(
                Dtype::F32,
                "relative_error_backward",
                Grid::new(groups * chunks, flat::THREADS),
                args![
                    p, t, terms, &dy, dx, add, target, self.root, groups, n as i64, chunk, chunks
                ],
            );
        }
    }
}
