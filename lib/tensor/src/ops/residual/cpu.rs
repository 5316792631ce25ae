use super::Gain;
use crate::dtype::Float;
use crate::op::GradBuffer;
use crate::parallel::{reduce, row_blocks, rows_per_block};
use crate::{Scratch, vectorize};

pub(super) fn forward<T: Float>(gain: Gain, [x, y, w]: [&[T]; 3], h: usize, out: &mut [T]) {
    let (group, offset) = (gain.group(x.len() / h.max(1)), T::of(gain.offset));
    row_blocks((out, h), rows_per_block(h), |range, out| {
        vectorize!({
            for (r, row) in range.enumerate() {
                let (x, y, out) = (&x[row * h..][..h], &y[row * h..][..h], &mut out[r * h..][..h]);
                let w = &w[gain.start + row / group * gain.stride..][..h];
                for i in 0..h {
                    out[i] = (offset + w[i]).mul_add(y[i], x[i]);
                }
            }
        });
    });
}

pub(crate) fn backward<T: Float>(
    gain: Gain,
    [y, w, dy]: [&[T]; 3],
    h: usize,
    [dbranch, dw]: [Option<&mut GradBuffer>; 2],
) {
    let rows = y.len() / h.max(1);
    let (group, offset) = (gain.group(rows), T::of(gain.offset));
    if let Some(grad) = dbranch {
        let add = grad.accumulate;
        row_blocks((grad.tensor.write::<T>(), h), rows_per_block(h), |range, out| {
            vectorize!({
                for (r, row) in range.enumerate() {
                    let (dy, out) = (&dy[row * h..][..h], &mut out[r * h..][..h]);
                    let w = &w[gain.start + row / group * gain.stride..][..h];
                    for i in 0..h {
                        let d = (offset + w[i]) * dy[i];
                        out[i] = if add { out[i] + d } else { d };
                    }
                }
            });
        });
    }
    let Some(grad) = dw else { return };
    // Adds Σ dy ∘ y over some rows.
    let add_rows = |rows: std::ops::Range<usize>, sum: &mut [T]| {
        let sum = &mut sum[..h];
        vectorize!({
            for row in rows {
                let (y, dy) = (&y[row * h..][..h], &dy[row * h..][..h]);
                for i in 0..h {
                    sum[i] = dy[i].mul_add(y[i], sum[i]);
                }
            }
        });
    };
    if gain.stride == 0 {
        let mut sum = Scratch::<T>::zeroed(h);
        reduce(rows, rows_per_block(h), &mut sum, add_rows);
        grad.add(&sum);
        return;
    }
    // The other vectors of m have no gradient here.
    row_blocks((grad.zeroed::<T>(), gain.stride), rows_per_block(h * group), |range, dm| {
        for (g, dm) in range.zip(dm.chunks_exact_mut(gain.stride)) {
            add_rows(g * group..(g + 1) * group, &mut dm[gain.start..]);
        }
    });
}
