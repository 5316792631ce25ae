//! SwiGLU (Shazeer 2020): y = silu(a) ∘ b, where x [.., 2H] is the concatenation of a and b, and y [.., H].
//!
//! The gate a is the first half, so in a fused projection the rows of the gate come first (Llama's gate_proj and
//! up_proj, DINOv2's w12). PyTorch's `glu` has its gate in the second half.
//! With s = σ(a): da = dy ∘ b ∘ s·(1 + a·(1 - s)), db = dy ∘ a ∘ s.

mod cpu;
mod cuda;

pub use cuda::SOURCE;

use crate::op::{Case, Grads, Op, Saved};
use crate::tensor::Tensor;
use crate::with_float;

/// y = silu(a) ∘ b.
#[derive(Clone, Copy, Debug)]
pub struct SwiGlu;

impl Op for SwiGlu {
    fn shape(&self, inputs: &[&[usize]]) -> Result<Vec<usize>, String> {
        match inputs {
            [[rows @ .., both]] if both % 2 == 0 => Ok([rows, &[both / 2]].concat()),
            _ => Err("takes x [.., 2H]".into()),
        }
    }

    fn forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        let (x, h) = (inputs[0], out.width());
        with_float!(out.dtype(), T => cpu::forward::<T>(h, x.read(), out.write()));
        vec![x.clone()]
    }

    fn backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads) {
        if let Some(grad) = grads.buffer(0) {
            let (x, h) = (&saved[0], dy.width());
            with_float!(dy.dtype(), T => cpu::backward::<T>(h, x.read(), dy.read(), grad));
        }
    }
}

/// Returns test cases: one element, odd and even widths, and a size large enough to be memory-bound.
pub fn cases() -> Vec<Case> {
    [&[2][..], &[3, 10], &[2, 5, 48], &[7, 522], &[1000, 512]]
        .iter()
        .map(|shape| Case::new(SwiGlu, &[shape]))
        .collect()
}
