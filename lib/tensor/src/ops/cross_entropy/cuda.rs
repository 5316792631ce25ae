use super::{CrossEntropy, saved};
use crate::args;
use crate::dtype::Dtype;
use crate::kernel::{ALL_DTYPES, Arg, Grid, Source, source};
use crate::op::{GradBuffer, Grads, Launch, Saved};
use crate::tensor::Tensor;

/// Source of the cross-entropy kernels.
pub static SOURCE: Source = source!("cross_entropy", ALL_DTYPES);

/// Returns a grid with one block per row: one warp for few classes, more threads for many.
fn grid(x: &Tensor) -> Grid {
    let threads = match x.width() {
        0..=1024 => 32,
        1025..=8192 => 128,
        _ => 512,
    };
    Grid::new(x.rows(), threads)
}

/// Returns the op's parameters as arguments of both kernels; 1 - ε is the weight of the target class.
fn numbers(op: &CrossEntropy) -> [Arg<'static>; 4] {
    let [kept, smoothing, gamma] =
        [1.0 - op.smoothing, op.smoothing, op.gamma].map(|x| Arg::from(x as f32));
    [Arg::from(op.ignore), kept, smoothing, gamma]
}

impl Launch for CrossEntropy {
    fn launch_forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        let (x, targets, weights) = (inputs[0], inputs[1], inputs.get(2).copied());
        let (rows, classes) = (x.rows(), x.width());
        let floats = |shape: &[usize]| Tensor::empty_on(x.device(), shape, Dtype::F32);
        let (mut losses, mut stats) = (floats(&[rows]), floats(&[rows, 2]));
        let args = args![x, targets, weights, &mut losses, &mut stats, classes];
        let args = [args, &numbers(self)].concat();
        SOURCE.launch(x.dtype(), "cross_entropy_rows", grid(x), &args);
        let args = args![&losses, out, rows];
        SOURCE.launch(x.dtype(), "cross_entropy_sum", Grid::new(1, 1024), args);
        saved(inputs, stats)
    }

    fn launch_backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads) {
        let Some(GradBuffer { tensor: dx, accumulate }) = grads.buffer(0) else { return };
        let ([stats, x, targets], weights) = ([0, 1, 2].map(|i| &saved[i]), saved.get(3));
        let args = args![x, targets, weights, stats, &dy, dx, x.width()];
        let args = [args, &numbers(self), args![*accumulate]].concat();
        SOURCE.launch(x.dtype(), "cross_entropy_backward", grid(x), &args);
    }
}
