//! Stochastic gradient descent with momentum, in PyTorch's form: g ← g + λθ; b ← μb + g (b = g at
//! the first step); θ ← θ - η·b.

mod cpu;
pub(crate) mod cuda;

use super::Parameter;
use super::decision::{Decided, Decision};
use crate::device::Device;
use crate::dtype::Element;
use crate::with_float;

/// The constants of one step.
#[derive(Clone, Copy, Debug)]
pub struct Sgd {
    /// η.
    pub learning_rate: f64,
    /// μ.
    pub momentum: f64,
}

impl Sgd {
    /// One step of one parameter on the host; the gradient is multiplied with `scale` first (clipping, the mean of
    /// several passes). A zero momentum buffer makes the first step the same as the later ones.
    pub fn apply(&self, scale: f64, parameter: Parameter<1>) {
        let Parameter { rate, weight_decay, gradient, value, moments: [b] } = parameter;
        let numbers = [-(self.learning_rate * rate), self.momentum, weight_decay, scale];
        with_float!(value.dtype(), T => {
            cpu::apply::<T>(numbers.map(T::of), gradient.read(), value.write(), b.write());
        });
    }

    /// One step of all parameters, which keep b, wherever they are, if the update is applied.
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
                parameters.take_while(|_| applied).for_each(|p| self.apply(scale, p));
            }
            Some(device) => cuda::apply_all(self, device, decided.tensor(), parameters),
        }
    }
}
