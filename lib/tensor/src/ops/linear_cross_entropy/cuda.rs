//! Chunks of rows go through the product and the kernels of the cross entropy of logits. The logits of a chunk, and then
//! their gradient, take one buffer; if W is trained in 16 bits, the sum of its gradients and that of each chunk take two
//! more, f32 [V, K].

use super::{LinearCrossEntropy, saved};
use crate::dtype::Dtype;
use crate::kernel::product::{Epilogue, Matrix, Product};
use crate::kernel::reduce_rows;
use crate::op::{GradBuffer, Grads, Launch, Saved};
use crate::ops::cross_entropy::cuda::{gradient_in_place, losses_of_rows, sum_of_losses};
use crate::tensor::Tensor;
use std::ops::Range;

/// Size of the logits of a chunk in bytes; small in unit tests, where several chunks should be quick.
const BYTES: usize = if cfg!(test) { 1 << 10 } else { 64 << 20 };
/// Rows of a chunk are a multiple of this, so that parts of tensors with an element per row are aligned.
const ROWS: usize = 128;

/// Number of rows of a chunk, of all `rows`, for logits of `element` bytes.
pub(super) fn chunk_rows(rows: usize, classes: usize, element: usize) -> usize {
    let fit = BYTES / (classes * element).max(1);
    (fit / ROWS * ROWS).max(ROWS).min(rows)
}

/// Returns the rows of each chunk; one without rows if there are none.
fn chunks(x: &Tensor, classes: usize) -> impl Iterator<Item = Range<usize>> + use<> {
    let rows = x.shape()[0];
    let height = chunk_rows(rows, classes, x.dtype().bytes()).max(1);
    (0..rows.max(1)).step_by(height).map(move |start| start..(start + height).min(rows))
}

/// Returns the logits of some rows.
fn logits(x: &Tensor, w: &Tensor) -> Tensor {
    let (rows, [classes, k]) = (x.shape()[0], [0, 1].map(|axis| w.shape()[axis]));
    let mut z = Tensor::empty_on(x.device(), &[rows, classes], x.dtype());
    let w = Matrix::new(w, classes, k).transposed();
    Product::new(Matrix::new(x, rows, k), w).write(&mut z, Epilogue::default());
    z
}

impl Launch for LinearCrossEntropy {
    fn launch_forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        let (x, w, targets, weights) = (inputs[0], inputs[1], inputs[2], inputs.get(3).copied());
        let floats = |shape: &[usize]| Tensor::empty_on(x.device(), shape, Dtype::F32);
        let (mut losses, mut stats) = (floats(&[x.rows()]), floats(&[x.rows(), 2]));
        for rows in chunks(x, w.shape()[0]) {
            let of = |tensor: &Tensor| tensor.part_of_rows(rows.clone());
            let z = logits(&of(x), w);
            let weights = weights.map(of);
            let row_inputs = (&z, &of(targets), weights.as_ref());
            let [mut losses, mut stats] =
                [&mut losses, &mut stats].map(|all| all.part_of_rows_mut(rows.clone()));
            losses_of_rows(&self.of_logits(), row_inputs, &mut losses, &mut stats);
        }
        sum_of_losses(&losses, x.dtype(), out);
        saved(inputs, stats)
    }

    fn launch_backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads) {
        let ([stats, x, w, targets], weights) = ([0, 1, 2, 3].map(|i| &saved[i]), saved.get(4));
        let (classes, k) = (w.shape()[0], w.width());
        grads.widen(&[1]);
        let [mut dx, mut dw] = grads.buffers([0, 1]);
        // The sum over chunks is kept in f32.
        let mut sum =
            dw.as_ref().filter(|dw| dw.tensor.dtype() != Dtype::F32).map(|_| GradBuffer {
                tensor: Tensor::empty_on(x.device(), &[classes, k], Dtype::F32),
                accumulate: false,
            });
        for rows in chunks(x, classes) {
            let of = |tensor: &Tensor| tensor.part_of_rows(rows.clone());
            let (x, weights) = (of(x), weights.map(of));
            let mut z = logits(&x, w);
            let row_inputs = (&of(targets), &of(stats), weights.as_ref());
            gradient_in_place(&self.of_logits(), row_inputs, &dy, &mut z);
            let dz = Matrix::new(&z, rows.len(), classes);
            if let Some(dx) = &mut dx {
                let tensor = dx.tensor.part_of_rows_mut(rows.clone());
                let mut part = GradBuffer { tensor, accumulate: dx.accumulate };
                Product::new(dz, Matrix::new(w, classes, k)).put(&mut part);
            }
            if let Some(dw) = sum.as_mut().or(dw.as_deref_mut()) {
                Product::new(dz.transposed(), Matrix::new(&x, rows.len(), k)).put(dw);
                dw.accumulate = true;
            }
        }
        if let (Some(sum), Some(dw)) = (sum, dw) {
            reduce_rows::sum_to(&sum.tensor.reshape(&[1, classes * k]), dw);
        }
    }
}
