use super::Rotary;
use crate::dtype::Float;
use crate::op::GradBuffer;
use crate::ops::normalization::{input_gradient, statistics};
use crate::parallel::{Shared, reduce, rows_per_block};
use crate::{Scratch, Tensor, for_rows, vectorize};
use std::ops::Range;

/// Computes y (+)= the rotation of n by the angles in a row of the table, or by their negatives.
#[inline(always)]
fn rotate<T: Float>(n: &[T], table: &[T], inverse: bool, y: &mut [T], add: bool) {
    let h = n.len() / 2;
    // Slices of fixed length avoid bounds checks in the loop.
    let ((n1, n2), (cos, sin)) = (n.split_at(h), table.split_at(h));
    let (y1, y2) = y.split_at_mut(h);
    let (n1, n2, cos, sin) = (&n1[..h], &n2[..h], &cos[..h], &sin[..h]);
    let (y1, y2) = (&mut y1[..h], &mut y2[..h]);
    let sign = if inverse { -T::ONE } else { T::ONE };
    for i in 0..h {
        let s = sign * sin[i];
        let (a, b) = (n1[i] * cos[i] - n2[i] * s, n2[i] * cos[i] + n1[i] * s);
        y1[i] = if add { y1[i] + a } else { a };
        y2[i] = if add { y2[i] + b } else { b };
    }
}

/// Computes y = the rotation of w ∘ x·r, without a buffer for the normalized head.
#[inline(always)]
fn rotate_normalized<T: Float>(x: &[T], w: &[T], r: T, table: &[T], y: &mut [T]) {
    let h = x.len() / 2;
    let ((x1, x2), (cos, sin), (w1, w2)) = (x.split_at(h), table.split_at(h), w.split_at(h));
    let (y1, y2) = y.split_at_mut(h);
    let (x1, x2, cos, sin) = (&x1[..h], &x2[..h], &cos[..h], &sin[..h]);
    let (w1, w2, y1, y2) = (&w1[..h], &w2[..h], &mut y1[..h], &mut y2[..h]);
    for i in 0..h {
        let (a, b) = (x1[i] * r * w1[i], x2[i] * r * w2[i]);
        y1[i] = a * cos[i] - b * sin[i];
        y2[i] = b * cos[i] + a * sin[i];
    }
}

/// The row of the table for a row of x.
#[inline(always)]
fn angles<T>(table: &[T], row: usize, dim: usize) -> &[T] {
    &table[row % (table.len() / dim) * dim..][..dim]
}

pub(super) fn forward<T: Float>(
    op: &Rotary,
    x: &Tensor,
    table: &[T],
    w: Option<&Tensor>,
    out: &mut [T],
) {
    let (dim, width, x) = (op.dim(x), x.width(), x.read::<T>());
    let normalized = op.norm.zip(w).map(|(epsilon, w)| (T::of(epsilon), w.read::<T>()));
    for_rows!((out, width), width, |row, y| {
        let angles = angles(table, row, dim);
        let heads = x[row * width..][..width].chunks_exact(dim).zip(y.chunks_exact_mut(dim));
        for (x, y) in heads {
            match normalized {
                Some((epsilon, w)) => {
                    rotate_normalized(x, w, statistics(x, false, epsilon).1, angles, y);
                }
                None => rotate(x, angles, false, y, false),
            }
        }
    });
}

/// `normalized`: x and w of a rotation with normalization.
pub(super) fn backward<T: Float>(
    op: &Rotary,
    table: &[T],
    normalized: Option<(&Tensor, &Tensor)>,
    dy: &Tensor,
    [dx, dw]: [Option<&mut GradBuffer>; 2],
) {
    let (rows, dim, width, dy) = (dy.rows(), op.dim(dy), dy.width(), dy.read::<T>());
    let (Some((x, w)), Some(epsilon)) = (normalized, op.norm) else {
        let Some(GradBuffer { tensor: dx, accumulate }) = dx else { return };
        let add = *accumulate;
        for_rows!((dx.write::<T>(), width), width, |row, dx| {
            let angles = angles(table, row, dim);
            let heads = dy[row * width..][..width].chunks_exact(dim).zip(dx.chunks_exact_mut(dim));
            for (dy, dx) in heads {
                rotate(dy, angles, true, dx, add);
            }
        });
        return;
    };
    let (x, w, epsilon) = (x.read::<T>(), w.read::<T>(), T::of(epsilon));
    let dx = dx.map(|grad| (grad.accumulate, Shared::new(grad.tensor.write::<T>())));
    // Computes dx of a range of rows and adds their contributions to dw to `sums`.
    let pass = |range: Range<usize>, sums: &mut [T]| {
        let mut rotated = Scratch::<T>::zeroed(dim);
        let (dn, sums) = (&mut rotated[..dim], &mut sums[..dim]);
        vectorize!({
            for row in range {
                let angles = angles(table, row, dim);
                for start in (row * width..(row + 1) * width).step_by(dim) {
                    let (x, dy) = (&x[start..][..dim], &dy[start..][..dim]);
                    rotate(dy, angles, true, dn, false);
                    let stats = statistics(x, false, epsilon);
                    for i in 0..dim {
                        sums[i] = dn[i].mul_add(x[i] * stats.1, sums[i]);
                    }
                    if let Some((add, dx)) = &dx {
                        // SAFETY: every head of every row is processed once.
                        let dx = unsafe { dx.slice(start..start + dim) };
                        input_gradient(x, (stats, false), (T::ZERO, w), dn, dx, *add);
                    }
                }
            }
        });
    };
    let mut sums = Scratch::<T>::zeroed(dim);
    reduce(rows, rows_per_block(width), &mut sums, pass);
    if let Some(dw) = dw {
        dw.add(&sums);
    }
}
