//! Exponential moving average: a ← d·a + (1-d)·θ.

use crate::dtype::Float;
use crate::parallel::{BLOCK_ELEMENTS, Shared, blocks};
use crate::tensor::Tensor;
use crate::vectorize;
use crate::with_float;

/// One step of the average of one parameter.
pub fn apply(decay: f64, parameter: &Tensor, average: &mut Tensor) {
    with_float!(parameter.dtype(), T => on_cpu::<T>(decay, parameter.read(), average.write()));
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
