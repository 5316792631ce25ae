//! Exponential moving average: a ← d·a + (1-d)·θ.

pub(crate) mod cuda;

use crate::device::Device;
use crate::dtype::Float;
use crate::parallel::{BLOCK_ELEMENTS, Shared, blocks};
use crate::tensor::Tensor;
use crate::updates::decision::{Decided, Decision};
use crate::vectorize;
use crate::with_float;

/// One step of the average of one parameter on the host.
pub fn apply(decay: f64, parameter: &Tensor, average: &mut Tensor) {
    with_float!(parameter.dtype(), T => on_cpu::<T>(decay, parameter.read(), average.write()));
}

/// One step of the averages of all parameters, wherever they are, if the update is applied: pairs of
/// parameter and average.
pub fn apply_all<'a>(
    decided: &Decided,
    pairs: impl IntoIterator<Item = (&'a Tensor, &'a mut Tensor)>,
) {
    let mut pairs = pairs.into_iter().peekable();
    match pairs.peek().map(|(parameter, _)| parameter.device()) {
        None => {}
        Some(Device::Cpu) => {
            let Decision { applied, decay, .. } = decided.on_host();
            if applied {
                pairs.for_each(|(parameter, average)| apply(decay, parameter, average));
            }
        }
        Some(device) => cuda::apply_all(device, decided.tensor(), pairs),
    }
}

fn on_cpu<T: Float>(decay: f64, p: &[T], a: &mut [T]) {
    let (d, c) = (T::of(decay), T::of(1.0 - decay));
    let a = Shared::new(a);
    blocks(p.len(), BLOCK_ELEMENTS, |range| {
        let p = &p[range.clone()];
        // SAFETY: blocks are disjoint.
        let a = unsafe { a.slice(range) };
        vectorize!({
            for (a, p) in a.iter_mut().zip(p) {
                *a = d.mul_add(*a, c * *p);
            }
        });
    });
}
