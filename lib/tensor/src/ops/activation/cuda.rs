//! How the kernels are launched.

use super::Activation;
use crate::args;
use crate::kernel::{ALL_ELEMENTS, Source, flat};
use crate::op::Slot;
use crate::tensor::Tensor;

/// The kernels.
pub static SOURCE: Source =
    Source { name: "activation", text: include_str!("activation.cu"), elements: ALL_ELEMENTS };

pub(super) fn forward(activation: Activation, x: &Tensor, out: &mut Tensor) {
    let kernel = match activation {
        Activation::Identity => "activation_identity",
        Activation::Gelu => "activation_gelu",
        Activation::GeluTanh => "activation_gelu_tanh",
        Activation::Silu => "activation_silu",
    };
    let grid = flat::grid(x.len(), x.dtype());
    SOURCE.launch(x.dtype(), kernel, grid, args![x, out, x.len() as i64]);
}

/// dx (+)= f'(x)·dy; the identity has no kernel, since its gradient is passed on as it is.
pub(super) fn backward(kernel: &'static str, x: &Tensor, dy: &Tensor, slot: &mut Slot) {
    let grid = flat::grid(x.len(), x.dtype());
    let args = args![x, dy, &mut slot.tensor, slot.add, x.len() as i64];
    SOURCE.launch(x.dtype(), kernel, grid, args);
}

/// The kernel of the derivative; none for the identity.
pub(super) fn derivative(activation: Activation) -> Option<&'static str> {
    match activation {
        Activation::Identity => None,
        Activation::Gelu => Some("activation_gelu_backward"),
        Activation::GeluTanh => Some("activation_gelu_tanh_backward"),
        Activation::Silu => Some("activation_silu_backward"),
    }
}
