use crate::dtype::Float;
use crate::op::GradBuffer;
use crate::parallel::{reduce, row_blocks, rows_per_block};
use crate::{Scratch, vectorize};

pub(super) fn forward<T: Float>(x: &[T], y: &[T], s: &[T], out: &mut [T]) {
    let h = s.len();
    row_blocks((out, h), rows_per_block(h), |range, out| {
        vectorize!({
            for (r, row) in range.enumerate() {
                let (x, y, out) = (&x[row * h..][..h], &y[row * h..][..h], &mut out[r * h..][..h]);
                for i in 0..h {
                    out[i] = s[i].mul_add(y[i], x[i]);
                }
            }
        });
    });
}

pub(super) fn backward<T: Float>(
    y: &[T],
    s: &[T],
    dy: &[T],
    [dbranch, ds]: [Option<&mut GradBuffer>; 2],
) {
    let (h, rows) = (s.len(), y.len() / s.len().max(1));
    if let Some(grad) = dbranch {
        let add = grad.accumulate;
        row_blocks((grad.tensor.write::<T>(), h), rows_per_block(h), |range, out| {
            vectorize!({
                for (r, row) in range.enumerate() {
                    let (dy, out) = (&dy[row * h..][..h], &mut out[r * h..][..h]);
                    for i in 0..h {
                        let d = s[i] * dy[i];
                        out[i] = if add { out[i] + d } else { d };
                    }
                }
            });
        });
    }
    let Some(grad) = ds else { return };
    let mut sum = Scratch::<T>::zeroed(h);
    reduce(rows, rows_per_block(h), &mut sum, |rows, sum| {
        let sum = &mut sum[..h];
        vectorize!({
            for row in rows {
                let (y, dy) = (&y[row * h..][..h], &dy[row * h..][..h]);
                for i in 0..h {
                    sum[i] = dy[i].mul_add(y[i], sum[i]);
                }
            }
        });
    });
    grad.add(&sum);
}
