//! Stochastic gradient descent with momentum, in PyTorch's form: g ← g + λθ; b ← μb + g (b = g at the first step);
//! θ ← θ - η·b.

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

/// Source of the SGD kernel.
pub(crate) static SOURCE: Source = source!("sgd", ONLY_F32);

/// Hyperparameters of a step.
#[derive(Clone, Copy, Debug)]
pub struct Sgd {
    /// Learning rate η.
    pub learning_rate: f64,
    /// Momentum μ.
    pub momentum: f64,
}

impl Sgd {
    /// Updates one parameter on the host; the gradient is first multiplied by `scale` (clipping, averaging over
    /// micro-batches). With the momentum buffer initialized to zero, the first step needs no special case.
    pub fn apply(&self, scale: f64, parameter: Parameter<1>) {
        with_float!(parameter.value.dtype(), T => self.on_cpu::<T>(scale, parameter));
    }

    /// Updates all parameters and their momentum b, on any device, if `decided` says to apply the update.
    pub fn apply_all<'a>(
        &self,
        decided: &DeviceStepControl,
        parameters: impl IntoIterator<Item = Parameter<'a, 1>>,
    ) {
        let mut parameters = parameters.into_iter().peekable();
        match parameters.peek().map(|p| p.value.device()) {
            None => {}
            Some(Device::Cpu) => {
                let StepControl { applied, scale, .. } = decided.on_host();
                parameters.take_while(|_| applied).for_each(|p| self.apply(scale, p));
            }
            Some(device) => {
                let entries = parameters.map(|p| {
                    let [b] = p.moments.map(Tensor::address_mut);
                    Entry {
                        len: p.value.len(),
                        addresses: [p.gradient.address(), p.value.address_mut(), b],
                        numbers: [p.weight_decay, p.rate].map(|x| x as f32),
                    }
                });
                let [step, momentum] = [-self.learning_rate, self.momentum].map(|x| x as f32);
                let args = args![decided.tensor(), step, momentum];
                Table::new(device, entries).launch(&SOURCE, Dtype::F32, "sgd_step", args);
            }
        }
    }

    fn on_cpu<T: Float>(&self, scale: f64, parameter: Parameter<1>) {
        let Parameter { rate, weight_decay, gradient, value, moments: [b] } = parameter;
        let (g, p, b): (&[T], &mut [T], &mut [T]) = (gradient.read(), value.write(), b.write());
        let [step, momentum, decay, scale] =
            [-(self.learning_rate * rate), self.momentum, weight_decay, scale].map(T::of);
        row_blocks(((p, 1), (b, 1)), BLOCK_ELEMENTS, |range, (p, b)| {
            vectorize!({
                for ((g, p), b) in g[range].iter().zip(p).zip(b) {
                    *b = momentum.mul_add(*b, decay.mul_add(*p, scale * *g));
                    *p = step.mul_add(*b, *p);
                }
            });
        });
    }
}
