use crate::dtype::Float;
use crate::op::GradBuffer;
use crate::parallel::{Shared, blocks, reduce, rows_per_block};
use crate::simd::sum;
use crate::vectorize;
use crate::{Scratch, Tensor};

/// 1/√(mean(x²) + ε).
#[inline(always)]
pub(crate) fn rstd<T: Float>(x: &[T], epsilon: T) -> T {
    let n = T::ONE / T::of(x.len() as f64);
    let mean = n * sum([x], |[x]| x * x);
    T::ONE / (mean + epsilon).sqrt()
}

/// dx (+)= r·(g - n·mean(g ∘ n)) of one row, where g = w ∘ dy is the gradient of n = x·r.
#[inline(always)]
pub(crate) fn input_gradient<T: Float>(x: &[T], r: T, w: &[T], dy: &[T], dx: &mut [T], add: bool) {
    let n = T::ONE / T::of(x.len() as f64);
    let mean_gn = sum([x, w, dy], |[x, w, dy]| w * dy * x) * r * n;
    for (((dx, x), w), dy) in dx.iter_mut().zip(x).zip(w).zip(dy) {
        let d = r * (*w * *dy - *x * r * mean_gn);
        *dx = if add { *dx + d } else { d };
    }
}

pub(super) fn forward<T: Float>(epsilon: f64, x: &Tensor, w: &[T], out: &mut [T]) {
    let (rows, h, x) = (x.rows(), x.width(), x.read::<T>());
    let out = Shared::new(out);
    blocks(rows, rows_per_block(h), |range| {
        // SAFETY: blocks are disjoint.
        let out = unsafe { out.slice(range.start * h..range.end * h) };
        vectorize!({
            for (r, row) in range.enumerate() {
                let (x, y) = (&x[row * h..][..h], &mut out[r * h..][..h]);
                let rstd = rstd(x, T::of(epsilon));
                for i in 0..h {
                    y[i] = x[i] * rstd * w[i];
                }
            }
        });
    });
}

pub(super) fn backward<T: Float>(
    epsilon: f64,
    x: &Tensor,
    w: &[T],
    dy: &[T],
    dx: Option<&mut GradBuffer>,
    dw: Option<&mut GradBuffer>,
) {
    let (rows, h, x) = (x.rows(), x.width(), x.read::<T>());
    if let Some(grad) = dx {
        let add = grad.accumulate;
        let dx = Shared::new(grad.tensor.write::<T>());
        blocks(rows, rows_per_block(h), |range| {
            // SAFETY: blocks are disjoint.
            let dx = unsafe { dx.slice(range.start * h..range.end * h) };
            vectorize!({
                for (r, row) in range.enumerate() {
                    let (x, dy) = (&x[row * h..][..h], &dy[row * h..][..h]);
                    let rstd = rstd(x, T::of(epsilon));
                    input_gradient(x, rstd, w, dy, &mut dx[r * h..][..h], add);
                }
            });
        });
    }
    if let Some(grad) = dw {
        let mut sums = Scratch::<T>::zeroed(h);
        reduce(rows, rows_per_block(h), &mut sums, |range, sums| {
            let sums = &mut sums[..h];
            vectorize!({
                for row in range {
                    let (x, dy) = (&x[row * h..][..h], &dy[row * h..][..h]);
                    let rstd = rstd(x, T::of(epsilon));
                    for i in 0..h {
                        sums[i] = (dy[i] * rstd).mul_add(x[i], sums[i]);
                    }
                }
            });
        });
        grad.add(&sums);
    }
}
