use super::SwiGlu;
use crate::args;
use crate::kernel::{ALL_DTYPES, Source, flat, source};
use crate::op::{Grads, Launch, Saved};
use crate::tensor::Tensor;

/// Source of the SwiGLU kernels.
pub static SOURCE: Source = source!("swiglu", ALL_DTYPES);

impl Launch for SwiGlu {
    fn launch_forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        let [a, b] = [inputs[0], inputs[1]];
        let (dtype, len) = (out.dtype(), out.len());
        let args = args![a, b, out, len as i64];
        SOURCE.launch(dtype, "swiglu_forward", flat::grid(len, dtype), args);
        vec![a.clone(), b.clone()]
    }

    fn launch_backward(&self, saved: &Saved, mut dy: Tensor, grads: &mut Grads) {
        let (dtype, len) = (dy.dtype(), dy.len());
        let db = grads.buffer(1);
        let add = db.as_ref().is_some_and(|db| db.accumulate);
        let db = db.map(|db| &mut db.tensor);
        let args = args![&saved[0], &saved[1], &mut dy, db, add, len as i64];
        SOURCE.launch(dtype, "swiglu_backward", flat::grid(len, dtype), args);
        grads.accumulate(0, dy);
    }
}
