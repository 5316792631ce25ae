//! y = f(x Wᵀ + b): x [.., K], W [N, K] (PyTorch's layout), b [N] if `bias`, y [.., N].
//!
//! With z = x Wᵀ + b and dz = dy ∘ f'(z): dx = dz W, dW = dzᵀ x, db = Σ over rows of dz.
//! Costs 2·R·N·K FLOPs forward and twice as many backward (R rows).

pub(crate) mod cpu;
pub(crate) mod cuda;

pub(crate) use cuda::{Factor, multiply_and_sum};

use super::activation::Activation;
use crate::dtype::Float;
use crate::op::{Case, Draw, Grads, Op, Saved};
use crate::tensor::Tensor;
use crate::with_float;

/// Linear layer with an activation.
#[derive(Clone, Copy, Debug)]
pub struct Linear {
    /// Whether there is a third input b.
    pub bias: bool,
    /// Activation f.
    pub activation: Activation,
}

impl Linear {
    /// Computes y for W [N, K], given N. Returns f'(z), which is all of z that the backward pass needs, unless f is the
    /// identity.
    pub(crate) fn compute<T: Float>(
        &self,
        x: &Tensor,
        w: (cpu::Weight<T>, usize),
        b: Option<&Tensor>,
        out: &mut Tensor,
    ) -> Option<Tensor> {
        if self.activation == Activation::Identity {
            cpu::forward(x, w, b, out.write(), None);
            return None;
        }
        let mut slope = Tensor::empty(out.shape(), out.dtype());
        cpu::forward(x, w, b, slope.write(), Some((self.activation, out.write())));
        Some(slope)
    }
}

impl Op for Linear {
    fn shape(&self, inputs: &[&[usize]]) -> Result<Vec<usize>, String> {
        let (x, w) = match (inputs, self.bias) {
            ([x, w], false) => (x, w),
            ([x, w, b], true) if w.first() == b.first() && b.len() == 1 => (x, w),
            _ => return Err("takes x, W [N, K] and, with a bias, b [N]".into()),
        };
        match (x.split_last(), w) {
            (Some((k, rows)), [n, wk]) if k == wk => Ok([rows, &[*n]].concat()),
            _ => Err("the last axis of x must be the last of W".into()),
        }
    }

    fn flops(&self, inputs: &[&[usize]]) -> usize {
        2 * inputs[0].iter().product::<usize>() * inputs[1][0]
    }

    fn kept(&self, inputs: &[&Tensor], out: &Tensor) -> Saved {
        let mut kept = vec![inputs[0].clone(), inputs[1].clone()];
        if self.activation != Activation::Identity {
            kept.push(Tensor::untouched(out.shape(), out.dtype()));
        }
        kept
    }

    fn forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        let (x, w) = (inputs[0], inputs[1]);
        let slope = with_float!(out.dtype(), T => {
            let whole = (cpu::Weight::Whole(w.read::<T>()), w.shape()[0]);
            self.compute(x, whole, inputs.get(2).copied(), out)
        });
        [Some(x.clone()), Some(w.clone()), slope].into_iter().flatten().collect()
    }

    fn backward(&self, saved: &Saved, mut dy: Tensor, grads: &mut Grads) {
        with_float!(dy.dtype(), T => {
            let slope = saved.get(2).map(|slope| slope.read::<T>());
            cpu::backward::<T>(&saved[0], &saved[1], slope, &mut dy, grads.buffers([0, 1, 2]));
        });
    }
}

/// Returns test cases: all combinations of bias and activation at odd sizes, more rows than a block, few rows with many
/// columns, sums over one and many elements, several kernel tiles in each direction, transformer shapes, large W with
/// few and many rows, and a vocabulary with odd rows, which a GPU copies.
pub fn cases() -> Vec<Case> {
    use Activation::{Gelu, GeluTanh, Identity, LeakyRelu, Relu, Sigmoid, Silu, Tanh};
    let case = |bias, activation, rows: &[usize], n: usize, k: usize| {
        let x = [rows, &[k]].concat();
        let shapes: &[&[usize]] = if bias { &[&x, &[n, k], &[n]] } else { &[&x, &[n, k]] };
        // Weights have the scale of a real model, so that activations are tested where they are nonlinear and rounding
        // errors are not dominated by much larger sums.
        let bound = (3.0 / k as f64).sqrt();
        Case::new(Linear { bias, activation }, shapes)
            .draw(1, Draw::Uniform(-bound, bound))
            .flops(2 * rows.iter().product::<usize>() * n * k)
    };
    vec![
        case(true, Identity, &[1], 1, 1),
        case(false, Identity, &[3, 5], 7, 11),
        case(true, Gelu, &[2, 3], 5, 4),
        case(true, GeluTanh, &[7], 3, 9),
        case(false, Silu, &[1], 65, 31),
        case(true, Tanh, &[5], 9, 6),
        case(false, Sigmoid, &[3], 5, 33),
        case(true, Relu, &[4], 6, 10),
        case(false, LeakyRelu, &[2], 7, 5),
        case(true, Gelu, &[1029], 33, 17),
        case(true, Identity, &[64], 600, 48),
        case(true, Silu, &[130], 70, 1),
        case(true, GeluTanh, &[66], 136, 72),
        case(false, Gelu, &[3], 5, 4099),
        case(true, Silu, &[2, 1024], 8, 16),
        case(true, Gelu, &[32, 128], 512, 128),
        case(true, Identity, &[64, 128], 256, 1024),
        case(true, Gelu, &[37], 800, 1400),
        case(true, Identity, &[5, 120], 410, 1300),
        case(true, Identity, &[66], 1003, 72),
    ]
}
