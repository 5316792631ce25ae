//! Lion (Chen et al. 2023, algorithm 2): u = sign(β₁m + (1-β₁)g); θ ← θ·(1 - η·λ) - η·u; m ← β₂m + (1-β₂)g.
//! Moves 5 elements per element.

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

/// Source of the Lion kernel.
pub(crate) static SOURCE: Source = source!("lion", ONLY_F32);

/// Hyperparameters of a step.
#[derive(Clone, Copy, Debug)]
pub struct Lion {
    /// Learning rate η.
    pub learning_rate: f64,
    /// β₁ and β₂, the weights of m in the update direction and in the average.
    pub betas: [f64; 2],
}

impl Lion {
    /// Updates all parameters and their averages m, on any device, if `decided` says to apply the update.
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
                for parameter in parameters.take_while(|_| applied) {
                    with_float!(parameter.value.dtype(), T => self.on_cpu::<T>(scale, parameter));
                }
            }
            Some(device) => {
                let entries = parameters.map(|p| {
                    let [m] = p.moments.map(Tensor::address_mut);
                    Entry {
                        len: p.value.len(),
                        addresses: [p.gradient.address(), p.value.address_mut(), m],
                        numbers: [p.weight_decay, p.rate].map(|x| x as f32),
                    }
                });
                let [b1, b2] = self.betas;
                let [b1, c1, b2, c2] = [b1, 1.0 - b1, b2, 1.0 - b2].map(|x| x as f32);
                let args = args![decided.tensor(), self.learning_rate as f32, b1, c1, b2, c2];
                Table::new(device, entries).launch(&SOURCE, Dtype::F32, "lion_step", args);
            }
        }
    }

    fn on_cpu<T: Float>(&self, scale: f64, parameter: Parameter<1>) {
        let Parameter { rate, weight_decay, gradient, value, moments: [m] } = parameter;
        let (g, p, m): (&[T], &mut [T], &mut [T]) = (gradient.read(), value.write(), m.write());
        let [b1, b2] = self.betas;
        let [b1, c1, b2, c2] = [b1, 1.0 - b1, b2, 1.0 - b2].map(T::of);
        let rate = self.learning_rate * rate;
        let [step, keep, scale] = [-rate, 1.0 - rate * weight_decay, scale].map(T::of);
        row_blocks(((p, 1), (m, 1)), BLOCK_ELEMENTS, |range, (p, m)| {
            vectorize!({
                for ((g, p), m) in g[range].iter().zip(p).zip(m) {
                    let g = scale * *g;
                    let u = b1.mul_add(*m, c1 * g);
                    let positive = if u > T::ZERO { T::of(1.0) } else { T::ZERO };
                    let sign = if u < T::ZERO { T::of(-1.0) } else { positive };
                    *p = step.mul_add(sign, keep * *p);
                    *m = b2.mul_add(*m, c2 * g);
                }
            });
        });
    }
}
