//! AdamW (Loshchilov & Hutter 2019, algorithm 2), in PyTorch's order of operations:
//! θ ← θ·(1 - η·λ); m ← β₁m + (1-β₁)g; v ← β₂v + (1-β₂)g²;
//! θ ← θ - η/(1-β₁ᵗ)·m/(√v/√(1-β₂ᵗ) + ε), t being 1 at the first step. Moves 7 elements an element.

mod cpu;
pub(crate) mod cuda;

use super::Parameter;
use super::decision::{Decided, Decision};
use crate::device::Device;
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
}

impl AdamW {
    /// One step of one parameter on the host, with the scale, rate and root of a decision.
    pub fn apply(
        &self,
        decision: &Decision,
        g: &Tensor,
        p: &mut Tensor,
        m: &mut Tensor,
        v: &mut Tensor,
    ) {
        with_float!(p.dtype(), T => {
            cpu::apply::<T>(self, decision, g.read(), p.write(), m.write(), v.write());
        });
    }

    /// One step of all parameters, which keep m and v, wherever they are, if the update is applied; those
    /// that are not `decayed` have λ = 0.
    pub fn apply_all<'a>(
        &self,
        decided: &Decided,
        parameters: impl IntoIterator<Item = Parameter<'a, 2>>,
    ) {
        let mut parameters = parameters.into_iter().peekable();
        match parameters.peek().map(|p| p.value.device()) {
            None => {}
            Some(Device::Cpu) => {
                let decision = decided.on_host();
                for p in parameters.take_while(|_| decision.applied) {
                    let weight_decay = if p.decayed { self.weight_decay } else { 0.0 };
                    let [m, v] = p.moments;
                    AdamW { weight_decay, ..*self }.apply(&decision, p.gradient, p.value, m, v);
                }
            }
            Some(device) => cuda::apply_all(self, device, decided.tensor(), parameters),
        }
    }
}
