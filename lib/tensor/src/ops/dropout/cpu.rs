use super::{Dropout, Mask};
use crate::dtype::Float;
use crate::parallel::{BLOCK_ELEMENTS, Shared, blocks};
use crate::vectorize;

/// Number of elements of a sample that are processed at a time.
const PIECE: usize = 1024;

/// Writes x/(1 - p) for kept elements x of `source` and 0 for dropped ones to `out`, or accumulates if `add` is set.
pub(super) fn apply<T: Float>(
    op: &Dropout,
    counter: &[i32],
    source: &[T],
    out: &mut [T],
    add: bool,
) {
    let (mask, scale) = (Mask::new(op, counter), T::of(op.scale()));
    let size = source.len() / op.samples;
    let per_sample = size.div_ceil(PIECE);
    let out = Shared::new(out);
    blocks(op.samples * per_sample, BLOCK_ELEMENTS / 2 / PIECE, |range| {
        let mut piece = [T::ZERO; PIECE];
        vectorize!({
            for n in range {
                let (sample, first) = (n / per_sample, n % per_sample * PIECE);
                let own = sample * size + first..sample * size + size.min(first + PIECE);
                // SAFETY: pieces are disjoint.
                let out = unsafe { out.slice(own.clone()) };
                let kept = |x: T, keep: bool| if keep { scale * x } else { T::ZERO };
                if add {
                    let x = &mut piece[..out.len()];
                    x.copy_from_slice(&source[own]);
                    mask.combine(sample, first / 4, [out, x], |[y, x], keep| {
                        [y + kept(x, keep), x]
                    });
                } else {
                    out.copy_from_slice(&source[own]);
                    mask.combine(sample, first / 4, [out], |[x], keep| [kept(x, keep)]);
                }
            }
        });
    });
}
