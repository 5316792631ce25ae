//! Softmax over the last axis: y_i = exp(x_i - max x) / Σ_j exp(x_j - max x). x [.., N].
//!
//! dx = y ∘ (dy - Σ_j dy_j y_j).

mod cpu;
pub(crate) mod cuda;

use crate::op::{Case, Draw, Grads, Op, Saved};
use crate::tensor::Tensor;
use crate::with_float;

/// Softmax over the last axis.
#[derive(Clone, Copy, Debug)]
pub struct Softmax;

impl Op for Softmax {
    fn name(&self) -> &'static str {
        "softmax"
    }

    fn shape(&self, inputs: &[&[usize]]) -> Result<Vec<usize>, String> {
        match inputs {
            [x] if x.last().is_some_and(|n| *n > 0) => Ok(x.to_vec()),
            _ => Err("takes x [.., N] with N > 0".into()),
        }
    }

    fn forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        with_float!(out.dtype(), T => cpu::forward::<T>(inputs[0], out.write()));
        vec![out.clone()]
    }

    fn backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads) {
        if let Some(grad) = grads.buffer(0) {
            with_float!(dy.dtype(), T => cpu::backward::<T>(&saved[0], dy.read(), grad));
        }
    }
}

/// One element, odd widths, large values, and rows for each of the kernels.
pub fn cases() -> Vec<Case> {
    vec![
        Case::new(Softmax, &[&[1]]),
        Case::new(Softmax, &[&[3, 7]]),
        Case::new(Softmax, &[&[2, 5, 33]]),
        Case::new(Softmax, &[&[5, 19]]).draw(0, Draw::Uniform(90.0, 100.0)),
        Case::new(Softmax, &[&[9, 512]]),
        Case::new(Softmax, &[&[3, 1000]]),
        Case::new(Softmax, &[&[2, 1001]]),
        Case::new(Softmax, &[&[2, 8200]]),
        Case::new(Softmax, &[&[2, 8193]]).draw(0, Draw::Uniform(-4.0, 4.0)),
        Case::new(Softmax, &[&[2048, 511]]),
    ]
}
