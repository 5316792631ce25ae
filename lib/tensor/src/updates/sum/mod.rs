//! a += b: where gradients from several places meet.

use crate::dtype::Float;
use crate::parallel::{BLOCK_ELEMENTS, Shared, blocks};
use crate::tensor::Tensor;
use crate::vectorize;
use crate::with_float;

/// a += b, of the same shape; memory that `a` shares is copied first.
pub fn add(a: &mut Tensor, b: &Tensor) {
    with_float!(a.dtype(), T => on_cpu::<T>(a.write(), b.read()));
}

fn on_cpu<T: Float>(a: &mut [T], b: &[T]) {
    let a = Shared::new(a);
    blocks(b.len(), BLOCK_ELEMENTS, |range| {
        // SAFETY: blocks are disjoint.
        let a = unsafe { a.slice(range.clone()) };
        vectorize!({
            for (a, b) in a.iter_mut().zip(&b[range]) {
                *a += *b;
            }
        });
    });
}
