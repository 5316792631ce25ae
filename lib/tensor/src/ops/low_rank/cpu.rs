use crate::Scratch;
use crate::dtype::Float;
use crate::op::{GradBuffer, Saved};
use crate::ops::linear::cpu::{collect, transposed};
use crate::parallel::{Shared, blocks};
use crate::product::{View, narrow, product};
use crate::tensor::Tensor;
use std::ops::Range;

/// Rows per block.
const ROWS: usize = 256;
/// Maximum number of partial sums of gradients of A and B.
const LANES: usize = 8;
/// Rank up to which products with A and B are not worth packing x.
const NARROW: usize = 32;

/// The rows of a block.
fn rows_of(block: usize, rows: usize) -> Range<usize> {
    block * ROWS..((block + 1) * ROWS).min(rows)
}

/// Writes s·x Aᵀ to `low` and adds low Bᵀ to `out`.
pub(super) fn forward<T: Float>(scale: T, [x, a, b]: [&Tensor; 3], low: &mut [T], out: &mut [T]) {
    let ([n, r], k, rows) = ([0, 1].map(|axis| b.shape()[axis]), x.width(), x.rows());
    let (x, a, b) = (x.read::<T>(), a.read::<T>(), b.read::<T>());
    let at = transposed(a, [r, k]);
    let (low, out) = (Shared::new(low), Shared::new(out));
    blocks(rows.div_ceil(ROWS), 1, |range| {
        for rows in range.map(|block| rows_of(block, rows)) {
            let (first, last) = (rows.start, rows.end);
            // SAFETY: blocks of rows are disjoint.
            let (low, out) =
                unsafe { (low.slice(first * r..last * r), out.slice(first * n..last * n)) };
            let x = View::new(&x[first * k..last * k], rows.len(), k, k);
            multiply(low, scale, x, View::new(&at, k, r, r));
            let low = View::new(low, rows.len(), r, r);
            product(out, n, true, T::ONE, low, View::new(b, n, r, r).transposed());
        }
    });
}

/// Computes out = s·x m for m [K, r].
fn multiply<T: Float>(out: &mut [T], scale: T, x: View<T>, m: View<T>) {
    match m.columns() <= NARROW {
        true => narrow(out, scale, x, m),
        false => product(out, m.columns(), false, scale, x, m),
    }
}

/// Computes or accumulates the requested dx, dA and dB. What x Aᵀ was is computed again if it was not saved.
pub(super) fn backward<T: Float>(
    scale: T,
    saved: &Saved,
    dy: &Tensor,
    [dx, da, db]: [Option<&mut GradBuffer>; 3],
) {
    let ([x, a, b], saved_low) = ([0, 1, 2].map(|i| &saved[i]), saved.get(3));
    let ([n, r], k, rows) = ([0, 1].map(|axis| b.shape()[axis]), x.width(), x.rows());
    let [x, a, b, dy] = [x, a, b, dy].map(|tensor| tensor.read::<T>());
    let saved_low = saved_low.map(|low| low.read::<T>());
    let at = saved_low.is_none().then(|| transposed(a, [r, k]));
    let count = rows.div_ceil(ROWS);
    // The assignment of rows to lanes depends only on sizes.
    let lanes = count.clamp(1, LANES);
    let (of_a, of_b) = (if da.is_some() { r * k } else { 0 }, if db.is_some() { r * n } else { 0 });
    let (mut a_sums, mut b_sums) =
        (Scratch::<T>::zeroed(lanes * of_a), Scratch::<T>::zeroed(lanes * of_b));
    {
        let dx = dx.map(|grad| (grad.accumulate, Shared::new(grad.tensor.write::<T>())));
        let (a_sums, b_sums) = (Shared::new(&mut a_sums), Shared::new(&mut b_sums));
        blocks(lanes, 1, |range| {
            let mut of_low = Scratch::<T>::uninit(ROWS * r);
            let mut own_low = Scratch::<T>::uninit(if at.is_some() { ROWS * r } else { 0 });
            for (lane, block) in
                range.flat_map(|lane| (lane..count).step_by(lanes).map(move |block| (lane, block)))
            {
                let Range { start: first, end: last } = rows_of(block, rows);
                let rows = last - first;
                let dy = View::new(&dy[first * n..], rows, n, n);
                let of_low = &mut of_low[..rows * r];
                multiply(of_low, scale, dy, View::new(b, n, r, r));
                let of_low = View::new(of_low, rows, r, r);
                // SAFETY: every lane has its own range.
                let (a_sum, b_sum) = unsafe {
                    (
                        a_sums.slice(lane * of_a..(lane + 1) * of_a),
                        b_sums.slice(lane * of_b..(lane + 1) * of_b),
                    )
                };
                let x = View::new(&x[first * k..], rows, k, k);
                if of_b > 0 {
                    if let Some(at) = &at {
                        multiply(&mut own_low[..rows * r], scale, x, View::new(at, k, r, r));
                    }
                    let low = saved_low.map_or(&own_low[..], |low| &low[first * r..]);
                    // The transpose of dB, whose rows are longer.
                    let low = View::new(low, rows, r, r).transposed();
                    product(b_sum, n, true, T::ONE, low, dy);
                }
                if of_a > 0 {
                    product(a_sum, k, true, T::ONE, of_low.transposed(), x);
                }
                if let Some((add, dx)) = &dx {
                    // SAFETY: blocks of rows are disjoint.
                    let dx = unsafe { dx.slice(first * k..last * k) };
                    product(dx, k, *add, T::ONE, of_low, View::new(a, r, k, k));
                }
            }
        });
    }
    if let Some(grad) = da {
        collect(&a_sums, lanes, grad);
    }
    if let Some(grad) = db {
        let tensor = Tensor::empty(&[r, n], grad.tensor.dtype());
        let mut transpose = GradBuffer { tensor, accumulate: false };
        collect(&b_sums, lanes, &mut transpose);
        collect(&transposed(transpose.tensor.read::<T>(), [r, n]), 1, grad);
    }
}
