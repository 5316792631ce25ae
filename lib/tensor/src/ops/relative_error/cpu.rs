use super::RelativeError;
use crate::dtype::Float;
use crate::op::GradBuffer;
use crate::parallel::{Shared, blocks, rows_per_block};
use crate::simd::sum;
use crate::vectorize;

/// Of each group: q or its root, and D.
pub(super) fn terms<T: Float>(op: &RelativeError, p: &[T], t: &[T], terms: &mut [T]) {
    let groups = terms.len() / 2;
    let n = p.len() / groups;
    let terms = Shared::new(terms);
    blocks(groups, rows_per_block(n), |range| {
        for g in range {
            let (p, t) = (&p[g * n..][..n], &t[g * n..][..n]);
            let error = vectorize!(sum([p, t], |[p, t]| (p - t) * (p - t)));
            let size = vectorize!(sum([t], |[t]| t * t));
            let d = size + T::of(op.epsilon);
            let q = error / d;
            // SAFETY: every group has its own elements.
            let terms = unsafe { terms.slice(2 * g..2 * g + 2) };
            terms.copy_from_slice(&[if op.root { q.sqrt() } else { q }, d]);
        }
    });
}

/// Gradient of the prediction or of the target.
pub(super) fn backward<T: Float>(
    op: &RelativeError,
    dy: T,
    p: &[T],
    t: &[T],
    terms: &[T],
    target: bool,
    grad: &mut GradBuffer,
) {
    let groups = terms.len() / 2;
    let n = p.len() / groups;
    let add = grad.accumulate;
    let out = Shared::new(grad.tensor.write::<T>());
    blocks(groups, rows_per_block(n), |range| {
        for g in range {
            let (p, t) = (&p[g * n..][..n], &t[g * n..][..n]);
            let (value, d) = (terms[2 * g], terms[2 * g + 1]);
            let q = if op.root { value * value } else { value };
            // d√q = dq/(2√q); the derivative at a perfect prediction is taken as zero.
            let outer = match (op.root, value > T::ZERO) {
                (false, _) => T::ONE,
                (true, true) => T::of(0.5) / value,
                (true, false) => T::ZERO,
            };
            let factor = T::of(2.0) * dy * outer / (d * T::of(groups as f64));
            let (on_error, on_target) =
                if target { (-factor, -factor * q) } else { (factor, T::ZERO) };
            // SAFETY: groups are disjoint.
            let out = unsafe { out.slice(g * n..(g + 1) * n) };
            vectorize!({
                for i in 0..n {
                    let v = on_error.mul_add(p[i] - t[i], on_target * t[i]);
                    out[i] = if add { out[i] + v } else { v };
                }
            });
        }
    });
}
