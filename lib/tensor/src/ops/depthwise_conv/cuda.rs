use super::{DepthwiseConv, Padding};
use crate::args;
use crate::dtype::Dtype;
use crate::kernel::divisor::divisor;
use crate::kernel::{ALL_DTYPES, Arg, Source, reduce_rows, source, units};
use crate::op::{Grads, Launch, Saved};
use crate::ops::linear::multiply_and_sum;
use crate::tensor::Tensor;

/// Source of the depthwise convolution kernels.
pub static SOURCE: Source = source!("depthwise_conv", ALL_DTYPES);

/// Number of adjacent tokens of a row that a thread computes.
const RUN: usize = 4;

/// Kernels by filter width: any; 3, 5 and 7 if the channels are a multiple of 16 bytes.
type Kernels = [&'static str; 4];
const APPLY: Kernels = [
    "depthwise_conv_apply",
    "depthwise_conv_apply_3",
    "depthwise_conv_apply_5",
    "depthwise_conv_apply_7",
];
const FILTER: Kernels = [
    "depthwise_conv_filter",
    "depthwise_conv_filter_3",
    "depthwise_conv_filter_5",
    "depthwise_conv_filter_7",
];

impl DepthwiseConv {
    fn kernel(&self, kernels: Kernels, element: Dtype, channels: usize) -> &'static str {
        let columns = self.filter[1];
        let is_special =
            (3..=7).contains(&columns) && (channels * element.bytes()).is_multiple_of(16);
        kernels[if is_special { columns / 2 } else { 0 }]
    }

    /// Returns the number of runs of up to [`RUN`] adjacent tokens.
    fn runs(&self, tokens: usize) -> usize {
        tokens / self.grid[1] * self.grid[1].div_ceil(RUN)
    }

    /// Returns the arguments shared by both kernels: grid and filter sizes, channels, padding.
    fn sizes(&self, channels: usize) -> Vec<Arg<'static>> {
        let axis = |i: usize| {
            let (length, filter) = (self.grid[i], self.filter[i]);
            let lift = (filter / 2).next_multiple_of(length);
            divisor(length).into_iter().chain([filter, lift].map(Arg::from))
        };
        let periodic = usize::from(self.padding == Padding::Periodic);
        axis(0).chain(axis(1)).chain([channels, periodic].map(Arg::from)).collect()
    }
}

/// Writes x convolved with the filter, which is flipped if `flip` is set, to `y`, or accumulates if `add` is set.
fn apply(
    op: &DepthwiseConv,
    [x, w]: [&Tensor; 2],
    bias: Option<&Tensor>,
    (y, add): (&mut Tensor, bool),
    flip: bool,
) {
    let (element, tokens, c) = (x.dtype(), x.rows(), x.width());
    let runs = op.runs(tokens);
    let args = [args![x, w, bias, y, runs], &op.sizes(c), args![flip, add]].concat();
    let kernel = op.kernel(APPLY, element, c);
    SOURCE.launch(element, kernel, units::grid(element, runs, c), &args);
}

impl Launch for DepthwiseConv {
    fn launch_forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        apply(self, [inputs[0], inputs[1]], Some(inputs[2]), (out, false), false);
        vec![inputs[0].clone(), inputs[1].clone()]
    }

    fn launch_backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads) {
        let (x, w) = (&saved[0], &saved[1]);
        let [dx, dw, db] = grads.buffers([0, 1, 2]);
        if let Some(grad) = dx {
            apply(self, [&dy, w], None, (&mut grad.tensor, grad.accumulate), true);
        }
        multiply_and_sum(&dy, None, None, db);
        let Some(grad) = dw else { return };
        // Partial sums over chunks of runs (split-k).
        let (dtype, runs, c) = (dy.dtype(), self.runs(dy.rows()), dy.width());
        let taps = self.filter[0] * self.filter[1];
        let chunk_runs = units::chunk(runs * RUN, taps * c).div_ceil(RUN);
        let chunks = runs.div_ceil(chunk_runs);
        let mut partials = Tensor::empty_on(dy.device(), &[chunks, taps * c], Dtype::F32);
        let args = args![x, &dy, &mut partials, runs, chunk_runs, chunks];
        let grid = units::grid(dtype, chunks * self.filter[0], c);
        let args = [args, &self.sizes(c)].concat();
        SOURCE.launch(dtype, self.kernel(FILTER, dtype, c), grid, &args);
        reduce_rows::sum_to(&partials, grad);
    }
}
