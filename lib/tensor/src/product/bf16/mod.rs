//! Products of f32 matrices whose operands are rounded to bf16 (to nearest, ties to even) while they are packed; sums are in
//! f32.
//!
//! There are three implementations, one of which is chosen when it is first needed ([`level`]): AMX (`tdpbf16ps`), AVX-512
//! BF16 (`vdpbf16ps`), and on other processors the f32 product of rounded operands. What they compute is the same but for the
//! order of sums: as these instructions do, all of them count subnormal operands as zero.

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod level;
#[cfg(target_arch = "x86_64")]
mod panels;
mod portable;
mod steps;
#[cfg(target_arch = "x86_64")]
mod tiles;

#[cfg(all(test, target_arch = "x86_64"))]
mod tests;

pub use level::{Level, level};

use super::View;
use crate::dtype::{Dtype, Float, bf16 as Bf16};
use std::mem::transmute_copy;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Number of [`Rounding`]s.
static ROUNDINGS: AtomicUsize = AtomicUsize::new(0);

/// While one of these exists, products of f32 matrices on the CPU round their operands to bf16, in the whole process.
#[derive(Debug)]
#[must_use]
pub struct Rounding(());

impl Rounding {
    /// Begins to round operands.
    pub fn begin() -> Self {
        ROUNDINGS.fetch_add(1, Ordering::Relaxed);
        Self(())
    }
}

impl Drop for Rounding {
    fn drop(&mut self) {
        ROUNDINGS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Whether products of f32 matrices round their operands.
pub fn is_on() -> bool {
    ROUNDINGS.load(Ordering::Relaxed) > 0
}

/// A right operand in the form that an implementation multiplies.
pub(super) enum Packed {
    /// For AMX and AVX-512 BF16.
    #[cfg(target_arch = "x86_64")]
    Panels(panels::Panels),
    /// For the portable product.
    Rounded(portable::Rounded),
}

impl Packed {
    /// Packs for `level`, which this processor must have, on all threads.
    fn new(level: Level, rhs: View<f32>) -> Self {
        match level {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the processor has the level.
            Level::Avx512 | Level::Amx => {
                Self::Panels(unsafe { panels::Panels::of_rhs(rhs, true) })
            }
            _ => Self::Rounded(portable::Rounded::new(rhs)),
        }
    }
}

/// Packs the right operand of products, if T is f32 and they round their operands.
pub(super) fn packed_if_on<T: Float>(rhs: View<T>) -> Option<Packed> {
    (is_on() && rhs.rows > 0).then(|| Some(Packed::new(level::chosen(), of_f32(rhs)?))).flatten()
}

/// The view itself, if T is f32.
fn of_f32<T: Float>(view: View<T>) -> Option<View<f32>> {
    // SAFETY: T is f32.
    (T::DTYPE == Dtype::F32).then(|| unsafe { transmute_copy::<View<T>, View<f32>>(&view) })
}

/// Computes out = alpha·lhs·rhs, or out += alpha·lhs·rhs if `add` is set, if T is f32 and products round their operands.
/// Returns whether it did.
///
/// # Safety
/// As for [`super::product_into`]; the inner sizes agree.
#[inline]
pub(super) unsafe fn product_if_on<T: Float>(
    out: *mut T,
    stride: usize,
    (alpha, add): (T, bool),
    lhs: View<T>,
    rhs: View<T>,
) -> bool {
    if !is_on() {
        return false;
    }
    let [Some(lhs), Some(rhs)] = [lhs, rhs].map(of_f32) else { return false };
    // SAFETY: T is f32.
    let alpha = unsafe { transmute_copy::<T, f32>(&alpha) };
    // SAFETY: the caller guarantees `out`.
    unsafe {
        if !steps::product(out.cast(), stride, (alpha, add), lhs, rhs) {
            product(level::chosen(), out.cast(), stride, (alpha, add), lhs, rhs);
        }
    }
    true
}

/// Computes out (+)= lhs·rhs for few single steps and a matrix in bf16, if T is f32 and products round their operands. Returns
/// whether it did.
///
/// # Safety
/// As for [`super::product_into`]; the inner sizes agree.
pub(super) unsafe fn steps_if_on<T: Float>(
    out: *mut T,
    stride: usize,
    add: bool,
    lhs: View<T>,
    rhs: View<Bf16>,
) -> bool {
    let lhs = of_f32(lhs).filter(|_| is_on());
    // SAFETY: the caller guarantees `out`; T is f32.
    lhs.is_some_and(|lhs| unsafe { steps::product(out.cast(), stride, (1.0, add), lhs, rhs) })
}

/// Computes out = alpha·lhs·rhs, or out += alpha·lhs·rhs if `add` is set, by the implementation `level`, which this processor
/// must have.
///
/// # Safety
/// As for [`super::product_into`]; the inner sizes agree.
unsafe fn product(
    level: Level,
    out: *mut f32,
    stride: usize,
    (alpha, add): (f32, bool),
    lhs: View<f32>,
    rhs: View<f32>,
) {
    match level {
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 | Level::Amx if lhs.columns > 0 => {
            let kernel = panels::Kernel::of(level);
            // SAFETY: the caller guarantees `out`.
            unsafe { panels::product(kernel, out, stride, (alpha, add), lhs, rhs) }
        }
        // SAFETY: as above.
        _ => unsafe { portable::product(out, stride, (alpha, add), lhs, rhs) },
    }
}
