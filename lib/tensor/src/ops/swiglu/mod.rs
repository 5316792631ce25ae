//! SwiGLU (Shazeer 2020, section 2): y = silu(a) ∘ b for a gate a and values b of the same shape (Llama's gate_proj and
//! up_proj).
//!
//! With s = σ(a): da = dy ∘ b ∘ s·(1 + a·(1 - s)), db = dy ∘ a ∘ s.

mod cpu;
mod cuda;

pub use cuda::SOURCE;

use crate::op::{Case, Grads, Op, Saved};
use crate::tensor::Tensor;
use crate::with_float;

/// y = silu(a) ∘ b; inputs a, b.
#[derive(Clone, Copy, Debug)]
pub struct SwiGlu;

impl Op for SwiGlu {
    fn shape(&self, inputs: &[&[usize]]) -> Result<Vec<usize>, String> {
        match inputs {
            [a, b] if a == b => Ok(a.to_vec()),
            _ => Err("takes a gate and values of the same shape".into()),
        }
    }

    fn forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        let [a, b] = [inputs[0], inputs[1]];
        with_float!(out.dtype(), T => cpu::forward::<T>([a.read(), b.read()], out.write()));
        vec![a.clone(), b.clone()]
    }

    fn backward(&self, saved: &Saved, mut dy: Tensor, grads: &mut Grads) {
        let [a, b] = [&saved[0], &saved[1]];
        with_float!(dy.dtype(), T => {
            cpu::backward::<T>([a.read(), b.read()], dy.write(), grads.buffer(1));
        });
        grads.accumulate(0, dy);
    }
}

/// Returns test cases: one element, odd sizes, several axes, and a size large enough to be memory-bound.
pub fn cases() -> Vec<Case> {
    [&[1][..], &[3, 5], &[2, 5, 24], &[7, 261], &[1000, 256]]
        .iter()
        .map(|shape| Case::new(SwiGlu, &[shape, shape]))
        .collect()
}
