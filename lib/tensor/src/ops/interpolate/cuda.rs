use super::{Interpolate, Interpolation};
use crate::args;
use crate::kernel::{ALL_ELEMENTS, Source, units};
use crate::op::{Grads, Saved};
use crate::ops::pool::lengths;
use crate::tensor::Tensor;

/// The kernels.
pub static SOURCE: Source =
    Source { name: "interpolate", text: include_str!("interpolate.cu"), elements: ALL_ELEMENTS };

pub(super) fn forward(op: &Interpolate, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
    let (x, element, cells) = (inputs[0], out.dtype(), out.rows());
    let ([_, rows, columns, c], [to_rows, to_columns]) = (lengths(x), op.grid);
    let linear = op.interpolation == Interpolation::Linear;
    SOURCE.launch(
        element,
        "interpolate_forward",
        units::grid(element, cells, c),
        args![x, out, cells, rows, columns, to_rows, to_columns, c, linear],
    );
    vec![]
}

pub(super) fn backward(op: &Interpolate, _saved: &Saved, dy: Tensor, grads: &mut Grads) {
    let Some(mut slot) = grads.take(0) else { return };
    let (element, cells) = (dy.dtype(), slot.tensor.rows());
    let ([_, rows, columns, c], [to_rows, to_columns]) = (lengths(&slot.tensor), op.grid);
    let linear = op.interpolation == Interpolation::Linear;
    let (dx, add) = (&mut slot.tensor, slot.add);
    SOURCE.launch(
        element,
        "interpolate_backward",
        units::grid(element, cells, c),
        args![&dy, dx, cells, rows, columns, to_rows, to_columns, c, linear, add],
    );
    grads.put(0, slot);
}
