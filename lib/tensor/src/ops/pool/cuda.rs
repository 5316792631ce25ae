use super::{Pool, Pooling, lengths};
use crate::args;
use crate::dtype::Dtype;
use crate::kernel::{ALL_ELEMENTS, Source, units};
use crate::op::{Grads, Saved};
use crate::tensor::Tensor;

/// The kernels.
pub static SOURCE: Source =
    Source { name: "pool", text: include_str!("pool.cu"), elements: ALL_ELEMENTS };

pub(super) fn forward(op: &Pool, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
    let x = inputs[0];
    let mut chosen = (op.pooling == Pooling::Max)
        .then(|| Tensor::arbitrary_on(x.device(), out.shape(), Dtype::I32));
    let ([_, rows, columns, c], [_, to_rows, to_columns, _]) = (lengths(x), lengths(out));
    let (element, cells) = (out.dtype(), out.rows());
    SOURCE.launch(
        element,
        "pool_forward",
        units::grid(element, cells, c),
        args![
            x,
            out,
            chosen.as_mut(),
            cells,
            rows,
            columns,
            to_rows,
            to_columns,
            c,
            op.window[0],
            op.window[1],
            op.stride[0],
            op.stride[1],
        ],
    );
    chosen.into_iter().collect()
}

pub(super) fn backward(op: &Pool, saved: &Saved, dy: Tensor, grads: &mut Grads) {
    let Some(mut slot) = grads.take(0) else { return };
    let ([_, rows, columns, c], [_, to_rows, to_columns, _]) =
        (lengths(&slot.tensor), lengths(&dy));
    let (element, cells) = (dy.dtype(), slot.tensor.rows());
    SOURCE.launch(
        element,
        "pool_backward",
        units::grid(element, cells, c),
        args![
            &dy,
            saved.first(),
            &mut slot.tensor,
            cells,
            rows,
            columns,
            to_rows,
            to_columns,
            c,
            op.window[0],
            op.window[1],
            op.stride[0],
            op.stride[1],
            slot.add,
        ],
    );
    grads.put(0, slot);
}
