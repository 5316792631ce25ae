use super::Activation;
use crate::dtype::Float;
use crate::parallel::{BLOCK_ELEMENTS, row_blocks};
use crate::vectorize;

#[inline(always)]
fn gelu<T: Float>(x: T) -> (T, T) {
    let half = T::of(0.5);
    let cdf = half + half * (x * T::of(std::f64::consts::FRAC_1_SQRT_2)).erf();
    let density = T::of(0.398_942_280_401_432_7) * (-half * x * x).exp();
    (x * cdf, x.mul_add(density, cdf))
}

#[inline(always)]
fn gelu_tanh<T: Float>(x: T) -> (T, T) {
    let (half, a, b) = (T::of(0.5), T::of(0.797_884_560_802_865_4), T::of(0.044_715));
    let t = (a * x * (b * x).mul_add(x, T::ONE)).tanh();
    let inner = a * (T::of(3.0) * b * x).mul_add(x, T::ONE);
    (half * x * (T::ONE + t), half * (T::ONE + t) + half * x * (T::ONE - t * t) * inner)
}

#[inline(always)]
fn silu<T: Float>(x: T) -> (T, T) {
    let s = sigmoid(x);
    (x * s, s * x.mul_add(T::ONE - s, T::ONE))
}

#[inline(always)]
fn tanh<T: Float>(x: T) -> (T, T) {
    let t = x.tanh();
    (t, T::ONE - t * t)
}

/// Negative slope of [`Activation::LeakyRelu`]; PyTorch's default.
const LEAK: f64 = 0.01;

/// Returns (x, 1) for positive x, otherwise (`below`, `slope`). The derivative at zero is `slope`, as in PyTorch.
#[inline(always)]
fn rectified<T: Float>(x: T, below: T, slope: T) -> (T, T) {
    if x <= T::ZERO { (below, slope) } else { (x, T::ONE) }
}

/// Returns σ(x) = 1/(1 + exp(-x)).
#[inline(always)]
pub(crate) fn sigmoid<T: Float>(x: T) -> T {
    T::ONE / (T::ONE + (-x).exp())
}

/// Calls `put` with each item, f(x) and f'(x), on the calling thread. Inlining removes the computation of a result that
/// `put` ignores.
#[inline(always)]
fn apply<T: Float, I>(
    activation: Activation,
    each: impl Iterator<Item = (T, I)>,
    put: impl Fn(I, T, T),
) {
    match activation {
        Activation::Identity => run(each, put, |x| (x, T::ONE)),
        Activation::Gelu => run(each, put, gelu),
        Activation::GeluTanh => run(each, put, gelu_tanh),
        Activation::Silu => run(each, put, silu),
        Activation::Tanh => run(each, put, tanh),
        Activation::Sigmoid => run(each, put, |x| {
            let s = sigmoid(x);
            (s, s * (T::ONE - s))
        }),
        // The negative side is a constant because 0·x would be NaN at -∞.
        Activation::Relu => run(each, put, |x| rectified(x, T::ZERO, T::ZERO)),
        Activation::LeakyRelu => run(each, put, |x| rectified(x, T::of(LEAK) * x, T::of(LEAK))),
    }
}

#[inline(always)]
fn run<T: Float, I>(
    each: impl Iterator<Item = (T, I)>,
    put: impl Fn(I, T, T),
    f: impl Fn(T) -> (T, T),
) {
    vectorize!({
        for (x, item) in each {
            let (value, derivative) = f(x);
            put(item, value, derivative);
        }
    });
}

/// Writes f(x) to `out` for each x in `z` and replaces x with f'(x), which backward needs, on the calling thread.
pub(crate) fn value_and_derivative<T: Float>(activation: Activation, z: &mut [T], out: &mut [T]) {
    let each = z.iter_mut().zip(out).map(|(z, y)| (*z, (z, y)));
    apply(activation, each, |(z, y), value, derivative| (*y, *z) = (value, derivative));
}

/// Replaces each x in `y` with f(x), on the calling thread.
pub(crate) fn apply_in_place<T: Float>(activation: Activation, y: &mut [T]) {
    if activation != Activation::Identity {
        apply(activation, y.iter_mut().map(|y| (*y, y)), |y, value, _| *y = value);
    }
}

/// Replaces each x in `z` with dy·f'(x), on the calling thread.
pub(crate) fn times_derivative<T: Float>(activation: Activation, z: &mut [T], dy: &[T]) {
    let each = z.iter_mut().zip(dy).map(|(z, dy)| (*z, (z, *dy)));
    apply(activation, each, |(z, dy), _, derivative| *z = dy * derivative);
}

pub(super) fn forward<T: Float>(activation: Activation, x: &[T], out: &mut [T]) {
    row_blocks((out, 1), BLOCK_ELEMENTS, |range, out| {
        apply(activation, x[range].iter().copied().zip(out), |y, value, _| *y = value);
    });
}

/// Replaces dy with dy·f'(x).
pub(super) fn backward<T: Float>(activation: Activation, x: &[T], dy: &mut [T]) {
    row_blocks((dy, 1), BLOCK_ELEMENTS, |range, dy| {
        let each = x[range].iter().copied().zip(dy);
        apply(activation, each, |dy, _, derivative| *dy *= derivative);
    });
}
