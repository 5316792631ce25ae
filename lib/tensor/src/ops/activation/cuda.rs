//! Kernel launches.

use super::Activation;
use crate::args;
use crate::kernel::{ALL_DTYPES, Source, flat, source};
use crate::op::{Derivative, GradBuffer, Grads, Launch, Saved};
use crate::tensor::Tensor;

/// Source of the activation kernels.
pub static SOURCE: Source = source!("activation", ALL_DTYPES);

impl Launch for Activation {
    fn launch_forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        let x = inputs[0];
        let args = args![x, out, x.len() as i64, *self as i32];
        SOURCE.launch(x.dtype(), "activation_forward", flat::grid(x.len(), x.dtype()), args);
        vec![x.clone()]
    }

    fn launch_backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads) {
        if *self == Activation::Identity || grads.is_multiplied() {
            return grads.accumulate(0, dy);
        }
        let Some(GradBuffer { tensor: dx, accumulate }) = grads.buffer(0) else { return };
        let x = &saved[0];
        let args = args![x, &dy, dx, *accumulate, x.len() as i64, *self as i32];
        SOURCE.launch(x.dtype(), "activation_backward", flat::grid(x.len(), x.dtype()), args);
    }

    fn derivative(&self, saved: &Saved) -> Option<Derivative> {
        let (activation, at) = (*self, saved[0].clone());
        (activation != Activation::Identity).then_some(Derivative { activation, at })
    }
}
