//! SIMD with run-time dispatch.
//!
//! CPU kernels are plain loops over slices. [`vectorize!`](crate::vectorize!) compiles an expression once for each
//! instruction set (baseline, AVX2+FMA, AVX-512) and runs the best one that the processor supports. Sums keep
//! [`LANES`] partial sums in a fixed order, so they are the same on all instruction sets.

use crate::dtype::{Float, bf16};
use pulp::Simd;
use std::mem::MaybeUninit;

/// Number of partial sums in a reduction: one AVX-512 register of f32.
pub const LANES: usize = 16;

/// Evaluates an expression compiled for the best instruction set of this processor. Functions called inside must be
/// `#[inline(always)]`; otherwise they are compiled for the baseline.
#[macro_export]
macro_rules! vectorize {
    ($body:expr $(,)?) => {
        // Without the attribute the closure would be compiled for the baseline and called from the vectorized code:
        // correct, but many times slower.
        $crate::simd::dispatch(
            #[inline(always)]
            || $body,
        )
    };
}

/// Implements [`vectorize!`](crate::vectorize!).
#[inline]
pub fn dispatch<R>(kernel: impl FnOnce() -> R) -> R {
    pulp::Arch::new().dispatch(kernel)
}

/// Name of the instruction set in use, e.g. `avx512`. Matrix products differ between instruction sets in their last
/// bits.
pub fn level() -> &'static str {
    #[allow(unreachable_patterns)] // the last arm is for other processors
    match pulp::Arch::new() {
        pulp::Arch::Scalar => "scalar",
        #[cfg(target_arch = "x86_64")]
        pulp::Arch::V3(_) => "avx2",
        #[cfg(target_arch = "x86_64")]
        pulp::Arch::V4(_) => "avx512",
        _ => "vectors",
    }
}

/// Returns Σ f(a_i, b_i, ..) over the elements of slices of equal length, with [`LANES`] partial sums.
///
/// # Panics
/// If the slices differ in length.
#[inline(always)]
pub fn sum<T: Float, const K: usize>(slices: [&[T]; K], f: impl Fn([T; K]) -> T) -> T {
    let n = slices[0].len();
    assert!(slices.iter().all(|s| s.len() == n));
    // Arrays of known length need no bounds checks and stay in registers; the remainder is therefore summed separately.
    let parts = slices.map(|s| s.as_chunks::<LANES>());
    let mut lanes = [T::ZERO; LANES];
    for chunk in 0..n / LANES {
        let arrays = parts.map(|(chunks, _)| &chunks[chunk]);
        for (lane, total) in lanes.iter_mut().enumerate() {
            *total += f(arrays.map(|a| a[lane]));
        }
    }
    let mut rest = T::ZERO;
    for i in 0..n % LANES {
        rest += f(parts.map(|(_, tail)| tail[i]));
    }
    fold(&lanes) + rest
}

/// Sums the lanes pairwise, always in the same order.
#[inline(always)]
pub fn fold<T: Float>(lanes: &[T; LANES]) -> T {
    // Arrays of known length stay in registers.
    let eight: [T; 8] = std::array::from_fn(|i| lanes[i] + lanes[i + 8]);
    let four: [T; 4] = std::array::from_fn(|i| eight[i] + eight[i + 4]);
    (four[0] + four[2]) + (four[1] + four[3])
}

/// Returns the largest element of a non-empty slice.
#[inline(always)]
pub fn max<T: Float>(x: &[T]) -> T {
    let (chunks, rest) = x.as_chunks::<LANES>();
    let mut lanes = [x[0]; LANES];
    for chunk in chunks {
        for (lane, value) in lanes.iter_mut().zip(chunk) {
            *lane = lane.maximum(*value);
        }
    }
    let eight: [T; 8] = std::array::from_fn(|i| lanes[i].maximum(lanes[i + 8]));
    let four: [T; 4] = std::array::from_fn(|i| eight[i].maximum(eight[i + 4]));
    let top = four[0].maximum(four[2]).maximum(four[1].maximum(four[3]));
    rest.iter().fold(top, |top, value| top.maximum(*value))
}

