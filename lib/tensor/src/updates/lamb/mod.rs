//! LAMB (You et al. 2020, algorithm 2, with φ(z) = z): m ← β₁m + (1-β₁)g; v ← β₂v + (1-β₂)g²;
//! u = m/(1-β₁ᵗ)/(√v/√(1-β₂ᵗ) + ε) + λθ; θ ← θ - η·‖θ‖/‖u‖·u, with one norm per parameter; the ratio of the norms is 1
//! if either is 0. Moves 10 elements per element.

use super::Parameter;
use super::decision::{DeviceStepControl, StepControl};
use crate::args;
use crate::device::Device;
use crate::dtype::{Dtype, Float};
use crate::kernel::table::{Entry, Table};
use crate::kernel::{ONLY_F32, Source, source};
use crate::parallel::{BLOCK_ELEMENTS, reduce, row_blocks};
use crate::tensor::Tensor;
use crate::vectorize;
use crate::with_float;

/// Source of the LAMB kernels.
pub(crate) static SOURCE: Source = source!("lamb", ONLY_F32);

/// Hyperparameters of a step.
#[derive(Clone, Copy, Debug)]
pub struct Lamb {
    /// Learning rate η.
    pub learning_rate: f64,
    /// β₁ and β₂, the decay rates of m and v.
    pub betas: [f64; 2],
    /// ε, added to the denominator.
    pub epsilon: f64,
}

impl Lamb {
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
                for parameter in parameters.take_while(|_| decision.applied) {
                    with_float!(parameter.value.dtype(), T => self.on_cpu::<T>(&decision, parameter));
                }
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
                let table = Table::new(device, entries);
                let mut sums = Tensor::empty_on(device, &[table.blocks, 2], Dtype::F64);
                let ([b1, b2], epsilon) = (self.betas, self.epsilon as f32);
                let [b1, c1, b2, c2] = [b1, 1.0 - b1, b2, 1.0 - b2].map(|x| x as f32);
                let args = args![decided.tensor(), &mut sums, b1, c1, b2, c2, epsilon];
                table.launch(&SOURCE, Dtype::F32, "lamb_averages", args);
                let args = args![decided.tensor(), &sums, self.learning_rate as f32, epsilon];
                table.launch(&SOURCE, Dtype::F32, "lamb_step", args);
            }
        }
    }

    fn on_cpu<T: Float>(&self, decision: &StepControl, parameter: Parameter<2>) {
        let Parameter { rate, weight_decay, gradient, value, moments: [m, v] } = parameter;
        let (g, p): (&[T], &mut [T]) = (gradient.read(), value.write());
        let (m, v): (&mut [T], &mut [T]) = (m.write(), v.write());
        let [b1, b2] = self.betas;
        let [b1, c1, b2, c2] = [b1, 1.0 - b1, b2, 1.0 - b2].map(T::of);
        let [scale, epsilon, decay] = [decision.scale, self.epsilon, weight_decay].map(T::of);
        let [correction, root] = [decision.correction, decision.root].map(T::of);
        row_blocks(((&mut *m, 1), (&mut *v, 1)), BLOCK_ELEMENTS, |range, (m, v)| {
            vectorize!({
                for ((g, m), v) in g[range].iter().zip(m).zip(v) {
                    let g = scale * *g;
                    *m = b1.mul_add(*m, c1 * g);
                    *v = b2.mul_add(*v, c2 * g * g);
                }
            });
        });
        let direction =
            |p: T, m: T, v: T| decay.mul_add(p, correction * m / v.sqrt().mul_add(root, epsilon));
        let mut squares = [0.0_f64; 2];
        reduce(p.len(), BLOCK_ELEMENTS, &mut squares, |range, squares| {
            for i in range {
                let u = direction(p[i], m[i], v[i]).f64();
                squares[0] += p[i].f64() * p[i].f64();
                squares[1] += u * u;
            }
        });
        let [values, directions] = squares.map(f64::sqrt);
        let ratio = if values > 0.0 && directions > 0.0 { values / directions } else { 1.0 };
        let step = T::of(-(ratio * self.learning_rate * rate));
        let (m, v) = (&*m, &*v);
        row_blocks((p, 1), BLOCK_ELEMENTS, |range, p| {
            for ((p, m), v) in p.iter_mut().zip(&m[range.clone()]).zip(&v[range]) {
                *p = step.mul_add(direction(*p, *m, *v), *p);
            }
        });
    }
}
