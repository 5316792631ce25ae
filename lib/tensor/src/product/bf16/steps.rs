//! Products of few single steps of sequences. They are bound by reading the right operand, which is therefore read once and
//! rounded on the way, with the same bits at every level.

use super::super::View;
use super::super::few::{self, Stored};
use super::portable::{Rounded, widened};
use crate::dtype::bf16;
use crate::simd::{LANES, Vectors};
use pulp::Simd;
use std::mem::MaybeUninit;

/// An element that is rounded when it is loaded.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Loaded<E>(E);

/// The value of an element as an operand.
trait Value: Copy + 'static {
    fn rounded(self) -> f32;
}

impl Value for f32 {
    #[inline(always)]
    fn rounded(self) -> f32 {
        widened(self)
    }
}

impl Value for bf16 {
    #[inline(always)]
    fn rounded(self) -> f32 {
        // For subnormals, which are zeros: with code for them alone, loads were no vector code and took four times as long.
        widened(f32::from_bits(u32::from(self.to_bits()) << 16))
    }
}

impl<E: Value> Stored<f32> for Loaded<E> {
    #[inline(always)]
    unsafe fn load<S: Simd>(_: S, from: *const Self) -> S::f32s {
        let mut wide = MaybeUninit::<S::f32s>::uninit();
        let to = wide.as_mut_ptr().cast::<f32>();
        // SAFETY: a vector consists of its elements, all of which are written; the caller guarantees `from`.
        unsafe {
            for i in 0..size_of::<S::f32s>() / size_of::<f32>() {
                to.add(i).write(from.add(i).read().0.rounded());
            }
            wide.assume_init()
        }
    }

    #[inline(always)]
    fn load_part<S: Simd>(simd: S, x: &[Self]) -> S::f32s {
        let mut wide = [0.0; LANES];
        wide.iter_mut().zip(x).for_each(|(wide, x)| *wide = x.0.rounded());
        <f32 as Vectors>::load_part(simd, &wide[..x.len()])
    }
}

/// Computes out (+)= alpha·lhs·rhs if lhs are few single steps, and the layouts allow it. Returns whether it did.
///
/// # Safety
/// As for [`super::product`].
#[allow(private_bounds, reason = "elements are f32 or bf16")]
pub(in super::super) unsafe fn product<E: Value>(
    out: *mut f32,
    stride: usize,
    (alpha, add): (f32, bool),
    lhs: View<f32>,
    rhs: View<E>,
) -> bool {
    if !lhs.of_steps || !few::takes(lhs, rhs) {
        return false;
    }
    let rounded = Rounded::by(lhs, usize::MAX);
    let lhs = rounded.columns(0, [lhs.rows, lhs.columns]);
    let View { data, rows, columns, row_stride, column_stride, of_steps, .. } = rhs;
    // SAFETY: Loaded<E> has the layout of E.
    let data = unsafe { std::slice::from_raw_parts(data.as_ptr().cast::<Loaded<E>>(), data.len()) };
    let rhs = View { data, rows, columns, row_stride, column_stride, of_steps, packed: None };
    // SAFETY: the caller guarantees `out`.
    unsafe { few::product(out, stride, (alpha, add), lhs, rhs) }
}
