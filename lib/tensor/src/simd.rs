//! Vector code for the machine at hand.
//!
//! Kernels are plain loops over slices. [`vectorize!`](crate::vectorize!) compiles the
//! expression it is given once for each
//! instruction set (baseline, AVX2+FMA, AVX-512) and calls the best one the processor has. Sums keep
//! [`LANES`] partial sums in a fixed order, so results are the same on all of them.

use crate::dtype::Float;

/// Partial sums of a reduction: one AVX-512 register of f32.
pub const LANES: usize = 16;

/// Evaluates an expression compiled for the best instruction set of this processor. Functions called
/// inside must be `#[inline(always)]` to be compiled along.
#[macro_export]
macro_rules! vectorize {
    ($body:expr $(,)?) => {
        // Without the attribute the closure would be compiled for the baseline and called from the
        // vector code: many times slower, and just as right.
        $crate::simd::dispatch(
            #[inline(always)]
            || $body,
        )
    };
}

/// What [`vectorize!`](crate::vectorize!) stands for.
#[inline]
pub fn dispatch<R>(kernel: impl FnOnce() -> R) -> R {
    pulp::Arch::new().dispatch(kernel)
}

/// Name of the instruction set that is used, e.g. `avx512`: sums of products differ with it in their
/// last bits.
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

/// Σ f(a_i, b_i, ..) over the elements of slices of one length, with [`LANES`] partial sums.
///
/// # Panics
/// When the slices differ in length.
#[inline(always)]
pub fn sum<T: Float, const K: usize>(slices: [&[T]; K], f: impl Fn([T; K]) -> T) -> T {
    let n = slices[0].len();
    assert!(slices.iter().all(|s| s.len() == n));
    // Arrays of known length: no bound is checked inside, and they live in registers. The rest has a
    // sum of its own for that reason.
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

/// The largest element; -∞ of an empty slice is not needed: rows are never empty.
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
