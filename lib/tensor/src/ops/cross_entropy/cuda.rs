use super::{CrossEntropy, saved};
use crate::args;
use crate::dtype::Dtype;
use crate::kernel::{ALL_DTYPES, Grid, Source};
use crate::op::{GradBuffer, Grads, Launch, Saved};
use crate::tensor::Tensor;

/// The kernels.
pub static SOURCE: Source =
    Source { name: "cross_entropy", text: include_str!("cross_entropy.cu"), dtypes: ALL_DTYPES };

/// One block per row: a warp for few classes, more threads for many.
fn grid(x: &Tensor) -> Grid {
    let threads = match x.width() {
        0..=1024 => 32,
        1025..=8192 => 128,
        _ => 512,
    };
    Grid::new(x.rows(), threads)
}

/// 1 - ε, the share of the target itself.
fn kept(op: &CrossEntropy) -> f32 {
    (1.0 - op.smoothing) as f32
}

impl Launch for CrossEntropy {
    fn launch_forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        let (x, targets, weights) = (inputs[0], inputs[1], inputs.get(2).copied());
        let (rows, classes, smoothing) = (x.rows(), x.width(), self.smoothing as f32);
        let floats = |shape: &[usize]| Tensor::empty_on(x.device(), shape, Dtype::F32);
        let (mut losses, mut stats) = (floats(&[rows]), floats(&[rows, 2]));
        let (to, ignore) = ((&mut losses, &mut stats), self.ignore);
        let args = args![x, targets, weights, to.0, to.1, classes, ignore, kept(self), smoothing];
        SOURCE.launch(x.dtype(), "cross_entropy_rows", grid(x), args);
        let args = args![&losses, out, rows];
        SOURCE.launch(x.dtype(), "cross_entropy_sum", Grid::new(1, 1024), args);
        saved(inputs, stats)
    }

    fn launch_backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads) {
        let Some(GradBuffer { tensor: dx, accumulate }) = grads.buffer(0) else { return };
        let ([stats, x, targets], weights) = ([0, 1, 2].map(|i| &saved[i]), saved.get(3));
        let (classes, smoothing) = (x.width(), self.smoothing as f32);
        SOURCE.launch(
            x.dtype(),
            "cross_entropy_backward",
            grid(x),
            args![
                x,
                targets,
                weights,
                stats,
                &dy,
                dx,
                classes,
                self.ignore,
                kept(self),
                smoothing,
                *accumulate,
            ],
        );
    }
}
