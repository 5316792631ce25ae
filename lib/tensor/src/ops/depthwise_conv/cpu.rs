use super::{DepthwiseConv, Padding};
use crate::dtype::Float;
use crate::op::GradBuffer;
use crate::parallel::{reduce, rows_per_block};
use crate::simd::LANES;
use crate::{Scratch, Tensor, for_rows, vectorize};

/// Returns the token that each token reads through each tap; `None` in zero padding. `sign` -1 flips the filter.
fn neighbours(op: &DepthwiseConv, sign: isize) -> Vec<Option<usize>> {
    let [rows, columns] = op.grid;
    let step = |at: usize, tap: usize, taps: usize, len: usize| {
        let moved = at as isize + sign * (tap as isize - (taps / 2) as isize);
        match op.padding {
            Padding::Periodic => Some(moved.rem_euclid(len as isize) as usize),
            Padding::Zero => usize::try_from(moved).ok().filter(|m| *m < len),
        }
    };
    let mut table = Vec::with_capacity(rows * columns * op.filter[0] * op.filter[1]);
    for token in 0..rows * columns {
        for tap in 0..op.filter[0] * op.filter[1] {
            let row = step(token / columns, tap / op.filter[1], op.filter[0], rows);
            let column = step(token % columns, tap % op.filter[1], op.filter[1], columns);
            table.push(row.zip(column).map(|(r, c)| r * columns + c));
        }
    }
    table
}

/// Computes out[c] (+)= bias[c] + Σ_tap w[tap, c]·x[neighbour, c] for one token.
#[inline(always)]
fn token<T: Float>(
    x: &[T],
    w: &[T],
    bias: Option<&[T]>,
    neighbours: &[Option<usize>],
    out: &mut [T],
    add: bool,
) {
    let c = out.len();
    let (full, rest) = out.as_chunks_mut::<LANES>();
    for (chunk, out) in full.iter_mut().enumerate() {
        let at = chunk * LANES;
        let mut sums = [T::ZERO; LANES];
        if let Some(bias) = bias {
            sums.copy_from_slice(&bias[at..at + LANES]);
        }
        for (from, w) in neighbours.iter().zip(w.chunks_exact(c)) {
            let Some(from) = from else { continue };
            let (x, w) = (&x[from * c + at..][..LANES], &w[at..at + LANES]);
            for i in 0..LANES {
                sums[i] = w[i].mul_add(x[i], sums[i]);
            }
        }
        for i in 0..LANES {
            out[i] = if add { out[i] + sums[i] } else { sums[i] };
        }
    }
    let at = c - rest.len();
    for (i, out) in rest.iter_mut().enumerate() {
        let mut sum = bias.map_or(T::ZERO, |bias| bias[at + i]);
        for (from, w) in neighbours.iter().zip(w.chunks_exact(c)) {
            if let Some(from) = from {
                sum = w[at + i].mul_add(x[from * c + at + i], sum);
            }
        }
        *out = if add { *out + sum } else { sum };
    }
}

/// Applies the filter to every token of every sample.
fn apply<T: Float>(
    op: &DepthwiseConv,
    sign: isize,
    x: &Tensor,
    w: &[T],
    bias: Option<&[T]>,
    out: &mut [T],
    add: bool,
) {
    let (c, tokens) = (x.width(), op.grid[0] * op.grid[1]);
    let taps = op.filter[0] * op.filter[1];
    let table = neighbours(op, sign);
    let x = x.read::<T>();
    for_rows!((out, c), c * taps, |row, out| {
        let (sample, t) = (row / tokens, row % tokens);
        let x = &x[sample * tokens * c..][..tokens * c];
        token(x, w, bias, &table[t * taps..][..taps], out, add);
    });
}

pub(super) fn forward<T: Float>(
    op: &DepthwiseConv,
    x: &Tensor,
    w: &[T],
    bias: &[T],
    out: &mut [T],
) {
    apply(op, 1, x, w, Some(bias), out, false);
}

pub(super) fn backward_x<T: Float>(
    op: &DepthwiseConv,
    w: &[T],
    dy: &Tensor,
    grad: &mut GradBuffer,
) {
    let add = grad.accumulate;
    apply(op, -1, dy, w, None, grad.tensor.write(), add);
}

pub(super) fn backward_filter<T: Float>(
    op: &DepthwiseConv,
    x: &Tensor,
    dy: &[T],
    dw: Option<&mut GradBuffer>,
    db: Option<&mut GradBuffer>,
) {
    let (rows, c, tokens) = (x.rows(), x.width(), op.grid[0] * op.grid[1]);
    let taps = op.filter[0] * op.filter[1];
    let table = neighbours(op, 1);
    let x = x.read::<T>();
    let mut sums = Scratch::<T>::zeroed((taps + 1) * c);
    reduce(rows, rows_per_block(c * taps), &mut sums, |range, sums| {
        let (dw, db) = sums.split_at_mut(taps * c);
        let db = &mut db[..c];
        vectorize!({
            for row in range {
                let (sample, t) = (row / tokens, row % tokens);
                let dy = &dy[row * c..][..c];
                for (tap, from) in table[t * taps..][..taps].iter().enumerate() {
                    let Some(from) = from else { continue };
                    let x = &x[(sample * tokens + from) * c..][..c];
                    let dw = &mut dw[tap * c..][..c];
                    for i in 0..c {
                        dw[i] = dy[i].mul_add(x[i], dw[i]);
                    }
                }
                for (db, dy) in db.iter_mut().zip(dy) {
                    *db += *dy;
                }
            }
        });
    });
    for (grad, sum) in [(dw, &sums[..taps * c]), (db, &sums[taps * c..])] {
        if let Some(grad) = grad {
            grad.add(sum);
        }
    }
}
