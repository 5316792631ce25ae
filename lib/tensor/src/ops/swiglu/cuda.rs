use crate::args;
use crate::kernel::{ALL_ELEMENTS, Source, units};
use crate::op::{Grads, Saved};
use crate::tensor::Tensor;

/// The kernels.
pub static SOURCE: Source =
    Source { name: "swiglu", text: include_str!("swiglu.cu"), elements: ALL_ELEMENTS };

pub(super) fn forward(inputs: &[&Tensor], out: &mut Tensor) -> Saved {
    let (x, element, rows, h) = (inputs[0], out.dtype(), out.rows(), out.width());
    let grid = units::grid(element, rows, h);
    SOURCE.launch(element, "swiglu_forward", grid, args![x, out, rows, h]);
    vec![x.clone()]
}

pub(super) fn backward(saved: &Saved, dy: Tensor, grads: &mut Grads) {
    let Some(mut slot) = grads.take(0) else { return };
    let (element, rows, h) = (dy.dtype(), dy.rows(), dy.width());
    SOURCE.launch(
        element,
        "swiglu_backward",
        units::grid(element, rows, h),
        args![&saved[0], &dy, &mut slot.tensor, rows, h, slot.add],
    );
    grads.put(0, slot);
}
