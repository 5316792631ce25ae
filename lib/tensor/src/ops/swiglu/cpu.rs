use crate::dtype::Float;
use crate::for_rows;
use crate::op::GradBuffer;
use crate::ops::activation::sigmoid;

pub(super) fn forward<T: Float>(h: usize, x: &[T], out: &mut [T]) {
    for_rows!((out, h), 2 * h, |row, out| {
        let (a, b) = x[row * 2 * h..][..2 * h].split_at(h);
        for ((y, a), b) in out.iter_mut().zip(a).zip(b) {
            *y = *a * sigmoid(*a) * *b;
        }
    });
}

pub(super) fn backward<T: Float>(h: usize, x: &[T], dy: &[T], grad: &mut GradBuffer) {
    let add = grad.accumulate;
    for_rows!((grad.tensor.write::<T>(), 2 * h), 4 * h, |row, dx| {
        let (a, b) = x[row * 2 * h..][..2 * h].split_at(h);
        let (da, db) = dx.split_at_mut(h);
        // Slices of fixed length avoid bounds checks in the loop.
        let (a, b, dy) = (&a[..h], &b[..h], &dy[row * h..][..h]);
        let (da, db) = (&mut da[..h], &mut db[..h]);
        for i in 0..h {
            let s = sigmoid(a[i]);
            let to_a = dy[i] * b[i] * s * a[i].mul_add(T::ONE - s, T::ONE);
            let to_b = dy[i] * a[i] * s;
            da[i] = if add { da[i] + to_a } else { to_a };
            db[i] = if add { db[i] + to_b } else { to_b };
        }
    });
}
