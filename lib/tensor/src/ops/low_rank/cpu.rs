use crate::dtype::Float;
use crate::op::{GradBuffer, Saved};
use crate::ops::linear::cpu;
use crate::parallel::{Shared, blocks};
use crate::product::{View, product};
use crate::tensor::Tensor;

/// Rows per block.
const ROWS: usize = 256;

/// Writes s·x Aᵀ to `low` and y + low Bᵀ to `out`.
pub(super) fn forward<T: Float>(
    scale: T,
    [y, x, a, b]: [&Tensor; 4],
    low: &mut [T],
    out: &mut [T],
) {
    let ([n, r], k, rows) = ([0, 1].map(|axis| b.shape()[axis]), x.width(), x.rows());
    let (y, x, a, b) = (y.read::<T>(), x.read::<T>(), a.read::<T>(), b.read::<T>());
    let (low, out) = (Shared::new(low), Shared::new(out));
    blocks(rows.div_ceil(ROWS), 1, |range| {
        for block in range {
            let (first, last) = (block * ROWS, ((block + 1) * ROWS).min(rows));
            // SAFETY: blocks of rows are disjoint.
            let (low, out) =
                unsafe { (low.slice(first * r..last * r), out.slice(first * n..last * n)) };
            let x = View::new(&x[first * k..last * k], last - first, k, k);
            product(low, r, false, scale, x, View::new(a, r, k, k).transposed());
            out.copy_from_slice(&y[first * n..last * n]);
            let low = View::new(low, last - first, r, r);
            product(out, n, true, T::ONE, low, View::new(b, n, r, r).transposed());
        }
    });
}

/// Computes or accumulates the requested dx, dA and dB.
pub(super) fn backward<T: Float>(
    scale: T,
    saved: &Saved,
    dy: &mut Tensor,
    [dx, da, db]: [Option<&mut GradBuffer>; 3],
) {
    let [x, a, b, low] = [0, 1, 2, 3].map(|i| &saved[i]);
    let mut of_low =
        GradBuffer { tensor: Tensor::empty(low.shape(), low.dtype()), accumulate: false };
    cpu::backward::<T>(low, b, None, dy, [Some(&mut of_low), db, None]);
    let mut of_low = of_low.tensor;
    of_low.write::<T>().iter_mut().for_each(|x| *x *= scale);
    cpu::backward::<T>(x, a, None, &mut of_low, [dx, da, None]);
}
