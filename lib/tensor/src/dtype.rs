//! Dtypes. Training on the CPU uses f32; every CPU op is also generic over f64, for checks. Kernels also compute in f16
//! and bf16. Integers serve as indices.

use crate::product::Gemm;
pub use half::{bf16, f16};
use std::fmt::Debug;
use std::ops::{Add, AddAssign, Div, Mul, MulAssign, Neg, Sub};

/// The dtype of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// IEEE single precision.
    F32,
    /// IEEE double precision.
    F64,
    /// bfloat16, the upper half of an f32: 8 exponent bits, 8 bits of precision.
    Bf16,
    /// IEEE half precision: 5 exponent bits, 11 bits of precision.
    F16,
    /// A 32-bit integer: an index, a class or a token.
    I32,
    /// A byte: the code of a number in 8 bits.
    U8,
}

impl Dtype {
    /// Whether the elements are floating-point numbers.
    pub fn is_float(self) -> bool {
        !matches!(self, Dtype::I32 | Dtype::U8)
    }

    /// Bytes per element.
    pub fn bytes(self) -> usize {
        match self {
            Dtype::U8 => 1,
            Dtype::Bf16 | Dtype::F16 => 2,
            Dtype::F32 | Dtype::I32 => 4,
            Dtype::F64 => 8,
        }
    }

    /// Unit roundoff, half the distance from 1 to the next larger number: the maximum relative rounding error. 0 for
    /// integers.
    pub fn roundoff(self) -> f64 {
        match self {
            Dtype::F64 => f64::EPSILON / 2.0,
            Dtype::F32 => f64::from(f32::EPSILON) / 2.0,
            Dtype::F16 => f64::from(f16::EPSILON) / 2.0,
            Dtype::Bf16 => f64::from(bf16::EPSILON) / 2.0,
            Dtype::I32 | Dtype::U8 => 0.0,
        }
    }
}

impl std::fmt::Display for Dtype {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Dtype::F32 => "f32",
            Dtype::F64 => "f64",
            Dtype::Bf16 => "bf16",
            Dtype::F16 => "f16",
            Dtype::I32 => "i32",
            Dtype::U8 => "u8",
        })
    }
}

/// A Rust type that stores tensor elements on the host.
///
/// # Safety
/// Every bit pattern must be a valid value, and the size must match `DTYPE`.
pub unsafe trait Element: Copy + Debug + Default + Send + Sync + 'static {
    /// The dtype of this Rust type.
    const DTYPE: Dtype;
    /// Converts to f64, exactly.
    fn f64(self) -> f64;
    /// Rounds `x` to the nearest value.
    fn of(x: f64) -> Self;
}

macro_rules! element {
    ($($type:ty, $dtype:ident, $to:expr, $of:expr;)*) => {$(
        // SAFETY: a plain number with the size of its dtype; every bit pattern is valid.
        unsafe impl Element for $type {
            const DTYPE: Dtype = Dtype::$dtype;
            #[inline(always)]
            fn f64(self) -> f64 {
                ($to)(self)
            }
            #[inline(always)]
            fn of(x: f64) -> Self {
                ($of)(x)
            }
        }
    )*};
}

/// Rounds to the neighbour in f32 whose last bit is 1, unless x is exact: rounding that to 16 bits is then as if x had been
/// rounded once (Boldo and Melquiond 2008, "Emulation of FMA and correctly rounded sums: proved algorithms using rounding
/// to odd"). `bf16::from_f64` ignores the last 32 bits, which decide some ties even of f32.
fn round_to_odd(x: f64) -> f32 {
    let near = x as f32;
    let is_exact = f64::from(near) == x || x.is_nan();
    match near.to_bits() {
        bits if is_exact || bits & 1 == 1 => near,
        bits if f64::from(near.abs()) < x.abs() => f32::from_bits(bits + 1),
        bits => f32::from_bits(bits - 1),
    }
}

element! {
    f32, F32, f64::from, |x| x as f32;
    f64, F64, |x| x, |x| x;
    bf16, Bf16, f64::from, |x| bf16::from_f32(round_to_odd(x));
    f16, F16, f64::from, |x| f16::from_f32(round_to_odd(x));
    i32, I32, f64::from, |x: f64| x.round() as i32;
    u8, U8, f64::from, |x: f64| x.round() as u8;
}

