//! Kernels: products in batches of samples; dM is one sum of products over all of them.

use crate::kernel::product::{Epilogue, Matrix, Product};
use crate::op::{Grads, Saved};
use crate::tensor::Tensor;

pub(super) fn forward(m: &Tensor, x: &Tensor, out: &mut Tensor) {
    let (s, t, c, samples) = sizes(m, x);
    let x = Matrix::new(x, t, c).batch_stride(t * c);
    Product::new(Matrix::new(m, s, t), x).batch(samples).write(out, Epilogue::default());
}

pub(super) fn backward(saved: &Saved, dy: &Tensor, grads: &mut Grads) {
    let (m, x) = (&saved[0], &saved[1]);
    let (s, t, c, samples) = sizes(m, x);
    let dy = Matrix::new(dy, s, c);
    if let Some(mut slot) = grads.take(0) {
        let x = Matrix::new(x, t, c).term_stride(t * c).transposed();
        Product::new(dy.term_stride(s * c), x).terms(samples).put(&mut slot);
        grads.put(0, slot);
    }
    if let Some(mut slot) = grads.take(1) {
        let m = Matrix::new(m, s, t).transposed();
        Product::new(m, dy.batch_stride(s * c)).batch(samples).put(&mut slot);
        grads.put(1, slot);
    }
}

/// Tokens out and in, channels, samples.
fn sizes(m: &Tensor, x: &Tensor) -> (usize, usize, usize, usize) {
    (m.rows(), m.width(), x.width(), x.shape()[0])
}
