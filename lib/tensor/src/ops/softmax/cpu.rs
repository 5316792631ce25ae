use crate::dtype::Float;
use crate::op::GradBuffer;
use crate::parallel::{Shared, blocks, rows_per_block};
use crate::simd::{max, sum};
use crate::tensor::Tensor;
use crate::vectorize;

/// x ← softmax(x).
#[inline(always)]
fn softmax_row<T: Float>(x: &mut [T]) {
    let top = max(x);
    for v in x.iter_mut() {
        *v = (*v - top).exp();
    }
    let total = sum([x], |[x]| x);
    let inverse = T::ONE / total;
    for v in x.iter_mut() {
        *v *= inverse;
    }
}

pub(super) fn forward<T: Float>(x: &Tensor, out: &mut [T]) {
    let (rows, n, x) = (x.rows(), x.width(), x.read::<T>());
    let out = Shared::new(out);
    blocks(rows, rows_per_block(n), |range| {
        // SAFETY: blocks are disjoint.
        let out = unsafe { out.slice(range.start * n..range.end * n) };
        out.copy_from_slice(&x[range.start * n..range.end * n]);
        vectorize!({
            for row in out.chunks_exact_mut(n) {
                softmax_row(row);
            }
        });
    });
}

pub(super) fn backward<T: Float>(y: &Tensor, dy: &[T], grad: &mut GradBuffer) {
    let (rows, n, y, add) = (y.rows(), y.width(), y.read::<T>(), grad.accumulate);
    let dx = Shared::new(grad.tensor.write::<T>());
    blocks(rows, rows_per_block(n), |range| {
        // SAFETY: blocks are disjoint.
        let dx = unsafe { dx.slice(range.start * n..range.end * n) };
        vectorize!({
            for (r, row) in range.enumerate() {
                let (y, dy) = (&y[row * n..][..n], &dy[row * n..][..n]);
                let dot = sum([dy, y], |[dy, y]| dy * y);
                let dx = &mut dx[r * n..][..n];
                for i in 0..n {
                    let d = y[i] * (dy[i] - dot);
                    dx[i] = if add { dx[i] + d } else { d };
                }
            }
        });
    });
}
