use crate::dtype::Float;
use crate::op::GradBuffer;
use crate::parallel::{Shared, blocks, rows_per_block};
use crate::vectorize;

#[inline(always)]
fn sigmoid<T: Float>(x: T) -> T {
    T::ONE / (T::ONE + (-x).exp())
}

pub(super) fn forward<T: Float>([rows, h]: [usize; 2], x: &[T], out: &mut [T]) {
    let out = Shared::new(out);
    blocks(rows, rows_per_block(2 * h), |range| {
        // SAFETY: blocks are disjoint.
        let out = unsafe { out.slice(range.start * h..range.end * h) };
        vectorize!({
            for (r, row) in range.enumerate() {
                let (a, b) = x[row * 2 * h..][..2 * h].split_at(h);
                for ((y, a), b) in out[r * h..][..h].iter_mut().zip(a).zip(b) {
                    *y = *a * sigmoid(*a) * *b;
                }
            }
        });
    });
}

pub(super) fn backward<T: Float>([rows, h]: [usize; 2], x: &[T], dy: &[T], grad: &mut GradBuffer) {
    let add = grad.accumulate;
    let dx = Shared::new(grad.tensor.write::<T>());
    blocks(rows, rows_per_block(4 * h), |range| {
        // SAFETY: blocks are disjoint.
        let dx = unsafe { dx.slice(range.start * 2 * h..range.end * 2 * h) };
        vectorize!({
            for (r, row) in range.enumerate() {
                let (a, b) = x[row * 2 * h..][..2 * h].split_at(h);
                let (da, db) = dx[r * 2 * h..][..2 * h].split_at_mut(h);
                let dy = &dy[row * h..][..h];
                // Slices of known length avoid bounds checks in the loop.
                let (a, b, da, db) = (&a[..h], &b[..h], &mut da[..h], &mut db[..h]);
                for i in 0..h {
                    let s = sigmoid(a[i]);
                    let to_a = dy[i] * b[i] * s * a[i].mul_add(T::ONE - s, T::ONE);
                    let to_b = dy[i] * a[i] * s;
                    da[i] = if add { da[i] + to_a } else { to_a };
                    db[i] = if add { db[i] + to_b } else { to_b };
                }
            }
        });
    });
}
