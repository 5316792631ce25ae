use crate::dtype::Float;
use crate::op::GradBuffer;
use crate::ops::activation::sigmoid;
use crate::parallel::{BLOCK_ELEMENTS, row_blocks};
use crate::vectorize;

pub(super) fn forward<T: Float>([a, b]: [&[T]; 2], out: &mut [T]) {
    row_blocks((out, 1), BLOCK_ELEMENTS, |range, out| {
        let (a, b) = (&a[range.clone()], &b[range]);
        vectorize!({
            for ((y, a), b) in out.iter_mut().zip(a).zip(b) {
                *y = *a * sigmoid(*a) * *b;
            }
        });
    });
}

/// Computes or accumulates db if it is requested, and replaces dy with da.
pub(super) fn backward<T: Float>([a, b]: [&[T]; 2], dy: &mut [T], db: Option<&mut GradBuffer>) {
    let Some(GradBuffer { tensor: db, accumulate }) = db else {
        return row_blocks((dy, 1), BLOCK_ELEMENTS, |range, dy| {
            let (a, b) = (&a[range.clone()], &b[range]);
            vectorize!({
                for ((dy, a), b) in dy.iter_mut().zip(a).zip(b) {
                    *dy = gradients(*a, *b, *dy).0;
                }
            });
        });
    };
    let add = *accumulate;
    row_blocks(((dy, 1), (db.write::<T>(), 1)), BLOCK_ELEMENTS, |range, (dy, db)| {
        let (a, b) = (&a[range.clone()], &b[range]);
        vectorize!({
            for (((dy, db), a), b) in dy.iter_mut().zip(db).zip(a).zip(b) {
                let (of_a, of_b) = gradients(*a, *b, *dy);
                (*dy, *db) = (of_a, if add { *db + of_b } else { of_b });
            }
        });
    });
}

/// da and db.
#[inline(always)]
fn gradients<T: Float>(a: T, b: T, dy: T) -> (T, T) {
    let s = sigmoid(a);
    (dy * b * s * a.mul_add(T::ONE - s, T::ONE), dy * a * s)
}
