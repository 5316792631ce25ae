//! Kernel launches.

use super::RelativeError;
use crate::args;
use crate::dtype::Dtype;
use crate::kernel::{Grid, ONLY_F32, Source, flat, source};
use crate::op::{GradBuffer, Grads, Launch, Saved};
use crate::tensor::Tensor;

/// Source of the relative error kernels.
pub static SOURCE: Source = source!("relative_error", ONLY_F32);

impl Launch for RelativeError {
    /// Saves p, t, and (e, D) of each sample: f32 [samples, 2].
    fn launch_forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        let (p, t) = (inputs[0], inputs[1]);
        let samples = p.shape()[0];
        let n = p.len() / samples;
        let (chunk, chunks) = flat::chunks(n);
        let mut partials = Tensor::empty_on(p.device(), &[samples, chunks, 2], Dtype::F32);
        let mut terms = Tensor::empty_on(p.device(), &[samples, 2], Dtype::F32);
        let grid = |blocks| Grid::new(blocks, flat::THREADS);
        let args = args![p, t, &mut partials, n as i64, chunk, chunks];
        SOURCE.launch(Dtype::F32, "relative_error_partials", grid(samples * chunks), args);
        let args = args![&partials, &mut terms, chunks, self.epsilon as f32];
        SOURCE.launch(Dtype::F32, "relative_error_terms", grid(samples), args);
        SOURCE.launch(Dtype::F32, "relative_error_mean", grid(1), args![&terms, out, samples]);
        vec![p.clone(), t.clone(), terms]
    }

    fn launch_backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads) {
        let Some(GradBuffer { tensor: dp, accumulate }) = grads.buffer(0) else { return };
        let [p, t, terms] = [0, 1, 2].map(|i| &saved[i]);
        let samples = terms.rows();
        let n = p.len() / samples;
        let (chunk, chunks) = flat::chunks(n);
        let args = args![p, t, terms, &dy, dp, *accumulate, samples, n as i64, chunk, chunks];
        let grid = Grid::new(samples * chunks, flat::THREADS);
        SOURCE.launch(Dtype::F32, "relative_error_backward", grid, args);
    }
}
