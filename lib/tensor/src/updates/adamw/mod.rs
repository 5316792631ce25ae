//! AdamW (Loshchilov & Hutter 2019, algorithm 2), in PyTorch's order of operations:
//! θ ← θ·(1 - η·λ); m ← β₁m + (1-β₁)g; v ← β₂v + (1-β₂)g²;
//! θ ← θ - η/(1-β₁ᵗ)·m/(√v/√(1-β₂ᵗ) + ε). Moves 7 elements an element.

mod cpu;

use crate::tensor::Tensor;
use crate::with_float;

/// The constants of one step.
#[derive(Clone, Copy, Debug)]
pub struct AdamW {
    /// η.
    pub learning_rate: f64,
    /// β₁ and β₂.
    pub betas: [f64; 2],
    /// ε.
    pub epsilon: f64,
    /// λ.
    pub weight_decay: f64,
    /// t: 1 at the first step.
    pub step: u64,
}

impl AdamW {
    /// One step of one parameter; the gradient is multiplied with `scale` first (clipping).
    pub fn apply(&self, scale: f64, g: &Tensor, p: &mut Tensor, m: &mut Tensor, v: &mut Tensor) {
        with_float!(p.dtype(), T => {
            cpu::apply::<T>(self, scale, g.read(), p.write(), m.write(), v.write());
        });
    }
}
