use super::Residual;
use crate::dtype::Float;
use crate::op::GradBuffer;
use crate::parallel::{Shared, blocks, reduce, rows_per_block};
use crate::vectorize;
use crate::{Scratch, Tensor};

/// Where the gate of a row is: (rows of a group, stride of a group, start of the vector).
fn layout(op: Residual, rows: usize, gate: &Tensor, h: usize) -> (usize, usize, usize) {
    match op {
        Residual::Gated(index) => (rows / gate.rows().max(1), gate.width(), index * h),
        Residual::Plain | Residual::Scaled => (rows.max(1), 0, 0),
    }
}

/// What is added to the stored vector to make the gate.
fn offset<T: Float>(op: Residual) -> T {
    if matches!(op, Residual::Gated(_)) { T::ONE } else { T::ZERO }
}

pub(super) fn forward<T: Float>(
    op: Residual,
    x: &Tensor,
    y: &[T],
    gate: Option<&Tensor>,
    out: &mut [T],
) {
    let (rows, h, x) = (x.rows(), x.width(), x.read::<T>());
    let out = Shared::new(out);
    blocks(rows, rows_per_block(h), |range| {
        let span = range.start * h..range.end * h;
        // SAFETY: blocks are disjoint.
        let out = unsafe { out.slice(span.clone()) };
        let (x, y) = (&x[span.clone()], &y[span]);
        match gate {
            None => vectorize!({
                for i in 0..out.len() {
                    out[i] = x[i] + y[i];
                }
            }),
            Some(gate) => {
                let (group, stride, start) = layout(op, rows, gate, h);
                let (gate, one) = (gate.read::<T>(), offset::<T>(op));
                vectorize!({
                    for (r, row) in range.enumerate() {
                        let gate = &gate[row / group * stride + start..][..h];
                        let (x, y) = (&x[r * h..][..h], &y[r * h..][..h]);
                        let out = &mut out[r * h..][..h];
                        for i in 0..h {
                            out[i] = (one + gate[i]).mul_add(y[i], x[i]);
                        }
                    }
                });
            }
        }
    });
}

pub(super) fn backward<T: Float>(
    op: Residual,
    y: &Tensor,
    gate: &Tensor,
    dy: &[T],
    dbranch: Option<&mut GradBuffer>,
    dgate: Option<&mut GradBuffer>,
) {
    let (rows, h, y) = (y.rows(), y.width(), y.read::<T>());
    let (group, stride, start) = layout(op, rows, gate, h);
    let (gate, one) = (gate.read::<T>(), offset::<T>(op));
    if let Some(grad) = dbranch {
        let add = grad.accumulate;
        let out = Shared::new(grad.tensor.write::<T>());
        blocks(rows, rows_per_block(h), |range| {
            // SAFETY: blocks are disjoint.
            let out = unsafe { out.slice(range.start * h..range.end * h) };
            vectorize!({
                for (r, row) in range.enumerate() {
                    let gate = &gate[row / group * stride + start..][..h];
                    let (dy, out) = (&dy[row * h..][..h], &mut out[r * h..][..h]);
                    for i in 0..h {
                        let d = (one + gate[i]) * dy[i];
                        out[i] = if add { out[i] + d } else { d };
                    }
                }
            });
        });
    }
    let Some(grad) = dgate else { return };
    let total = grad.zeroed::<T>();
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
    if stride == 0 {
        let mut sum = Scratch::<T>::zeroed(h);
        reduce(rows, rows_per_block(h), &mut sum, add_rows);
        total.iter_mut().zip(sum.iter()).for_each(|(t, s)| *t += *s);
    } else {
        let total = Shared::new(total);
        blocks(rows / group.max(1), rows_per_block(h * group), |groups| {
            for g in groups {
                let at = g * stride + start;
                // SAFETY: every group has its own vector.
                add_rows(g * group..(g + 1) * group, unsafe { total.slice(at..at + h) });
            }
        });
    }
}
