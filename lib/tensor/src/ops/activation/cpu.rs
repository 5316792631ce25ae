use super::Activation;
use crate::dtype::Float;
use crate::parallel::{BLOCK_ELEMENTS, Shared, blocks};
use crate::vectorize;

/// √(2/π) and the cubic coefficient of the tanh form of GELU.
const TANH: (f64, f64) = (0.797_884_560_802_865_4, 0.044_715);

#[inline(always)]
fn map<T: Float>(out: &mut [T], x: &[T], f: impl Fn(T, T) -> T) {
    vectorize!({
        for (y, x) in out.iter_mut().zip(x) {
            *y = f(*y, *x);
        }
    });
}

#[inline(always)]
fn gelu<T: Float>(x: T) -> T {
    T::of(0.5) * x * (T::ONE + (x * T::of(std::f64::consts::FRAC_1_SQRT_2)).erf())
}

#[inline(always)]
fn gelu_derivative<T: Float>(x: T) -> T {
    let half = T::of(0.5);
    let cdf = half + half * (x * T::of(std::f64::consts::FRAC_1_SQRT_2)).erf();
    let density = T::of(0.398_942_280_401_432_7) * (-half * x * x).exp();
    x.mul_add(density, cdf)
}

#[inline(always)]
fn gelu_tanh<T: Float>(x: T) -> T {
    let t = (T::of(TANH.0) * x * (T::of(TANH.1) * x).mul_add(x, T::ONE)).tanh();
    T::of(0.5) * x * (T::ONE + t)
}

#[inline(always)]
fn gelu_tanh_derivative<T: Float>(x: T) -> T {
    let (half, a, b) = (T::of(0.5), T::of(TANH.0), T::of(TANH.1));
    let t = (a * x * (b * x).mul_add(x, T::ONE)).tanh();
    let inner = a * (T::of(3.0) * b * x).mul_add(x, T::ONE);
    half * (T::ONE + t) + half * x * (T::ONE - t * t) * inner
}

#[inline(always)]
fn sigmoid<T: Float>(x: T) -> T {
    T::ONE / (T::ONE + (-x).exp())
}

/// out = f(x), on the calling thread.
fn value<T: Float>(activation: Activation, x: &[T], out: &mut [T]) {
    match activation {
        Activation::Identity => out.copy_from_slice(x),
        Activation::Gelu => map(out, x, |_, x| gelu(x)),
        Activation::GeluTanh => map(out, x, |_, x| gelu_tanh(x)),
        Activation::Silu => map(out, x, |_, x| x * sigmoid(x)),
        Activation::Tanh => map(out, x, |_, x| x.tanh()),
        Activation::Sigmoid => map(out, x, |_, x| sigmoid(x)),
    }
}

/// out = f(x) and x ← f'(x) for x in `z`, on the calling thread: the derivative that backward needs replaces its input.
pub(crate) fn value_and_derivative<T: Float>(activation: Activation, z: &mut [T], out: &mut [T]) {
    match activation {
        Activation::Identity => {
            out.copy_from_slice(z);
            z.fill(T::ONE);
        }
        Activation::Gelu => both(z, out, |x| {
            let half = T::of(0.5);
            let cdf = half + half * (x * T::of(std::f64::consts::FRAC_1_SQRT_2)).erf();
            let density = T::of(0.398_942_280_401_432_7) * (-half * x * x).exp();
            (x * cdf, x.mul_add(density, cdf))
        }),
        Activation::GeluTanh => both(z, out, |x| (gelu_tanh(x), gelu_tanh_derivative(x))),
        Activation::Silu => both(z, out, |x| {
            let s = sigmoid(x);
            (x * s, s * x.mul_add(T::ONE - s, T::ONE))
        }),
        Activation::Tanh => both(z, out, |x| {
            let t = x.tanh();
            (t, T::ONE - t * t)
        }),
        Activation::Sigmoid => both(z, out, |x| {
            let s = sigmoid(x);
            (s, s * (T::ONE - s))
        }),
    }
}

#[inline(always)]
fn both<T: Float>(z: &mut [T], out: &mut [T], f: impl Fn(T) -> (T, T)) {
    vectorize!({
        for (z, y) in z.iter_mut().zip(out) {
            (*y, *z) = f(*z);
        }
    });
}

/// dy ← dy·f'(x), on the calling thread.
fn derivative_times<T: Float>(activation: Activation, x: &[T], dy: &mut [T]) {
    match activation {
        Activation::Identity => {}
        Activation::Gelu => map(dy, x, |dy, x| dy * gelu_derivative(x)),
        Activation::GeluTanh => map(dy, x, |dy, x| dy * gelu_tanh_derivative(x)),
        Activation::Silu => map(dy, x, |dy, x| {
            let s = sigmoid(x);
            dy * s * x.mul_add(T::ONE - s, T::ONE)
        }),
        Activation::Tanh => map(dy, x, |dy, x| {
            let t = x.tanh();
            dy * (T::ONE - t * t)
        }),
        Activation::Sigmoid => map(dy, x, |dy, x| {
            let s = sigmoid(x);
            dy * s * (T::ONE - s)
        }),
    }
}

pub(super) fn forward<T: Float>(activation: Activation, x: &[T], out: &mut [T]) {
    let out = Shared::new(out);
    blocks(x.len(), BLOCK_ELEMENTS, |range| {
        // SAFETY: blocks are disjoint.
        value(activation, &x[range.clone()], unsafe { out.slice(range) });
    });
}

pub(super) fn backward<T: Float>(activation: Activation, x: &[T], dy: &mut [T]) {
    let dy = Shared::new(dy);
    blocks(x.len(), BLOCK_ELEMENTS, |range| {
        // SAFETY: blocks are disjoint.
        derivative_times(activation, &x[range.clone()], unsafe { dy.slice(range) });
    });
}
