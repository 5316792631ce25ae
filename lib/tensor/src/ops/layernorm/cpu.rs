use crate::dtype::Float;
use crate::op::GradBuffer;
use crate::parallel::{Shared, blocks, reduce, rows_per_block};
use crate::simd::sum;
use crate::vectorize;
use crate::{Scratch, Tensor};

/// Mean and 1/√(variance + ε) of a row.
#[inline(always)]
pub(crate) fn statistics<T: Float>(x: &[T], epsilon: T) -> (T, T) {
    let n = T::ONE / T::of(x.len() as f64);
    let mean = sum([x], |[x]| x) * n;
    let variance = n * sum([x], |[x]| (x - mean) * (x - mean));
    (mean, T::ONE / (variance + epsilon).sqrt())
}

/// n = (x - μ)·r.
#[inline(always)]
pub(crate) fn normalized<T: Float>(x: T, (mean, rstd): (T, T)) -> T {
    (x - mean) * rstd
}

/// dx (+)= r·(g - mean(g) - n·mean(g ∘ n)) of one row, where g = (offset + w) ∘ dy is the gradient of n.
#[inline(always)]
pub(crate) fn input_gradient<T: Float>(
    x: &[T],
    stats: (T, T),
    (offset, w): (T, &[T]),
    dy: &[T],
    dx: &mut [T],
    add: bool,
) {
    let n = T::ONE / T::of(x.len() as f64);
    let g = |w: T, dy: T| (offset + w) * dy;
    let sum_g = sum([w, dy], |[w, dy]| g(w, dy));
    let sum_gn = sum([x, w, dy], |[x, w, dy]| g(w, dy) * normalized(x, stats));
    let (mean_g, mean_gn) = (n * sum_g, n * sum_gn);
    for (((dx, x), w), dy) in dx.iter_mut().zip(x).zip(w).zip(dy) {
        let g = (offset + *w) * *dy;
        let d = stats.1 * (g - mean_g - normalized(*x, stats) * mean_gn);
        *dx = if add { *dx + d } else { d };
    }
}

pub(super) fn forward<T: Float>(
    epsilon: f64,
    x: &Tensor,
    w: &[T],
    b: &[T],
    stats: &mut [T],
    out: &mut [T],
) {
    let (rows, h, x) = (x.rows(), x.width(), x.read::<T>());
    let (w, b) = (&w[..h], &b[..h]);
    let (stats, out) = (Shared::new(stats), Shared::new(out));
    blocks(rows, rows_per_block(h), |range| {
        // SAFETY: blocks are disjoint.
        let out = unsafe { out.slice(range.start * h..range.end * h) };
        // SAFETY: blocks are disjoint.
        let stats = unsafe { stats.slice(range.start * 2..range.end * 2) };
        vectorize!({
            for (r, row) in range.enumerate() {
                let (x, y) = (&x[row * h..][..h], &mut out[r * h..][..h]);
                let s = statistics(x, T::of(epsilon));
                (stats[2 * r], stats[2 * r + 1]) = s;
                for i in 0..h {
                    y[i] = normalized(x[i], s).mul_add(w[i], b[i]);
                }
            }
        });
    });
}

pub(super) fn backward_x<T: Float>(
    x: &Tensor,
    w: &[T],
    stats: &[T],
    dy: &[T],
    grad: &mut GradBuffer,
) {
    let (rows, h, x, add) = (x.rows(), x.width(), x.read::<T>(), grad.accumulate);
    let dx = Shared::new(grad.tensor.write::<T>());
    blocks(rows, rows_per_block(h), |range| {
        // SAFETY: blocks are disjoint.
        let dx = unsafe { dx.slice(range.start * h..range.end * h) };
        vectorize!({
            for (r, row) in range.enumerate() {
                let (x, dy) = (&x[row * h..][..h], &dy[row * h..][..h]);
                let s = (stats[2 * row], stats[2 * row + 1]);
                input_gradient(x, s, (T::ZERO, w), dy, &mut dx[r * h..][..h], add);
            }
        });
    });
}

pub(super) fn backward_affine<T: Float>(
    x: &Tensor,
    stats: &[T],
    dy: &[T],
    dw: Option<&mut GradBuffer>,
    db: Option<&mut GradBuffer>,
) {
    let (rows, h, x) = (x.rows(), x.width(), x.read::<T>());
    let mut sums = Scratch::<T>::zeroed(2 * h);
    reduce(rows, rows_per_block(h), &mut sums, |range, sums| {
        let (dw, db) = sums.split_at_mut(h);
        // Lengths in sight: no bound is checked in the loop.
        let (dw, db) = (&mut dw[..h], &mut db[..h]);
        vectorize!({
            for row in range {
                let (x, dy) = (&x[row * h..][..h], &dy[row * h..][..h]);
                let s = (stats[2 * row], stats[2 * row + 1]);
                for i in 0..h {
                    dw[i] = dy[i].mul_add(normalized(x[i], s), dw[i]);
                    db[i] += dy[i];
                }
            }
        });
    });
    for (grad, sum) in [(dw, &sums[..h]), (db, &sums[h..])] {
        if let Some(grad) = grad {
            grad.add(sum);
        }
    }
}
