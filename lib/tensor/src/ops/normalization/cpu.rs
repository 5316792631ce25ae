use super::{Affine, NormKind, Normalization};
use crate::dtype::Float;
use crate::op::GradBuffer;
use crate::parallel::{Shared, reduce, row_blocks, rows_per_block};
use crate::simd::sum;
use crate::{Scratch, Tensor, for_rows, vectorize};
use std::ops::Range;

/// Returns μ and r of a row; μ is 0 unless the normalization is centred.
#[inline(always)]
pub(crate) fn statistics<T: Float>(x: &[T], centred: bool, epsilon: T) -> (T, T) {
    let n = T::ONE / T::of(x.len() as f64);
    let mean = if centred { sum([x], |[x]| x) * n } else { T::ZERO };
    let variance = n * sum([x], |[x]| (x - mean) * (x - mean));
    (mean, T::ONE / (variance + epsilon).sqrt())
}

/// Returns n = (x - μ)·r.
#[inline(always)]
fn normalized<T: Float>(x: T, (mean, rstd): (T, T)) -> T {
    (x - mean) * rstd
}

/// Computes dx (+)= r·(g - mean(g) - n·mean(g ∘ n)) for one row, where g = (offset + w) ∘ dy is the gradient of n;
/// mean(g) is omitted unless `centred`.
#[inline(always)]
pub(crate) fn input_gradient<T: Float>(
    x: &[T],
    (stats, centred): ((T, T), bool),
    (offset, w): (T, &[T]),
    dy: &[T],
    dx: &mut [T],
    add: bool,
) {
    let n = T::ONE / T::of(x.len() as f64);
    let g = |w: T, dy: T| (offset + w) * dy;
    let sum_g = if centred { sum([w, dy], |[w, dy]| g(w, dy)) } else { T::ZERO };
    let sum_gn = sum([x, w, dy], |[x, w, dy]| g(w, dy) * normalized(x, stats));
    let (mean_g, mean_gn) = (n * sum_g, n * sum_gn);
    for (((dx, x), w), dy) in dx.iter_mut().zip(x).zip(w).zip(dy) {
        let d = stats.1 * (g(*w, *dy) - mean_g - normalized(*x, stats) * mean_gn);
        *dx = if add { *dx + d } else { d };
    }
}

pub(super) fn forward<T: Float>(
    op: &Normalization,
    x: &Tensor,
    affine: &Affine,
    stats: &mut [T],
    out: &mut [T],
) {
    let (rows, h, x) = (x.rows(), x.width(), x.read::<T>());
    let (w, b, offset) =
        (affine.w.read::<T>(), affine.b.map(|b| b.read::<T>()), T::of(affine.offset));
    let group = (rows / affine.groups.max(1)).max(1);
    for_rows!(((out, h), (stats, 2)), h, |row, (y, stats)| {
        let start = row / group * affine.stride;
        let (x, y) = (&x[row * h..][..h], &mut y[..h]);
        let w = &w[start + affine.w_start..][..h];
        let s = statistics(x, op.is_centred(), T::of(op.epsilon));
        stats.copy_from_slice(&[s.0, s.1]);
        if let Some(b) = b {
            let b = &b[start + affine.b_start..][..h];
            for i in 0..h {
                y[i] = normalized(x[i], s).mul_add(offset + w[i], b[i]);
            }
        } else {
            for i in 0..h {
                y[i] = normalized(x[i], s) * (offset + w[i]);
            }
        }
    });
}

pub(super) fn backward<T: Float>(
    op: &Normalization,
    x: &Tensor,
    affine: &Affine,
    stats: &[T],
    dy: &[T],
    [dx, dw, db]: [Option<&mut GradBuffer>; 3],
) {
    let (rows, h, x) = (x.rows(), x.width(), x.read::<T>());
    let (w, offset) = (affine.w.read::<T>(), T::of(affine.offset));
    let (groups, stride) = (affine.groups, affine.stride);
    let group = (rows / groups.max(1)).max(1);
    let dx = dx.map(|grad| (grad.accumulate, Shared::new(grad.tensor.write::<T>())));
    let with_sums = dw.is_some() || db.is_some();
    // Computes dx of a range of rows and adds their contributions to dw and db to `sums` [2, H].
    let pass = |range: Range<usize>, sums: &mut [T]| {
        let (dw, db) = sums.split_at_mut(h);
        // Slices of fixed length avoid bounds checks in the loop.
        let (dw, db) = (&mut dw[..h], &mut db[..h]);
        vectorize!({
            for row in range {
                let (x, dy) = (&x[row * h..][..h], &dy[row * h..][..h]);
                let s = (stats[2 * row], stats[2 * row + 1]);
                if let Some((add, dx)) = &dx {
                    let w = &w[row / group * stride + affine.w_start..][..h];
                    // SAFETY: every row is processed once.
                    let dx = unsafe { dx.slice(row * h..(row + 1) * h) };
                    input_gradient(x, (s, op.is_centred()), (offset, w), dy, dx, *add);
                }
                if with_sums {
                    for i in 0..h {
                        dw[i] = dy[i].mul_add(normalized(x[i], s), dw[i]);
                        db[i] += dy[i];
                    }
                }
            }
        });
    };
    let NormKind::Adaptive { shift, scale } = op.kind else {
        let mut sums = Scratch::<T>::zeroed(2 * h);
        reduce(rows, rows_per_block(h), &mut sums, pass);
        for (grad, sum) in [(dw, &sums[..h]), (db, &sums[h..])] {
            if let Some(grad) = grad {
                grad.add(sum);
            }
        }
        return;
    };
    let mut sums = Scratch::<T>::zeroed(groups * 2 * h);
    row_blocks((&mut *sums, 2 * h), rows_per_block(h * group), |range, sums| {
        for (g, sums) in range.zip(sums.chunks_exact_mut(2 * h)) {
            pass(g * group..(g + 1) * group, sums);
        }
    });
    let Some(grad) = dw else { return };
    for (dm, sums) in grad.zeroed::<T>().chunks_exact_mut(stride).zip(sums.chunks_exact(2 * h)) {
        for (vector, sum) in [scale, shift].into_iter().zip(sums.chunks_exact(h)) {
            dm[vector * h..][..h].iter_mut().zip(sum).for_each(|(d, s)| *d += *s);
        }
    }
}
