use super::{Dropout, Mask};
use crate::dtype::Float;
use crate::parallel::{BLOCK_ELEMENTS, Shared, blocks};
use crate::vectorize;

/// Elements of a sample that are drawn at a time.
const PIECE: usize = 1024;

/// out (+)= x/(1 - p) for elements that are kept, otherwise 0.
pub(super) fn apply<T: Float>(op: &Dropout, counter: &[i32], x: &[T], out: &mut [T], add: bool) {
    let (mask, scale) = (Mask::new(op, counter), T::of(op.scale()));
    let size = x.len() / op.samples;
    let per_sample = size.div_ceil(PIECE);
    let out = Shared::new(out);
    blocks(op.samples * per_sample, BLOCK_ELEMENTS / 2 / PIECE, |range| {
        vectorize!({
            for n in range {
                let (sample, first) = (n / per_sample, n % per_sample * PIECE);
                let own = sample * size + first..sample * size + size.min(first + PIECE);
                // SAFETY: pieces are disjoint.
                let out = unsafe { out.slice(own.clone()) };
                let x = &x[own];
                assert!(x.len() == out.len());
                let value = |i: usize, keep: bool| if keep { scale * x[i] } else { T::ZERO };
                if add {
                    mask.combine(sample, first / 4, out, |i, y, keep| y + value(i, keep));
                } else {
                    mask.combine(sample, first / 4, out, |i, _, keep| value(i, keep));
                }
            }
        });
    });
}
