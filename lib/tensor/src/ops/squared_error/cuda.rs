//! How the kernels are launched.

use super::SquaredError;
use crate::args;
use crate::dtype::Dtype;
use crate::kernel::{Grid, ONLY_F32, Source, flat};
use crate::op::{Grads, Launch, Saved};
use crate::tensor::Tensor;

/// The kernels.
pub static SOURCE: Source =
    Source { name: "squared_error", text: include_str!("squared_error.cu"), elements: ONLY_F32 };

impl Launch for SquaredError {
    fn launch_forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        let [p, t, w, v] = [0, 1, 2, 3].map(|i| inputs[i]);
        let (samples, n, channels) = (w.len(), p.len() / w.len().max(1), v.len());
        let (chunk, chunks) = flat::chunks(n);
        let mut partials = Tensor::arbitrary_on(p.device(), &[samples, chunks], Dtype::F32);
        let grid = Grid::new(samples * chunks, flat::THREADS);
        let args = args![p, t, v, &mut partials, n as i64, channels, chunk, chunks];
        SOURCE.launch(Dtype::F32, "squared_error_partials", grid, args);
        let args = args![&partials, w, out, n.max(1) as i64, samples, chunks];
        SOURCE.launch(Dtype::F32, "squared_error_total", Grid::new(1, flat::THREADS), args);
        inputs.iter().map(|x| (*x).clone()).collect()
    }

    fn launch_backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads) {
        let [p, t, w, v] = [0, 1, 2, 3].map(|i| &saved[i]);
        let (samples, n, channels) = (w.len(), p.len() / w.len().max(1), v.len());
        let (chunk, chunks) = flat::chunks(n);
        let [dp, dt] = grads.buffers([0, 1]);
        if dp.is_none() && dt.is_none() {
            return;
        }
        let adds = [&dp, &dt].map(|grad| grad.as_ref().is_some_and(|grad| grad.accumulate));
        let [dp, dt] = [dp, dt].map(|grad| grad.map(|grad| &mut grad.tensor));
        SOURCE.launch(
            Dtype::F32,
            "squared_error_backward",
            Grid::new(samples * chunks, flat::THREADS),
            args![p, t, w, v, &dy, dp, adds[0], dt, adds[1], n as i64, channels, chunk, chunks],
        );
    }
}