/// Runs the body with `T` as the Rust type of `dtype`.
#[macro_export]
macro_rules! with_element {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            $crate::Dtype::F32 => {
                type $T = f32;
                $body
            }
            $crate::Dtype::F64 => {
                type $T = f64;
                $body
            }
            $crate::Dtype::Bf16 => {
                type $T = $crate::dtype::bf16;
                $body
            }
            $crate::Dtype::F16 => {
                type $T = $crate::dtype::f16;
                $body
            }
            $crate::Dtype::I32 => {
                type $T = i32;
                $body
            }
            $crate::Dtype::U8 => {
                type $T = u8;
                $body
            }
        }
    };
}

/// The arithmetic that CPU ops require of an element type. The f32 functions are branch-free, so that the compiler can
/// vectorize loops over them; the f64 functions are the accurate reference.
pub trait Float:
    Element
    + crate::simd::Vectors
    + PartialOrd
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
    + AddAssign
    + MulAssign
{
    /// Zero.
    const ZERO: Self;
    /// One.
    const ONE: Self;
    /// self·a + b with a single rounding.
    fn mul_add(self, a: Self, b: Self) -> Self;
    /// e^self.
    fn exp(self) -> Self;
    /// The error function.
    fn erf(self) -> Self;
    /// Hyperbolic tangent.
    fn tanh(self) -> Self;
    /// Square root.
    fn sqrt(self) -> Self;
    /// The larger of `self` and `other`.
    fn maximum(self, other: Self) -> Self;
    /// Returns the single-threaded matrix product kernel.
    fn gemm() -> Gemm<Self>;
}

impl Float for f32 {
    const ZERO: f32 = 0.0;
    const ONE: f32 = 1.0;
    #[inline(always)]
    fn mul_add(self, a: f32, b: f32) -> f32 {
        f32::mul_add(self, a, b)
    }
    /// Cephes' expf: range reduction by ln 2 and a polynomial of degree 5; within 2 ulp.
    #[inline(always)]
    fn exp(self) -> f32 {
        /// 1.5 · 2²³: adding it rounds to an integer, which is then in the low mantissa bits.
        const ROUND: f32 = 12_582_912.0;
        // Clamped above to keep the exponent in range; very negative inputs give zero.
        let x = if self < 88.37 { self } else { 88.37 };
        let x = if x > -87.33 { x } else { -87.33 };
        let shifted = f32::mul_add(x, std::f32::consts::LOG2_E, ROUND);
        let n = shifted - ROUND;
        let r = f32::mul_add(n, -0.693_359_4, x);
        let r = f32::mul_add(n, 2.121_944_4e-4, r);
        let mut p = 1.987_569_1e-4;
        for c in [1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
            p = f32::mul_add(p, r, c);
        }
        let y = f32::mul_add(p, r * r, r + 1.0);
        let y = f32::from_bits(y.to_bits().wrapping_add(shifted.to_bits() << 23));
        let y = if self < -87.33 { 0.0 } else { y };
        if self.is_nan() { self } else { y }
    }
    /// Rational approximation on [-4, 4] (the minimax coefficients used by Eigen), error below 4e-7.
    #[inline(always)]
    fn erf(self) -> f32 {
        let x = if self > -4.0 { self } else { -4.0 };
        let x = if x < 4.0 { x } else { 4.0 };
        let x2 = x * x;
        let mut p = -2.726_142_3e-10_f32;
        for c in [
            2.770_681_4e-8,
            -2.101_024e-6,
            -5.692_506_4e-5,
            -7.349_906e-4,
            -2.954_6e-3,
            -1.609_603_3e-2,
        ] {
            p = f32::mul_add(p, x2, c);
        }
        let mut q = -1.456_607_2e-5_f32;
        for c in [-2.133_740_6e-4, -1.682_827e-3, -7.373_329e-3, -1.426_473_9e-2] {
            q = f32::mul_add(q, x2, c);
        }
        if self.is_nan() { self } else { x * p / q }
    }
    #[inline(always)]
    fn tanh(self) -> f32 {
        let e = Float::exp(-2.0 * self.abs());
        // For small |x| the quotient loses digits to cancellation; there the odd Taylor terms are accurate enough.
        let large = (1.0 - e) / (1.0 + e);
        let x2 = self * self;
        let mut p = 2.186_949e-2_f32;
        for c in [-5.396_825_4e-2, 1.333_333_3e-1, -3.333_333_4e-1, 1.0] {
            p = f32::mul_add(p, x2, c);
        }
        if self.abs() < 0.3 { self * p } else { large.copysign(self) }
    }
    #[inline(always)]
    fn sqrt(self) -> f32 {
        f32::sqrt(self)
    }
    #[inline(always)]
    fn maximum(self, other: f32) -> f32 {
        if self > other { self } else { other }
    }
    fn gemm() -> Gemm<f32> {
        gemm_f32::gemm::f32::get_gemm_fn()
    }
}

