use super::{DepthwiseConv, Padding};
use crate::args;
use crate::dtype::Dtype;
use crate::kernel::{ALL_DTYPES, Source, columns, units};
use crate::op::{Grads, Launch, Saved};
use crate::ops::linear::multiply_and_sum;
use crate::tensor::Tensor;

/// The kernels.
pub static SOURCE: Source =
    Source { name: "depthwise_conv", text: include_str!("depthwise_conv.cu"), dtypes: ALL_DTYPES };

/// y (+)= x convolved with the filter, as it is (`sign` 1) or flipped (-1).
fn apply(
    op: &DepthwiseConv,
    [x, w]: [&Tensor; 2],
    bias: Option<&Tensor>,
    (y, add): (&mut Tensor, bool),
    sign: i32,
) {
    let (element, tokens, c) = (x.dtype(), x.rows(), x.width());
    let ([rows, columns], [filter_rows, filter_columns]) = (op.grid, op.filter);
    let periodic = op.padding == Padding::Periodic;
    SOURCE.launch(
        element,
        "depthwise_conv_apply",
        units::grid(element, tokens, c),
        args![
            x,
            w,
            bias,
            y,
            tokens,
            rows,
            columns,
            filter_rows,
            filter_columns,
            c,
            periodic,
            sign,
            add,
        ],
    );
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
        let ([rows, columns], [filter_rows, filter_columns]) = (self.grid, self.filter);
        SOURCE.launch(
            dtype,
            "depthwise_conv_filter",
            units::grid(dtype, chunks * taps, c),
            args![
                x,
                &dy,
                &mut partials,
                tokens,
                chunk_tokens,
                chunks,
                rows,
                columns,
                filter_rows,
                filter_columns,
                c,
                self.padding == Padding::Periodic,
            ],
        );
        columns::sum_rows(&partials, grad);
    }
}
