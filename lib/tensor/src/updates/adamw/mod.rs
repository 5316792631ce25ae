//! AdamW (Loshchilov & Hutter 2019, algorithm 2), in PyTorch's order of operations:
//! θ ← θ·(1 - η·λ); m ← β₁m + (1-β₁)g; v ← β₂v + (1-β₂)g²;
//! θ ← θ - η/(1-β₁ᵗ)·m/(√v/√(1-β₂ᵗ) + ε), t being 1 at the first step. Moves 7 elements an element.

mod cpu;
pub(crate) mod cuda;

use super::Parameter;
use super::decision::{Decided, Decision};
use crate::device::Device;
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
}

impl AdamW {
    /// One step of one parameter on the host, with the scale, rate and root of a decision.
    pub fn apply(&self, decision: &Decision, parameter: Parameter<2>) {
        let Parameter { rate, weight_decay, gradient, value, moments: [m, v] } = parameter;
        let numbers = cpu::Numbers { op: self, decision, rate, weight_decay };
        with_float!(value.dtype(), T => {
            numbers.apply::<T>(gradient.read(), value.write(), m.write(), v.write());
        });
    }

    /// One step of all parameters, which keep m and v, wherever they are, if the update is applied.
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
                let applied = parameters.take_while(|_| decision.applied);
                applied.for_each(|parameter| self.apply(&decision, parameter));
            }
            Some(device) => cuda::apply_all(self, device, decided.tensor(), parameters),
        }
    }
}
