//! How the kernels are launched.

use super::Activation;
use crate::args;
use crate::kernel::{ALL_ELEMENTS, Source, flat};
use crate::op::{GradBuffer, Grads, Launch, Saved};
use crate::tensor::Tensor;

/// The kernels.
pub static SOURCE: Source =
    Source { name: "activation", text: include_str!("activation.cu"), elements: ALL_ELEMENTS };

impl Launch for Activation {
    fn launch_forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        let (x, kernel) = (
            inputs[0],
            match self {
                Activation::Identity => "activation_identity",
                Activation::Gelu => "activation_gelu",
                Activation::GeluTanh => "activation_gelu_tanh",
                Activation::Silu => "activation_silu",
            },
        );
        let grid = flat::grid(x.len(), x.dtype());
        SOURCE.launch(x.dtype(), kernel, grid, args![x, out, x.len() as i64]);
        vec![x.clone()]
    }

    fn launch_backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads) {
        let kernel = match self {
            Activation::Identity => return grads.accumulate(0, dy),
            Activation::Gelu => "activation_gelu_backward",
            Activation::GeluTanh => "activation_gelu_tanh_backward",
            Activation::Silu => "activation_silu_backward",
        };
        let Some(GradBuffer { tensor: dx, accumulate }) = grads.buffer(0) else { return };
        let x = &saved[0];
        let grid = flat::grid(x.len(), x.dtype());
        SOURCE.launch(x.dtype(), kernel, grid, args![x, &dy, dx, *accumulate, x.len() as i64]);
    }
}
