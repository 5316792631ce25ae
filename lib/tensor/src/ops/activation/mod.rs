//! Elementwise activations: y = f(x), any shape.
//!
//! GELU is x·Φ(x) (Hendrycks & Gimpel 2016), and its tanh approximation is
//! x/2·(1 + tanh(√(2/π)·(x + 0.044715 x³))); SiLU is x·σ(x) (Elfwing et al. 2018); ReLU is max(x, 0) (Nair & Hinton
//! 2010), and leaky ReLU is max(x, x/100) (Maas et al. 2013).

mod cpu;
pub(crate) mod cuda;

pub(crate) use cpu::{apply_in_place, sigmoid, times_derivative, value_and_derivative};

use crate::op::{Case, Draw, Grads, Op, Saved};
use crate::tensor::Tensor;
use crate::with_float;

/// Activation functions, in the same order as in `activation.cuh`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// x.
    Identity,
    /// x·Φ(x), computed with the error function.
    Gelu,
    /// The tanh approximation of GELU.
    GeluTanh,
    /// x·σ(x).
    Silu,
    /// Hyperbolic tangent.
    Tanh,
    /// σ(x) = 1/(1 + exp(-x)).
    Sigmoid,
    /// x above zero, 0 below; the derivative at zero is 0.
    Relu,
    /// x above zero, x/100 below; the derivative at zero is 1/100.
    LeakyRelu,
}

impl Op for Activation {
    fn shape(&self, inputs: &[&[usize]]) -> Result<Vec<usize>, String> {
        match inputs {
            [x] => Ok(x.to_vec()),
            _ => Err("takes one input".into()),
        }
    }

    fn forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        with_float!(out.dtype(), T => cpu::forward::<T>(*self, inputs[0].read(), out.write()));
        vec![inputs[0].clone()]
    }

    fn backward(&self, saved: &Saved, mut dy: Tensor, grads: &mut Grads) {
        with_float!(dy.dtype(), T => cpu::backward::<T>(*self, saved[0].read(), dy.write()));
        grads.accumulate(0, dy);
    }
}

/// Returns test cases with odd sizes and a size large enough to be memory-bound.
pub fn cases() -> Vec<Case> {
    use Activation::{Gelu, GeluTanh, Identity, LeakyRelu, Relu, Sigmoid, Silu, Tanh};
    let mut cases = vec![Case::new(Identity, &[&[5]])];
    for activation in [Gelu, GeluTanh, Silu, Tanh, Sigmoid] {
        for shape in [&[1][..], &[3, 37], &[1000, 257]] {
            cases.push(Case::new(activation, &[shape]));
        }
    }
    for activation in [Relu, LeakyRelu] {
        for shape in [&[1][..], &[3, 37], &[1000, 257]] {
            // Keeps the inputs away from the kink at zero.
            let draw = Draw::Distinct(-300.0, 301.0);
            cases.push(Case::new(activation, &[shape]).draw(0, draw));
        }
    }
    cases
}
