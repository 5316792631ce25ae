//! Exponential moving average (EMA) of parameters: a ← d·a + (1-d)·θ.

use crate::args;
use crate::device::Device;
use crate::dtype::{Dtype, Float};
use crate::kernel::table::{Entry, Table};
use crate::kernel::{ONLY_F32, Source, source};
use crate::parallel::{BLOCK_ELEMENTS, row_blocks};
use crate::tensor::Tensor;
use crate::updates::decision::{DeviceStepControl, StepControl};
use crate::vectorize;
use crate::with_float;

/// Source of the EMA kernel.
pub(crate) static SOURCE: Source = source!("ema", ONLY_F32);

/// Updates the EMA of one parameter on the host.
pub fn apply(decay: f64, parameter: &Tensor, average: &mut Tensor) {
    with_float!(parameter.dtype(), T => on_cpu::<T>(decay, parameter.read(), average.write()));
}

/// Updates the EMA of all parameters, given pairs of parameter and average, on any device, if `decided` says to apply
/// the update.
pub fn apply_all<'a>(
    decided: &DeviceStepControl,
    pairs: impl IntoIterator<Item = (&'a Tensor, &'a mut Tensor)>,
) {
    let mut pairs = pairs.into_iter().peekable();
    match pairs.peek().map(|(parameter, _)| parameter.device()) {
        None => {}
        Some(Device::Cpu) => {
            let StepControl { applied, decay, .. } = decided.on_host();
            if applied {
                pairs.for_each(|(parameter, average)| apply(decay, parameter, average));
            }
        }
        Some(device) => {
            let entries = pairs.map(|(parameter, average)| {
                Entry::new(parameter.len(), [parameter.address(), average.address_mut()])
            });
            let table = Table::new(device, entries);
            table.launch(&SOURCE, Dtype::F32, "ema_step", args![decided.tensor()]);
        }
    }
}

fn on_cpu<T: Float>(decay: f64, p: &[T], a: &mut [T]) {
    let (d, c) = (T::of(decay), T::of(1.0 - decay));
    row_blocks((a, 1), BLOCK_ELEMENTS, |range, a| {
        vectorize!({
            for (a, p) in a.iter_mut().zip(&p[range]) {
                *a = d.mul_add(*a, c * *p);
            }
        });
    });
}
