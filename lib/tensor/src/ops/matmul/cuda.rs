//! Batched matrix products on the GPU; the gradient of a shared A is one product summed over the batch.

use super::{MatMul, Sizes};
use crate::kernel::product::{Epilogue, Matrix, Product};
use crate::op::{Grads, Launch, Saved};
use crate::tensor::Tensor;

impl Launch for MatMul {
    fn launch_forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        let (a, x) = (inputs[0], inputs[1]);
        let Sizes { batch, s, t, c, step } = Sizes::of(a, x);
        let (lhs, rhs) = (Matrix::new(a, s, t).batch_stride(step), Matrix::new(x, t, c));
        let product = Product::new(lhs, rhs.batch_stride(t * c)).batch(batch);
        product.write(out, Epilogue::default());
        vec![a.clone(), x.clone()]
    }

    fn launch_backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads) {
        let (a, x) = (&saved[0], &saved[1]);
        let Sizes { batch, s, t, c, step } = Sizes::of(a, x);
        let dy = Matrix::new(&dy, s, c);
        if let Some(grad) = grads.buffer(0) {
            let x = Matrix::new(x, t, c);
            if step == 0 {
                let x = x.term_stride(t * c).transposed();
                Product::new(dy.term_stride(s * c), x).terms(batch).put(grad);
            } else {
                let x = x.batch_stride(t * c).transposed();
                Product::new(dy.batch_stride(s * c), x).batch(batch).put(grad);
            }
        }
        if let Some(grad) = grads.buffer(1) {
            let a = Matrix::new(a, s, t).batch_stride(step).transposed();
            Product::new(a, dy.batch_stride(s * c)).batch(batch).put(grad);
        }
    }
}
