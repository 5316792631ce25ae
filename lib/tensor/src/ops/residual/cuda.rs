use super::{Gain, Residual};
use crate::args;
use crate::kernel::{ALL_DTYPES, Source, source, units};
use crate::op::{GradBuffer, Grads, Launch, Saved};
use crate::ops::linear::{Factor, multiply_and_sum};
use crate::ops::strided::{self, Space, Sum, View, checked};
use crate::tensor::Tensor;

/// Source of the residual kernel.
pub static SOURCE: Source = source!("residual", ALL_DTYPES);

/// Writes x + (offset + w) ∘ y to `out`, or accumulates if `add` is set; a missing x counts as 0.
fn add_scaled(gain: Gain, x: Option<&Tensor>, [y, w]: [&Tensor; 2], out: &mut Tensor, add: bool) {
    let (dtype, rows, width) = (y.dtype(), y.rows(), y.width());
    let Gain { start, stride, offset, .. } = gain;
    let (group, offset) = (gain.group(rows), offset as f32);
    let args = args![x, y, w, out, rows, width, add, start, stride, group, offset];
    SOURCE.launch(dtype, "residual_add", units::grid(dtype, rows, width), args);
}

/// Adds Σ dy ∘ y over the rows of each group to the group's vector in the gradient of m.
fn sum_of_groups(gain: Gain, [dy, y]: [&Tensor; 2], grad: &mut GradBuffer) {
    let (groups, width) = (gain.groups, y.width());
    let sizes = [groups, gain.group(y.rows()), width];
    let kept = [groups, 1, width];
    let mut sums = Tensor::empty_on(y.device(), &kept, grad.tensor.dtype());
    let sum = checked(Sum::new(&sizes, &kept, View::contiguous(&sizes)));
    strided::sum(&sum, dy, Some(y), &mut sums, 1.0, false);
    if !grad.accumulate {
        grad.tensor.zero();
    }
    let to = View::strided(&[gain.stride, 1]).narrowed(1, gain.start);
    let space = checked(Space::new(&[groups, width], [View::contiguous(&[groups, width]), to]));
    strided::copy(&space, &sums, &mut grad.tensor, 1.0, grad.accumulate);
}

impl Launch for Residual {
    fn launch_forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        let [x, y, w] = [inputs[0], inputs[1], inputs[2]];
        add_scaled(self.gain(x.width(), w), Some(x), [y, w], out, false);
        vec![y.clone(), w.clone()]
    }

    fn launch_backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads) {
        let ([y, w], [dbranch, dw]) = ([&saved[0], &saved[1]], grads.buffers([1, 2]));
        let gain = self.gain(y.width(), w);
        if let Some(grad) = dbranch {
            add_scaled(gain, None, [&dy, w], &mut grad.tensor, grad.accumulate);
        }
        match (self, dw) {
            (Self::Gated { .. }, Some(grad)) => sum_of_groups(gain, [&dy, y], grad),
            (_, dw) => multiply_and_sum(&dy, Some(Factor::Elements(y)), None, dw),
        }
        grads.accumulate(0, dy);
    }
}
