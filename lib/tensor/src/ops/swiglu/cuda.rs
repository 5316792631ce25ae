use super::SwiGlu;
use crate::args;
use crate::kernel::{ALL_DTYPES, Source, source, units};
use crate::op::{GradBuffer, Grads, Launch, Saved};
use crate::tensor::Tensor;

/// Source of the SwiGLU kernels.
pub static SOURCE: Source = source!("swiglu", ALL_DTYPES);

impl Launch for SwiGlu {
    fn launch_forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        let (x, dtype, rows, h) = (inputs[0], out.dtype(), out.rows(), out.width());
        let grid = units::grid(dtype, rows, h);
        SOURCE.launch(dtype, "swiglu_forward", grid, args![x, out, rows, h]);
        vec![x.clone()]
    }

    fn launch_backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads) {
        let Some(GradBuffer { tensor: dx, accumulate }) = grads.buffer(0) else { return };
        let (dtype, rows, h) = (dy.dtype(), dy.rows(), dy.width());
        let args = args![&saved[0], &dy, dx, rows, h, *accumulate];
        SOURCE.launch(dtype, "swiglu_backward", units::grid(dtype, rows, h), args);
    }
}
