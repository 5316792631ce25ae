//! AdamW (Loshchilov & Hutter 2019, algorithm 2), in PyTorch's order of operations:
//! θ ← θ·(1 - η·λ); m ← β₁m + (1-β₁)g; v ← β₂v + (1-β₂)g²;
//! θ ← θ - η/(1-β₁ᵗ)·m/(√v/√(1-β₂ᵗ) + ε), with t = 1 at the first step. Moves 7 elements per element.
//!
//! Adam (Kingma & Ba 2015) with an L2 penalty has a different decay: g ← g + λθ instead of θ ← θ·(1 - η·λ).

use super::Parameter;
use super::decision::{DeviceStepControl, StepControl};
use crate::args;
use crate::device::Device;
use crate::dtype::{Dtype, Float};
use crate::kernel::table::{Entry, Table};
use crate::kernel::{ONLY_F32, Source, source};
use crate::parallel::{BLOCK_ELEMENTS, row_blocks};
use crate::tensor::Tensor;
use crate::vectorize;
use crate::with_float;

/// Source of the AdamW kernel.
pub(crate) static SOURCE: Source = source!("adamw", ONLY_F32);

/// Hyperparameters of a step.
#[derive(Clone, Copy, Debug)]
pub struct AdamW {
    /// Learning rate η.
    pub learning_rate: f64,
    /// β₁ and β₂, the decay rates of m and v.
    pub betas: [f64; 2],
    /// ε, added to the denominator.
    pub epsilon: f64,
    /// Whether weight decay is added to the gradient, as in Adam.
    pub coupled: bool,
}

impl AdamW {
    /// Updates one parameter on the host, with scale, rate and root from `decision`.
    pub fn apply(&self, decision: &StepControl, parameter: Parameter<2>) {
        with_float!(parameter.value.dtype(), T => self.on_cpu::<T>(decision, parameter));
    }

    /// Updates all parameters and their states m and v, on any device, if `decided` says to apply the update.
    pub fn apply_all<'a>(
        &self,
        decided: &DeviceStepControl,
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
            Some(device) => {
                let entries = parameters.map(|p| {
                    let [m, v] = p.moments.map(Tensor::address_mut);
                    Entry {
                        len: p.value.len(),
                        addresses: [p.gradient.address(), p.value.address_mut(), m, v],
                        numbers: [p.weight_decay, p.rate].map(|x| x as f32),
                    }
                });
                // The same values as on the host, each rounded once.
                let ([b1, b2], rate) = (self.betas, self.learning_rate as f32);
                let [b1, c1, b2, c2] = [b1, 1.0 - b1, b2, 1.0 - b2].map(|x| x as f32);
                let args = args![
                    decided.tensor(),
                    rate,
                    b1,
                    c1,
                    b2,
                    c2,
                    self.epsilon as f32,
                    self.coupled
                ];
                Table::new(device, entries).launch(&SOURCE, Dtype::F32, "adamw_step", args);
            }
        }
    }

    fn on_cpu<T: Float>(&self, decision: &StepControl, parameter: Parameter<2>) {
        let Parameter { rate, weight_decay, gradient, value, moments: [m, v] } = parameter;
        let (g, p): (&[T], &mut [T]) = (gradient.read(), value.write());
        let (m, v): (&mut [T], &mut [T]) = (m.write(), v.write());
        let [b1, b2] = self.betas;
        let (step, root) = (T::of(-(decision.rate * rate)), T::of(decision.root));
        let (coupled, decay) = (self.coupled, T::of(weight_decay));
        let keep = match coupled {
            true => T::of(1.0),
            false => T::of(1.0 - self.learning_rate * rate * weight_decay),
        };
        let (scale, epsilon) = (T::of(decision.scale), T::of(self.epsilon));
        let ([b1, b2], [c1, c2]) = ([T::of(b1), T::of(b2)], [T::of(1.0 - b1), T::of(1.0 - b2)]);
        row_blocks(((p, 1), ((m, 1), (v, 1))), BLOCK_ELEMENTS, |range, (p, (m, v))| {
            vectorize!({
                for (((g, p), m), v) in g[range].iter().zip(p).zip(m).zip(v) {
                    let g = scale * *g;
                    let g = if coupled { decay.mul_add(*p, g) } else { g };
                    *m = b1.mul_add(*m, c1 * g);
                    *v = b2.mul_add(*v, c2 * g * g);
                    let denominator = v.sqrt().mul_add(root, epsilon);
                    *p = step.mul_add(*m / denominator, keep * *p);
                }
            });
        });
    }
}
