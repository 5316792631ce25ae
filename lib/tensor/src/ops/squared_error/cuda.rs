//! Kernel launches.

use super::SquaredError;
use crate::args;
use crate::dtype::Dtype;
use crate::kernel::divisor::divisor;
use crate::kernel::{Grid, ONLY_F32, Source, flat, source};
use crate::op::{GradBuffer, Grads, Launch, Saved};
use crate::tensor::Tensor;

/// Source of the squared error kernels.
pub static SOURCE: Source = source!("squared_error", ONLY_F32);

impl Launch for SquaredError {
    fn launch_forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        let [p, t, w, v] = [0, 1, 2, 3].map(|i| inputs[i]);
        let (samples, n, channels) = (w.len(), p.len() / w.len().max(1), v.len());
        let (chunk, chunks) = flat::chunks(n);
        let mut partials = Tensor::empty_on(p.device(), &[samples, chunks], Dtype::F32);
        let grid = Grid::new(samples * chunks, flat::THREADS);
        let tensors = args![p, t, v, &mut partials, n as i64];
        let args = [tensors, &divisor(channels), args![chunk, chunks]].concat();
        SOURCE.launch(Dtype::F32, "squared_error_partials", grid, &args);
        let args = args![&partials, w, out, n.max(1) as i64, samples, chunks];
        SOURCE.launch(Dtype::F32, "squared_error_total", Grid::new(1, flat::THREADS), args);
        inputs.iter().map(|x| (*x).clone()).collect()
    }

    fn launch_backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads) {
        let [p, t, w, v] = [0, 1, 2, 3].map(|i| &saved[i]);
        let (samples, n, channels) = (w.len(), p.len() / w.len().max(1), v.len());
        let (chunk, chunks) = flat::chunks(n);
        for (i, sign) in [(0, 1.0_f32), (1, -1.0)] {
            let Some(GradBuffer { tensor: dx, accumulate }) = grads.buffer(i) else { continue };
            let tensors = args![p, t, w, v, &dy, dx, *accumulate, sign, n as i64];
            let args = [tensors, &divisor(channels), args![chunk, chunks]].concat();
            let grid = Grid::new(samples * chunks, flat::THREADS);
            SOURCE.launch(Dtype::F32, "squared_error_backward", grid, &args);
        }
    }
}
