use crate::dtype::Float;
use crate::for_rows;
use crate::op::GradBuffer;
use crate::simd::sum;

/// Writes e and D of each sample to `terms`.
pub(super) fn terms<T: Float>(epsilon: f64, p: &[T], t: &[T], terms: &mut [T]) {
    let n = p.len() / (terms.len() / 2);
    for_rows!((terms, 2), n, |b, terms| {
        let (p, t) = (&p[b * n..][..n], &t[b * n..][..n]);
        let error = sum([p, t], |[p, t]| (p - t) * (p - t));
        let d = sum([t], |[t]| t * t) + T::of(epsilon);
        terms.copy_from_slice(&[(error / d).sqrt(), d]);
    });
}

pub(super) fn backward<T: Float>(dy: T, p: &[T], t: &[T], terms: &[T], grad: &mut GradBuffer) {
    let samples = terms.len() / 2;
    let (n, add) = (p.len() / samples, grad.accumulate);
    for_rows!((grad.tensor.write::<T>(), n), n, |b, dp| {
        let (p, t, dp) = (&p[b * n..][..n], &t[b * n..][..n], &mut dp[..n]);
        let (e, d) = (terms[2 * b], terms[2 * b + 1]);
        let factor = if e > T::ZERO { dy / (e * d * T::of(samples as f64)) } else { T::ZERO };
        for i in 0..n {
            let v = factor * (p[i] - t[i]);
            dp[i] = if add { dp[i] + v } else { v };
        }
    });
}
