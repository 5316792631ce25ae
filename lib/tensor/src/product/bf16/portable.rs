//! Rounding of operands, and the product of rounded operands in f32 on processors without an instruction for it.

use super::super::{View, gemm};
use crate::scratch::Scratch;
use crate::vectorize;

/// The bits of x in bf16: to nearest, ties to even; a subnormal x is a zero, NaN stays NaN.
#[inline(always)]
pub(super) fn round(x: f32) -> u16 {
    let bits = x.to_bits();
    let upper = (bits >> 16) as u16;
    if x.is_nan() {
        return upper | 0x40;
    }
    if bits & 0x7f80_0000 == 0 {
        return upper & 0x8000;
    }
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

/// Returns the elements of a view in row-major order, rounded.
fn rounded(x: View<f32>) -> Scratch<f32> {
    let mut out = Scratch::uninit(x.rows * x.columns);
    vectorize!({
        for (row, out) in out.chunks_exact_mut(x.columns.max(1)).enumerate() {
            for (column, out) in out.iter_mut().enumerate() {
                let value = x.data[row * x.row_stride + column * x.column_stride];
                *out = f32::from_bits(u32::from(round(value)) << 16);
            }
        }
    });
    out
}

/// Computes out = alpha·lhs·rhs, or out += alpha·lhs·rhs if `add` is set.
///
/// # Safety
/// As for [`super::product`].
pub(super) unsafe fn product(
    out: *mut f32,
    stride: usize,
    (alpha, add): (f32, bool),
    lhs: View<f32>,
    rhs: View<f32>,
) {
    let (a, b) = (rounded(lhs), rounded(rhs));
    let a = View::new(&a, lhs.rows, lhs.columns, lhs.columns);
    let b = View::new(&b, rhs.rows, rhs.columns, rhs.columns);
    // SAFETY: the caller guarantees `out`.
    unsafe { gemm(out, stride, (alpha, add), a, b) }
}