impl Float for f64 {
    const ZERO: f64 = 0.0;
    const ONE: f64 = 1.0;
    #[inline(always)]
    fn mul_add(self, a: f64, b: f64) -> f64 {
        f64::mul_add(self, a, b)
    }
    fn exp(self) -> f64 {
        f64::exp(self)
    }
    fn erf(self) -> f64 {
        libm::erf(self)
    }
    fn tanh(self) -> f64 {
        f64::tanh(self)
    }
    #[inline(always)]
    fn sqrt(self) -> f64 {
        f64::sqrt(self)
    }
    #[inline(always)]
    fn maximum(self, other: f64) -> f64 {
        if self > other { self } else { other }
    }
    fn gemm() -> Gemm<f64> {
        gemm_f64::gemm::f64::get_gemm_fn()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Just above, at and below what lies halfway between two numbers with this unit roundoff, also where f32 rounds to it.
    #[test]
    fn f64_is_rounded_to_16_bits_once() {
        fn check<T: Element>(unit: f64) {
            for (digits, tiny) in [(0.0, 2e-7), (2.0, 2e-7), (0.0, 1e-12), (6.0, 1e-12)] {
                let (down, up) = (1.0 + digits * unit, 1.0 + (digits + 2.0) * unit);
                let half = (down + up) / 2.0;
                let even = if digits % 4.0 == 0.0 { down } else { up };
                for (x, expected) in [(half - tiny, down), (half, even), (half + tiny, up)] {
                    for sign in [1.0, -1.0] {
                        assert_eq!(T::of(sign * x).f64(), sign * expected, "{x} in {}", T::DTYPE);
                    }
                }
            }
            assert!(T::of(f64::NAN).f64().is_nan());
            assert_eq!(T::of(1e300).f64(), f64::INFINITY);
            assert_eq!(T::of(-1e-300).f64(), 0.0);
        }
        check::<bf16>(Dtype::Bf16.roundoff());
        check::<f16>(Dtype::F16.roundoff());
    }

    /// Largest error of an f32 function against f64 over a dense grid, relative to |y| if `relative` is set,
    /// otherwise to max(1, |y|).
    fn worst(
        lo: f64,
        hi: f64,
        f: impl Fn(f32) -> f32,
        g: impl Fn(f64) -> f64,
        relative: bool,
    ) -> f64 {
        (0..200_001)
            .map(|i| {
                let x = (lo + (hi - lo) * f64::from(i) / 200_000.0) as f32;
                let (y, z) = (f64::from(f(x)), g(f64::from(x)));
                (y - z).abs() / if relative { z.abs() } else { z.abs().max(1.0) }
            })
            .fold(0.0, f64::max)
    }

    #[test]
    fn f32_functions_agree_with_f64() {
        assert!(worst(-87.0, 88.0, Float::exp, f64::exp, true) < 3e-7);
        assert!(worst(-6.0, 6.0, Float::erf, libm::erf, false) < 5e-7);
        assert!(worst(-10.0, 10.0, Float::tanh, f64::tanh, false) < 3e-7);
    }

    #[test]
    fn edges_are_right() {
        assert_eq!(Float::exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(Float::exp(-1000.0_f32), 0.0);
        assert_eq!(Float::exp(0.0_f32), 1.0);
        assert!(Float::exp(f32::NAN).is_nan());
        assert!(Float::erf(f32::NAN).is_nan());
        assert!((Float::erf(f32::INFINITY) - 1.0).abs() < 1e-6);
        assert_eq!(Float::tanh(f32::INFINITY), 1.0);
        assert!(Float::tanh(f32::NAN).is_nan());
    }
}
