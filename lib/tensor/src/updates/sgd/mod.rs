//! Stochastic gradient descent with momentum, in PyTorch's form: g ← g + λθ; b ← μb + g (b = g at
//! the first step); θ ← θ - η·b.

mod cpu;
pub(crate) mod cuda;

use super::Parameter;
use super::decision::{Decided, Decision};
use crate::device::Device;
use crate::tensor::Tensor;
use crate::with_float;

/// The constants of one step.
#[derive(Clone, Copy, Debug)]
pub struct Sgd {
    /// η.
    pub learning_rate: f64,
    /// μ.
    pub momentum: f64,
    /// λ, added to the gradient.
    pub weight_decay: f64,
}

impl Sgd {
    /// One step of one parameter on the host; the gradient is multiplied with `scale` first (clipping,
    /// the mean of several passes). A zero momentum buffer makes the first step the same as the later
    /// ones.
    pub fn apply(&self, scale: f64, g: &Tensor, p: &mut Tensor, b: &mut Tensor) {
        with_float!(p.dtype(), T => cpu::apply::<T>(self, scale, g.read(), p.write(), b.write()));
    }

    /// One step of all parameters, which keep b, wherever they are, if the update is applied; those that
    /// are not `decayed` have λ = 0.
    pub fn apply_all<'a>(
        &self,
        decided: &Decided,
        parameters: impl IntoIterator<Item = Parameter<'a, 1>>,
    ) {
        let mut parameters = parameters.into_iter().peekable();
        match parameters.peek().map(|p| p.value.device()) {
            None => {}
            Some(Device::Cpu) => {
                let Decision { applied, scale, .. } = decided.on_host();
                for p in parameters.take_while(|_| applied) {
                    let weight_decay = if p.decayed { self.weight_decay } else { 0.0 };
                    let [b] = p.moments;
                    Sgd { weight_decay, ..*self }.apply(scale, p.gradient, p.value, b);
                }
            }
            Some(device) => cuda::apply_all(self, device, decided.tensor(), parameters),
        }
    }
}
