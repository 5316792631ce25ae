use super::{DepthwiseConv, Padding};
use crate::args;
use crate::dtype::Dtype;
use crate::kernel::{ALL_ELEMENTS, Arg, Source, columns, units};
use crate::op::{Grads, Saved};
use crate::tensor::Tensor;

/// The kernels.
pub static SOURCE: Source = Source {
    name: "depthwise_conv",
    text: include_str!("depthwise_conv.cu"),
    elements: ALL_ELEMENTS,
};

/// y (+)= the filter over x, as it is (`sign` 1) or turned round (-1).
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

pub(super) fn forward(op: &DepthwiseConv, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
    apply(op, [inputs[0], inputs[1]], Some(inputs[2]), (out, false), 1);
    vec![inputs[0].clone(), inputs[1].clone()]
}

pub(super) fn backward(op: &DepthwiseConv, saved: &Saved, dy: Tensor, grads: &mut Grads) {
    let (x, w) = (&saved[0], &saved[1]);
    if let Some(mut slot) = grads.take(0) {
        apply(op, [&dy, w], None, (&mut slot.tensor, slot.add), -1);
        grads.put(0, slot);
    }
    let slots = [grads.take(1), grads.take(2)];
    if slots.iter().all(Option::is_none) {
        return;
    }
    // Partial sums of w and of the bias over chunks of tokens.
    let (element, tokens, c) = (dy.dtype(), dy.rows(), dy.width());
    let taps = op.filter[0] * op.filter[1];
    let (chunks, chunk_tokens) = units::chunks(tokens, (taps + 1) * c);
    let partials = |wanted: bool, width: usize| {
        wanted.then(|| Tensor::arbitrary_on(dy.device(), &[chunks, width], Dtype::F32))
    };
    let mut sums = [partials(slots[0].is_some(), taps * c), partials(slots[1].is_some(), c)];
    let [dw, db] = sums.each_mut().map(|sum| Arg::from(sum.as_mut()));
    let ([rows, columns], [filter_rows, filter_columns]) = (op.grid, op.filter);
    SOURCE.launch(
        element,
        "depthwise_conv_filter",
        units::grid(element, chunks * (taps + 1), c),
        args![
            x,
            &dy,
            dw,
            db,
            tokens,
            chunk_tokens,
            chunks,
            rows,
            columns,
            filter_rows,
            filter_columns,
            c,
            op.padding == Padding::Periodic,
        ],
    );
    for ((i, slot), sum) in (1..).zip(slots).zip(sums) {
        if let (Some(mut slot), Some(sum)) = (slot, sum) {
            columns::sum_rows(&sum, &mut slot);
            grads.put(i, slot);
        }
    }
}
