//! Kernels: batched matrix products over samples; dM is one product summed over all of them.

use super::TokenMap;
use crate::kernel::product::{Epilogue, Matrix, Product};
use crate::op::{Grads, Launch, Saved};
use crate::tensor::Tensor;

impl Launch for TokenMap {
    fn launch_forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        let (m, x) = (inputs[0], inputs[1]);
        let (s, t, c, samples) = sizes(m, x);
        let columns = Matrix::new(x, t, c).batch_stride(t * c);
        Product::new(Matrix::new(m, s, t), columns).batch(samples).write(out, Epilogue::default());
        vec![m.clone(), x.clone()]
    }

    fn launch_backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads) {
        let (m, x) = (&saved[0], &saved[1]);
        let (s, t, c, samples) = sizes(m, x);
        let dy = Matrix::new(&dy, s, c);
        if let Some(grad) = grads.buffer(0) {
            let x = Matrix::new(x, t, c).term_stride(t * c).transposed();
            Product::new(dy.term_stride(s * c), x).terms(samples).put(grad);
        }
        if let Some(grad) = grads.buffer(1) {
            let m = Matrix::new(m, s, t).transposed();
            Product::new(m, dy.batch_stride(s * c)).batch(samples).put(grad);
        }
    }
}

/// Output and input tokens, channels, samples.
fn sizes(m: &Tensor, x: &Tensor) -> (usize, usize, usize, usize) {
    (m.rows(), m.width(), x.width(), x.shape()[0])
}
