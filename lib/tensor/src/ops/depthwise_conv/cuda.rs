use super::{DepthwiseConv, Padding};
use crate::args;
use crate::dtype::Dtype;
use crate::kernel::{ALL_DTYPES, Arg, Source, reduce_rows, source, units};
use crate::op::{Grads, Launch, Saved};
use crate::ops::linear::multiply_and_sum;
use crate::tensor::Tensor;

/// The kernels.
pub static SOURCE: Source = source!("depthwise_conv", ALL_DTYPES);

impl DepthwiseConv {
    /// The arguments that both kernels take: the sizes of the grid and of the filter, the channels, the padding.
    fn sizes(&self, channels: usize) -> [Arg<'static>; 6] {
        let ([rows, columns], [p, q]) = (self.grid, self.filter);
        let periodic = usize::from(self.padding == Padding::Periodic);
        [rows, columns, p, q, channels, periodic].map(Arg::from)
    }
}

/// y (+)= x convolved with the filter, as it is (`sign` 1) or flipped (-1).
fn apply(
    op: &DepthwiseConv,
    [x, w]: [&Tensor; 2],
    bias: Option<&Tensor>,
    (y, add): (&mut Tensor, bool),
    sign: i32,
) {
    let (element, tokens, c) = (x.dtype(), x.rows(), x.width());
    let args = [args![x, w, bias, y, tokens], &op.sizes(c), args![sign, add]].concat();
    SOURCE.launch(element, "depthwise_conv_apply", units::grid(element, tokens, c), &args);
}

impl Launch for DepthwiseConv {
    fn launch_forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        apply(self, [inputs[0], inputs[1]], Some(inputs[2]), (out, false), 1);
        vec![inputs[0].clone(), inputs[1].clone()]
    }

    fn launch_backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads) {
        let (x, w) = (&saved[0], &saved[1]);
        let [dx, dw, db] = grads.buffers([0, 1, 2]);
        if let Some(grad) = dx {
            apply(self, [&dy, w], None, (&mut grad.tensor, grad.accumulate), -1);
        }
        multiply_and_sum(&dy, None, None, db);
        let Some(grad) = dw else { return };
        // Partial sums over chunks of tokens.
        let (dtype, tokens, c) = (dy.dtype(), dy.rows(), dy.width());
        let taps = self.filter[0] * self.filter[1];
        let (chunks, chunk_tokens) = units::chunks(tokens, taps * c);
        let mut partials = Tensor::empty_on(dy.device(), &[chunks, taps * c], Dtype::F32);
        let args = args![x, &dy, &mut partials, tokens, chunk_tokens, chunks];
        let (grid, args) = (units::grid(dtype, chunks * taps, c), [args, &self.sizes(c)].concat());
        SOURCE.launch(dtype, "depthwise_conv_filter", grid, &args);
        reduce_rows::sum_to(&partials, grad);
    }
}
