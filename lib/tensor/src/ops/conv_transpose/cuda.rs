//! Launches the kernels of [`Conv`](crate::ops::conv::Conv) with forward and backward exchanged.

use super::ConvTranspose;
use crate::op::{GradBuffer, Grads, Launch, Saved};
use crate::ops::conv::cuda;
use crate::ops::linear::multiply_and_sum;
use crate::tensor::Tensor;

impl Launch for ConvTranspose {
    fn launch_forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        let (x, w) = (inputs[0], inputs[1]);
        cuda::input(&self.sizes(x, w), w, x, inputs.get(2).copied(), out, false);
        vec![x.clone(), w.clone()]
    }

    fn launch_backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads) {
        let (x, w) = (&saved[0], &saved[1]);
        let g = &self.sizes(x, w);
        if let Some(GradBuffer { tensor, accumulate }) = grads.buffer(0) {
            cuda::output(g, [&dy, w], None, tensor, *accumulate);
        }
        if let Some(grad) = grads.buffer(1) {
            cuda::filter(g, &dy, x, grad);
        }
        grads.widen(&[2]);
        multiply_and_sum(&dy, None, None, grads.buffer(2));
    }
}
