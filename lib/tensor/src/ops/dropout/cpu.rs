use super::{Dropout, Mask};
use crate::dtype::Float;
use crate::parallel::{BLOCK_ELEMENTS, Shared, blocks};

/// out (+)= x/(1 - p) for elements that are kept, otherwise 0.
pub(super) fn apply<T: Float>(op: &Dropout, counter: &[i32], x: &[T], out: &mut [T], add: bool) {
    let (mask, scale) = (Mask::new(op, counter), T::of(op.scale()));
    let size = x.len() / op.samples;
    let per_sample = size.div_ceil(4);
    let out = Shared::new(out);
    blocks(op.samples * per_sample, BLOCK_ELEMENTS / 16, |range| {
        for n in range {
            let (sample, block) = (n / per_sample, n % per_sample);
            let (first, end) = (sample * size + 4 * block, sample * size + size.min(4 * block + 4));
            // SAFETY: blocks of four elements are disjoint.
            let out = unsafe { out.slice(first..end) };
            for ((y, x), keep) in out.iter_mut().zip(&x[first..end]).zip(mask.keeps(sample, block))
            {
                let value = if keep { scale * *x } else { T::ZERO };
                *y = if add { *y + value } else { value };
            }
        }
    });
}
