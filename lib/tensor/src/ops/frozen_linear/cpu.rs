use super::Storage;
use crate::Scratch;
use crate::dtype::Float;
use crate::nf4::{BLOCK, widen_part};
use crate::parallel::{Shared, blocks};
use crate::product::{View, product_into};
use crate::tensor::Tensor;

/// Rows of W that are brought into the dtype of x at a time, if they are whole blocks of codes.
const ROWS: usize = 16;
/// Elements of W that are worth a thread.
const READ: usize = 32 * 1024;

/// Computes y = x Wᵀ + b for few x of one step each, with W [n, k] in parts that stay in the cache: the bits are those of
/// [`Linear`](crate::ops::linear::Linear) with the whole W.
pub(super) fn forward_steps<T: Float>(
    (weight, pieces, [n, k]): (Storage, &[&Tensor], [usize; 2]),
    x: &Tensor,
    b: Option<&Tensor>,
    y: &mut [T],
) {
    let (count, x, b) = (x.rows(), x.read::<T>(), b.map(|b| b.read::<T>()));
    let mut rows = ROWS;
    while !(rows * k).is_multiple_of(BLOCK) {
        rows *= 2;
    }
    let y = Shared::new(y);
    blocks(n.div_ceil(rows), READ / (rows * k).max(1), |range| {
        let mut w = Scratch::<T>::uninit(rows * k);
        for block in range {
            let (first, last) = (block * rows, ((block + 1) * rows).min(n));
            let w = &mut w[..(last - first) * k];
            match weight {
                Storage::Dense(_) => widen_part(pieces[0], first * k, w),
                Storage::Nf4(layout) => layout.dequantise_part(pieces, first * k, w),
            }
            if let Some(b) = b {
                for row in 0..count {
                    // SAFETY: blocks have disjoint columns of y.
                    let y = unsafe { y.slice(row * n + first..row * n + last) };
                    y.copy_from_slice(&b[first..last]);
                }
            }
            let x = View::new(x, count, k, k).of_steps(true);
            let w = View::new(w, last - first, k, k).transposed();
            // SAFETY: as above; the columns are inside y.
            unsafe { product_into(y.pointer(first), n, b.is_some(), T::ONE, x, w) };
        }
    });
}
