//! AdamW with averages in 8 bits (Dettmers et al. 2022, "8-bit optimizers via block-wise quantization"), as bitsandbytes
//! computes it on GPUs:
//! m ← β₁m + (1-β₁)g; v ← β₂v + (1-β₂)g²; θ ← θ - η/(1-β₁ᵗ)·m/(√v/√(1-β₂ᵗ) + ε); θ ← θ·(1 - η·λ).
//!
//! Between steps, m and v are codes of [`codes`], one byte an element, times the largest magnitude of their block of
//! [`BLOCK`] elements. A step decodes them, and encodes them again after the update of θ: an element gets the code that is
//! closest to its quotient by the new largest magnitude of the block. A code of m keeps the sign of m, so a small negative
//! average does not become 0. Moves 3 numbers and 4 bytes an element.

mod codes;

use super::Parameter;
use super::decision::{DeviceStepControl, StepControl};
use crate::args;
use crate::device::Device;
use crate::dtype::Dtype;
use crate::kernel::table::{Entry, Table};
use crate::kernel::{ONLY_F32, Source, constant, fail, source};
use crate::parallel::{BLOCK_ELEMENTS, Shared, blocks};
use crate::tensor::Tensor;
use crate::vectorize;
pub use codes::{Codes, signed, unsigned};

/// Source of the kernel.
pub(crate) static SOURCE: Source = source!("adamw8bit", ONLY_F32);

/// Elements that share a largest magnitude.
pub const BLOCK: usize = 256;
/// Parameters with fewer elements keep averages in f32, as in bitsandbytes.
pub const MIN_ELEMENTS: usize = 4096;

/// Hyperparameters of a step.
#[derive(Clone, Copy, Debug)]
pub struct AdamW8bit {
    /// Learning rate η.
    pub learning_rate: f64,
    /// β₁ and β₂, the decay rates of m and v.
    pub betas: [f64; 2],
    /// ε, added to the denominator.
    pub epsilon: f64,
}

/// Number of blocks of a parameter with `len` elements.
pub fn count(len: usize) -> usize {
    len.div_ceil(BLOCK)
}

impl AdamW8bit {
    /// Updates all parameters, in f32, and their states on any device, if `decided` says to apply the update. The states
    /// are the codes of m and v, u8 with an element for each of the parameter, and the largest magnitudes of the blocks of
    /// m and v, f32 [[`count`]].
    pub fn apply_all<'a>(
        &self,
        decided: &DeviceStepControl,
        parameters: impl IntoIterator<Item = Parameter<'a, 4>>,
    ) {
        let mut parameters = parameters.into_iter().peekable();
        match parameters.peek().map(|p| p.value.device()) {
            None => {}
            Some(Device::Cpu) => {
                let decision = decided.on_host();
                let applied = parameters.take_while(|_| decision.applied);
                applied.for_each(|parameter| self.on_cpu(&decision, parameter));
            }
            Some(device) => {
                let entries = parameters.map(|p| {
                    let [m, v, largest_m, largest_v] = p.moments.map(Tensor::address_mut);
                    let (gradient, value) = (p.gradient.address(), p.value.address_mut());
                    Entry {
                        len: p.value.len(),
                        addresses: [gradient, value, m, v, largest_m, largest_v],
                        numbers: [p.weight_decay, p.rate].map(|x| x as f32),
                    }
                });
                let tables = Tensor::from_slice(&codes::tables(), &[4, 256]);
                let tables = constant(&tables, device).unwrap_or_else(|error| {
                    fail(device, error);
                    Tensor::empty_on(device, &[4, 256], Dtype::F32)
                });
                // The same values as on the host, each rounded once.
                let ([b1, b2], rate) = (self.betas, self.learning_rate as f32);
                let [b1, c1, b2, c2] = [b1, 1.0 - b1, b2, 1.0 - b2].map(|x| x as f32);
                let epsilon = self.epsilon as f32;
                let args = args![decided.tensor(), &tables, rate, b1, c1, b2, c2, epsilon];
                Table::new(device, entries).launch(&SOURCE, Dtype::F32, "adamw8bit_step", args);
            }
        }
    }

    fn on_cpu(&self, decision: &StepControl, parameter: Parameter<4>) {
        let Parameter { rate, weight_decay, gradient, value, moments } = parameter;
        let [m, v, largest_m, largest_v] = moments;
        let (g, p) = (gradient.read::<f32>(), value.write::<f32>());
        let len = p.len();
        let (p, m, v) =
            (Shared::new(p), Shared::new(m.write::<u8>()), Shared::new(v.write::<u8>()));
        let [largest_m, largest_v] =
            [largest_m, largest_v].map(|largest| Shared::new(largest.write::<f32>()));
        let (step, root) = (-(decision.rate * rate) as f32, decision.root as f32);
        let decay = (self.learning_rate * rate * weight_decay) as f32;
        let (scale, epsilon) = (decision.scale as f32, self.epsilon as f32);
        let [b1, b2] = self.betas.map(|b| b as f32);
        let [c1, c2] = self.betas.map(|b| (1.0 - b) as f32);
        let (signed, unsigned) = (signed(), unsigned());
        blocks(count(len), BLOCK_ELEMENTS / BLOCK, |range| {
            for block in range {
                let at = block * BLOCK..((block + 1) * BLOCK).min(len);
                // SAFETY: blocks are disjoint.
                let ((p, m, v), [largest_m, largest_v]) = unsafe {
                    (
                        (p.slice(at.clone()), m.slice(at.clone()), v.slice(at.clone())),
                        [&largest_m, &largest_v]
                            .map(|largest| &mut largest.slice(block..block + 1)[0]),
                    )
                };
                let (mut averages, mut squares) = ([0.0_f32; BLOCK], [0.0_f32; BLOCK]);
                for (i, (m, v)) in m.iter().zip(&*v).enumerate() {
                    averages[i] = signed.value(*m) * *largest_m;
                    squares[i] = unsigned.value(*v) * *largest_v;
                }
                vectorize!({
                    for (((g, p), m), v) in
                        g[at.clone()].iter().zip(&mut *p).zip(&mut averages).zip(&mut squares)
                    {
                        let g = scale * *g;
                        *m = b1.mul_add(*m, c1 * g);
                        *v = b2.mul_add(*v, c2 * g * g);
                        let denominator = v.sqrt().mul_add(root, epsilon);
                        // θ is rounded once.
                        let change = step * (*m / denominator);
                        *p += (-decay).mul_add(*p + change, change);
                    }
                });
                let largest = |x: &[f32]| x.iter().fold(0.0, |most: f32, x| most.max(x.abs()));
                (*largest_m, *largest_v) = (largest(&averages), largest(&squares));
                for (i, (m, v)) in m.iter_mut().zip(v).enumerate() {
                    *m = signed.code_with_sign(averages[i], *largest_m);
                    *v = unsigned.code(squares[i], *largest_v);
                }
            }
        });
    }
}

#[cfg(test)]
mod tests;
