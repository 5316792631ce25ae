use crate::dtype::Float;
use crate::op::GradBuffer;
use crate::parallel::{Shared, blocks, rows_per_block};
use crate::simd::sum;
use crate::vectorize;

/// For each sample: e and D.
pub(super) fn terms<T: Float>(epsilon: f64, p: &[T], t: &[T], terms: &mut [T]) {
    let samples = terms.len() / 2;
    let n = p.len() / samples;
    let terms = Shared::new(terms);
    blocks(samples, rows_per_block(n), |range| {
        for b in range {
            let (p, t) = (&p[b * n..][..n], &t[b * n..][..n]);
            let error = vectorize!(sum([p, t], |[p, t]| (p - t) * (p - t)));
            let d = vectorize!(sum([t], |[t]| t * t)) + T::of(epsilon);
            // SAFETY: every sample has its own elements.
            let terms = unsafe { terms.slice(2 * b..2 * b + 2) };
            terms.copy_from_slice(&[(error / d).sqrt(), d]);
        }
    });
}

pub(super) fn backward<T: Float>(dy: T, p: &[T], t: &[T], terms: &[T], grad: &mut GradBuffer) {
    let samples = terms.len() / 2;
    let n = p.len() / samples;
    let add = grad.accumulate;
    let dp = Shared::new(grad.tensor.write::<T>());
    blocks(samples, rows_per_block(n), |range| {
        for b in range {
            let (p, t) = (&p[b * n..][..n], &t[b * n..][..n]);
            let (e, d) = (terms[2 * b], terms[2 * b + 1]);
            let factor = if e > T::ZERO { dy / (e * d * T::of(samples as f64)) } else { T::ZERO };
            // SAFETY: samples are disjoint.
            let dp = unsafe { dp.slice(b * n..(b + 1) * n) };
            vectorize!({
                for i in 0..n {
                    let v = factor * (p[i] - t[i]);
                    dp[i] = if add { dp[i] + v } else { v };
                }
            });
        }
    });
}
