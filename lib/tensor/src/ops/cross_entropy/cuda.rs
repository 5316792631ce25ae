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

/// Two tensors with a row or an element for each row, and the weights of the rows, if there are any.
type RowInputs<'a> = (&'a Tensor, &'a Tensor, Option<&'a Tensor>);

/// Writes the loss of each row [R], and its maximum and log-sum [R, 2], given logits, targets and weights.
pub(crate) fn losses_of_rows(
    op: &CrossEntropy,
    (x, targets, weights): RowInputs<'_>,
    losses: &mut Tensor,
    stats: &mut Tensor,
) {
    let args = args![x, targets, weights, losses, stats, x.width()];
    let args = [args, &numbers(op)].concat();
    SOURCE.launch(x.dtype(), "cross_entropy_rows", grid(x), &args);
}

/// Writes the sum of the losses of all rows; `dtype` is that of the logits.
pub(crate) fn sum_of_losses(losses: &Tensor, dtype: Dtype, out: &mut Tensor) {
    let args = args![losses, out, losses.len()];
    SOURCE.launch(dtype, "cross_entropy_sum", Grid::new(1, 1024), args);
}

/// Replaces logits by their gradient, given targets, maximum and log-sum of each row, and weights.
pub(crate) fn gradient_in_place(
    op: &CrossEntropy,
    (targets, stats, weights): RowInputs<'_>,
    dy: &Tensor,
    x: &mut Tensor,
) {
    let (dtype, grid, classes) = (x.dtype(), grid(x), x.width());
    let x = Arg::from(x);
    let args = [&[x][..], args![targets, weights, stats, dy], &[x], args![classes]].concat();
    let args = [&args, &numbers(op)[..], args![false]].concat();
    SOURCE.launch(dtype, "cross_entropy_backward", grid, &args);
}

impl Launch for CrossEntropy {
    fn launch_forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        let (x, targets, weights) = (inputs[0], inputs[1], inputs.get(2).copied());
        let floats = |shape: &[usize]| Tensor::empty_on(x.device(), shape, Dtype::F32);
        let (mut losses, mut stats) = (floats(&[x.rows()]), floats(&[x.rows(), 2]));
        losses_of_rows(self, (x, targets, weights), &mut losses, &mut stats);
        sum_of_losses(&losses, x.dtype(), out);
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
