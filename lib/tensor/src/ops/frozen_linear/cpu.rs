use super::Storage;
use crate::Scratch;
use crate::dtype::{Dtype, Float, bf16};
use crate::nf4::{BLOCK, widen_part};
use crate::parallel::{Shared, blocks};
use crate::product::{View, product, product_into, steps_into};
use crate::tensor::Tensor;

/// Rows of W that are brought into the dtype of x at a time, if they are whole blocks of codes.
const ROWS: usize = 16;
/// Elements of W that are worth a thread.
const READ: usize = 32 * 1024;
/// The same for W in bf16: rows at a time, and elements that are worth a thread.
const BF16_ROWS: usize = 128;
const BF16_READ: usize = 128 * 1024;
/// Rows of W to which a low-rank update is added at a time.
const MERGED: usize = 128;

/// Writes the elements of W from `start` on, a multiple of [`BLOCK`], on this thread.
pub(super) fn part<T: Float>(weight: Storage, pieces: &[&Tensor], start: usize, out: &mut [T]) {
    match weight {
        Storage::Dense(_) => widen_part(pieces[0], start, out),
        Storage::Nf4(layout) => layout.dequantise_part(pieces, start, out),
    }
}

/// Adds scale·B A to W [N, K], for A [r, K] and B [N, r].
pub(super) fn merge<T: Float>(scale: T, [a, b]: [&Tensor; 2], w: &mut [T]) {
    let [[r, k], [n, _]] = [a, b].map(|factor| [0, 1].map(|axis| factor.shape()[axis]));
    let (a, b, w) = (View::new(a.read::<T>(), r, k, k), b.read::<T>(), Shared::new(w));
    blocks(n.div_ceil(MERGED), 1, |range| {
        for block in range {
            let (first, last) = (block * MERGED, ((block + 1) * MERGED).min(n));
            // SAFETY: blocks of rows are disjoint.
            let w = unsafe { w.slice(first * k..last * k) };
            product(w, k, true, scale, View::new(&b[first * r..last * r], last - first, r, r), a);
        }
    });
}

/// Computes y = x Wᵀ + b for few x of one step each: the bits are those of
/// [`Linear`](crate::ops::linear::Linear) with the whole W [n, k]. A W in bf16 is read once, any other is brought into the
/// dtype of x in parts that stay in the cache.
pub(super) fn forward_steps<T: Float>(
    (weight, pieces, [n, k]): (Storage, &[&Tensor], [usize; 2]),
    x: &Tensor,
    b: Option<&Tensor>,
    y: &mut [T],
) {
    let (count, x, b) = (x.rows(), x.read::<T>(), b.map(|b| b.read::<T>()));
    let is_bf16 = weight == Storage::Dense(Dtype::Bf16);
    let (mut rows, read) = if is_bf16 { (BF16_ROWS, BF16_READ) } else { (ROWS, READ) };
    while !(rows * k).is_multiple_of(BLOCK) {
        rows *= 2;
    }
    let y = Shared::new(y);
    blocks(n.div_ceil(rows), read / (rows * k).max(1), |range| {
        let mut w = Scratch::<T>::uninit(if is_bf16 { 0 } else { rows * k });
        for block in range {
            let (first, last) = (block * rows, ((block + 1) * rows).min(n));
            if let Some(b) = b {
                for row in 0..count {
                    // SAFETY: blocks have disjoint columns of y.
                    let y = unsafe { y.slice(row * n + first..row * n + last) };
                    y.copy_from_slice(&b[first..last]);
                }
            }
            let x = View::new(x, count, k, k).of_steps(true);
            if is_bf16 {
                let w = &pieces[0].read::<bf16>()[first * k..last * k];
                let w = View::new(w, last - first, k, k);
                // SAFETY: as above; the columns are inside y.
                unsafe { steps_into(y.pointer(first), n, b.is_some(), x, w) };
                continue;
            }
            let w = &mut w[..(last - first) * k];
            part(weight, pieces, first * k, w);
            let w = View::new(w, last - first, k, k).transposed();
            // SAFETY: as above; the columns are inside y.
            unsafe { product_into(y.pointer(first), n, b.is_some(), T::ONE, x, w) };
        }
    });
}
