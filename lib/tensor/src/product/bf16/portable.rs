//! Rounding of operands, and the product of rounded operands in f32 on processors without an instruction for it.

use super::super::{View, gemm};
use super::Packed;
use crate::parallel::row_blocks;
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

/// A matrix of rounded elements. Those that are adjacent in the original are adjacent here.
pub(in super::super) struct Rounded {
    elements: Scratch<f32>,
    /// Elements of a line, which are adjacent.
    length: usize,
    /// Whether lines are columns.
    is_transposed: bool,
}

/// Rows of adjacent elements for a thread.
const ROWS: usize = 16;

impl Rounded {
    /// Rounds on all threads.
    pub(super) fn new(x: View<f32>) -> Self {
        Self::by(x, ROWS)
    }

    pub(super) fn by(x: View<f32>, grain: usize) -> Self {
        let is_transposed = x.column_stride != 1 && x.row_stride == 1;
        let lines = if is_transposed { x.transposed() } else { x };
        let length = lines.columns;
        let mut elements = Scratch::uninit(lines.rows * length);
        if length > 0 {
            row_blocks((&mut *elements, length), grain, |range, out| {
                for (line, out) in range.zip(out.chunks_exact_mut(length)) {
                    let x = &lines.data[line * lines.row_stride..];
                    vectorize!({
                        if lines.column_stride == 1 {
                            out.iter_mut().zip(x).for_each(|(out, x)| *out = widened(*x));
                        } else {
                            let x = x.iter().step_by(lines.column_stride);
                            out.iter_mut().zip(x).for_each(|(out, x)| *out = widened(*x));
                        }
                    });
                }
            });
        }
        Self { elements, length, is_transposed }
    }

    /// The view of some columns.
    pub(super) fn columns(&self, first: usize, [rows, columns]: [usize; 2]) -> View<'_, f32> {
        if self.is_transposed {
            return View::new(&self.elements[first * self.length..], columns, rows, self.length)
                .transposed();
        }
        View::new(&self.elements[first..], rows, columns, self.length)
    }
}

/// x, rounded.
#[inline(always)]
pub(super) fn widened(x: f32) -> f32 {
    f32::from_bits(u32::from(round(x)) << 16)
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
    // Packed ones were rounded for several products.
    let own;
    let (b, first) = match rhs.packed {
        Some((Packed::Rounded(rounded), first)) => (rounded, first),
        _ => {
            own = Rounded::by(rhs, usize::MAX);
            (&own, 0)
        }
    };
    let a = Rounded::by(lhs, usize::MAX);
    let (a, b) = (a.columns(0, [lhs.rows, lhs.columns]), b.columns(first, [rhs.rows, rhs.columns]));
    // SAFETY: the caller guarantees `out`.
    unsafe { gemm(out, stride, (alpha, add), a, b) }
}
