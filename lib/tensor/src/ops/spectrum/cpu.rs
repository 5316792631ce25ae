use crate::dtype::Float;
use crate::op::GradBuffer;
use crate::parallel::{Shared, blocks, rows_per_block};
use crate::product::{View, product};
use crate::vectorize;
use crate::{Scratch, Tensor};

/// F [2·frequencies, N]: rows of cosines, then rows of negative sines.
pub(super) fn transform<T: Float>(n: usize) -> Scratch<T> {
    let angle = |i: usize| std::f64::consts::TAU * i as f64 / n as f64;
    let frequencies = n / 2 + 1;
    let mut f = Scratch::arbitrary(2 * frequencies * n);
    for k in 0..frequencies {
        for i in 0..n {
            // The product k·i modulo n keeps the angle small, hence exact.
            let a = angle(k * i % n);
            f[k * n + i] = T::of(a.cos());
            f[(frequencies + k) * n + i] = T::of(-a.sin());
        }
    }
    f
}

pub(super) fn forward<T: Float>(epsilon: f64, x: &Tensor, parts: &mut [T], out: &mut [T]) {
    let (rows, n, x) = (x.rows(), x.width(), x.read::<T>());
    let k = n / 2 + 1;
    let f = transform::<T>(n);
    let (parts, out) = (Shared::new(parts), Shared::new(out));
    blocks(rows, rows_per_block(2 * k), |range| {
        let count = range.len();
        // SAFETY: blocks are disjoint.
        let parts = unsafe { parts.slice(range.start * 2 * k..range.end * 2 * k) };
        let x = View::new(&x[range.start * n..], count, n, n);
        product(parts, 2 * k, false, T::ONE, x, View::new(&f, 2 * k, n, n).transposed());
        // SAFETY: blocks are disjoint.
        let out = unsafe { out.slice(range.start * k..range.end * k) };
        vectorize!({
            for (y, parts) in out.chunks_exact_mut(k).zip(parts.chunks_exact(2 * k)) {
                let (re, im) = parts.split_at(k);
                for i in 0..k {
                    let square = re[i].mul_add(re[i], im[i] * im[i]);
                    y[i] = (square + T::of(epsilon * epsilon)).sqrt();
                }
            }
        });
    });
}

pub(super) fn backward<T: Float>(parts: &Tensor, y: &Tensor, dy: &[T], grad: &mut GradBuffer) {
    let (rows, k) = (y.rows(), y.width());
    let (parts, y) = (parts.read::<T>(), y.read::<T>());
    let n = grad.tensor.width();
    let f = transform::<T>(n);
    let add = grad.accumulate;
    let dx = Shared::new(grad.tensor.write::<T>());
    blocks(rows, rows_per_block(2 * k), |range| {
        let mut d = Scratch::<T>::arbitrary(range.len() * 2 * k);
        vectorize!({
            for (r, d) in range.clone().zip(d.chunks_exact_mut(2 * k)) {
                let parts = &parts[r * 2 * k..][..2 * k];
                for i in 0..k {
                    let ratio = dy[r * k + i] / y[r * k + i];
                    d[i] = ratio * parts[i];
                    d[k + i] = ratio * parts[k + i];
                }
            }
        });
        // SAFETY: blocks are disjoint.
        let dx = unsafe { dx.slice(range.start * n..range.end * n) };
        let d = View::new(&d, range.len(), 2 * k, 2 * k);
        product(dx, n, add, T::ONE, d, View::new(&f, 2 * k, n, n));
    });
}
