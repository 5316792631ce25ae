use super::AdaLn;
use crate::dtype::Float;
use crate::op::GradBuffer;
use crate::ops::layernorm::{input_gradient, normalized, statistics};
use crate::parallel::{Shared, blocks, rows_per_block};
use crate::tensor::Tensor;
use crate::vectorize;

/// Sizes: rows of x, rows of a group, width, width of m.
fn sizes(x: &Tensor, m: &Tensor) -> (usize, usize, usize, usize) {
    (x.rows(), x.rows() / m.rows().max(1), x.width(), m.width())
}

pub(super) fn forward<T: Float>(op: AdaLn, x: &Tensor, m: &Tensor, stats: &mut [T], out: &mut [T]) {
    let (rows, group, h, width) = sizes(x, m);
    let (x, m) = (x.read::<T>(), m.read::<T>());
    let (stats, out) = (Shared::new(stats), Shared::new(out));
    blocks(rows, rows_per_block(h), |range| {
        // SAFETY: blocks are disjoint.
        let out = unsafe { out.slice(range.start * h..range.end * h) };
        // SAFETY: blocks are disjoint.
        let stats = unsafe { stats.slice(range.start * 2..range.end * 2) };
        vectorize!({
            for (r, row) in range.enumerate() {
                let m = &m[row / group * width..][..width];
                let (scale, shift) = (&m[op.scale * h..][..h], &m[op.shift * h..][..h]);
                let (x, y) = (&x[row * h..][..h], &mut out[r * h..][..h]);
                let s = statistics(x, T::of(op.epsilon));
                (stats[2 * r], stats[2 * r + 1]) = s;
                for i in 0..h {
                    y[i] = normalized(x[i], s).mul_add(T::ONE + scale[i], shift[i]);
                }
            }
        });
    });
}

pub(super) fn backward<T: Float>(
    op: AdaLn,
    x: &Tensor,
    m: &Tensor,
    stats: &[T],
    dy: &[T],
    dx: Option<&mut GradBuffer>,
    dm: Option<&mut GradBuffer>,
) {
    let (rows, group, h, width) = sizes(x, m);
    let (x, m) = (x.read::<T>(), m.read::<T>());
    let dx = dx.map(|grad| (grad.accumulate, Shared::new(grad.tensor.write::<T>())));
    let dm = dm.map(|grad| Shared::new(grad.zeroed::<T>()));
    // A group belongs to one thread, which sums its dγ and dβ.
    blocks(rows / group.max(1), rows_per_block(h * group), |groups| {
        for g in groups {
            let m = &m[g * width..][..width];
            let scale = &m[op.scale * h..][..h];
            let at = |vector: usize| g * width + vector * h..g * width + (vector + 1) * h;
            // SAFETY: groups, and the two vectors of a group, are disjoint parts of dm.
            let mut sums =
                dm.as_ref().map(|dm| unsafe { (dm.slice(at(op.scale)), dm.slice(at(op.shift))) });
            let span = g * group * h..(g + 1) * group * h;
            // SAFETY: groups are disjoint rows of dx.
            let mut dx = dx.as_ref().map(|(add, dx)| (*add, unsafe { dx.slice(span) }));
            vectorize!({
                for r in 0..group {
                    let row = g * group + r;
                    let (x, dy) = (&x[row * h..][..h], &dy[row * h..][..h]);
                    let s = (stats[2 * row], stats[2 * row + 1]);
                    if let Some((add, dx)) = &mut dx {
                        let dx = &mut dx[r * h..][..h];
                        input_gradient(x, s, (T::ONE, scale), dy, dx, *add);
                    }
                    if let Some((dscale, dshift)) = &mut sums {
                        // Lengths in sight: no bound is checked in the loop.
                        let (dscale, dshift) = (&mut dscale[..h], &mut dshift[..h]);
                        for i in 0..h {
                            dscale[i] = dy[i].mul_add(normalized(x[i], s), dscale[i]);
                            dshift[i] += dy[i];
                        }
                    }
                }
            });
        }
    });
}