/// Vectors of an instruction set, for loops that the compiler would not keep in registers. Functions are used inside
/// [`pulp::WithSimd`].
pub trait Vectors: Sized + 'static {
    /// A vector of elements.
    type Vector<S: Simd>: Copy;
    /// Splits a slice into vectors and a rest that is shorter than one.
    fn split<S: Simd>(simd: S, x: &[Self]) -> (&[Self::Vector<S>], &[Self]);
    /// Returns a vector of elements that are all `x`.
    fn splat<S: Simd>(simd: S, x: Self) -> Self::Vector<S>;
    /// Loads a vector from fewer elements; the others are zero.
    fn load_part<S: Simd>(simd: S, x: &[Self]) -> Self::Vector<S>;
    /// Loads a vector of numbers in bf16, which this dtype represents exactly.
    ///
    /// # Safety
    /// `from` is valid for reads of as many numbers as a vector has.
    unsafe fn load_bf16<S: Simd>(simd: S, from: *const bf16) -> Self::Vector<S>;
    /// Writes the first elements of a vector, all of them or as many as fit.
    fn store<S: Simd>(simd: S, to: &mut [Self], x: Self::Vector<S>);
    /// Returns a·b + c, rounded once where the instruction set can.
    fn fma<S: Simd>(
        simd: S,
        a: Self::Vector<S>,
        b: Self::Vector<S>,
        c: Self::Vector<S>,
    ) -> Self::Vector<S>;
    /// Returns the sum of the elements of a vector.
    fn total<S: Simd>(simd: S, x: Self::Vector<S>) -> Self;
}

macro_rules! vectors {
    ($T:ty, $V:ident, $split:ident, $splat:ident, $load:ident, $store:ident, $fma:ident, $sum:ident) => {
        impl Vectors for $T {
            type Vector<S: Simd> = S::$V;
            #[inline(always)]
            fn split<S: Simd>(_: S, x: &[$T]) -> (&[S::$V], &[$T]) {
                S::$split(x)
            }
            #[inline(always)]
            fn splat<S: Simd>(simd: S, x: $T) -> S::$V {
                simd.$splat(x)
            }
            #[inline(always)]
            fn load_part<S: Simd>(simd: S, x: &[$T]) -> S::$V {
                simd.$load(x)
            }
            #[inline(always)]
            unsafe fn load_bf16<S: Simd>(_: S, from: *const bf16) -> S::$V {
                let mut wide = MaybeUninit::<S::$V>::uninit();
                let to = wide.as_mut_ptr().cast::<$T>();
                // SAFETY: a vector consists of its elements, all of which are written; the caller guarantees `from`.
                unsafe {
                    for i in 0..size_of::<S::$V>() / size_of::<$T>() {
                        let bits = u32::from(from.add(i).read().to_bits()) << 16;
                        to.add(i).write(<$T>::from(f32::from_bits(bits)));
                    }
                    wide.assume_init()
                }
            }
            #[inline(always)]
            fn store<S: Simd>(simd: S, to: &mut [$T], x: S::$V) {
                simd.$store(to, x);
            }
            #[inline(always)]
            fn fma<S: Simd>(simd: S, a: S::$V, b: S::$V, c: S::$V) -> S::$V {
                simd.$fma(a, b, c)
            }
            #[inline(always)]
            fn total<S: Simd>(simd: S, x: S::$V) -> $T {
                simd.$sum(x)
            }
        }
    };
}

vectors!(
    f32,
    f32s,
    as_simd_f32s,
    splat_f32s,
    partial_load_f32s,
    partial_store_f32s,
    mul_add_f32s,
    reduce_sum_f32s
);
vectors!(
    f64,
    f64s,
    as_simd_f64s,
    splat_f64s,
    partial_load_f64s,
    partial_store_f64s,
    mul_add_f64s,
    reduce_sum_f64s
);
