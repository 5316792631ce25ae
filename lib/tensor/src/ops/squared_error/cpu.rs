use crate::dtype::Float;
use crate::op::GradBuffer;
use crate::simd::sum;
use crate::{Scratch, for_rows};

/// Returns the mean of v ∘ (p - t)² for each sample.
pub(super) fn means<T: Float>(p: &[T], t: &[T], v: &[T], samples: usize) -> Scratch<T> {
    let n = p.len() / samples.max(1);
    let mut means = Scratch::uninit(samples);
    for_rows!((&mut *means, 1), n, |b, mean| {
        let (p, t) = (&p[b * n..][..n], &t[b * n..][..n]);
        let mut total = T::ZERO;
        for (p, t) in p.chunks_exact(v.len()).zip(t.chunks_exact(v.len())) {
            total += sum([p, t, v], |[p, t, v]| v * (p - t) * (p - t));
        }
        mean[0] = total / T::of(n as f64);
    });
    means
}

/// Computes d (+)= factor·w_b·v ∘ (p - t)/n.
pub(super) fn backward<T: Float>(
    factor: T,
    p: &[T],
    t: &[T],
    (w, v): (&[T], &[T]),
    grad: &mut GradBuffer,
) {
    let (n, c) = (p.len() / w.len().max(1), v.len());
    let add = grad.accumulate;
    for_rows!((grad.tensor.write::<T>(), n), n, |b, out| {
        let scale = factor * w[b] / T::of(n as f64);
        for row in (0..n).step_by(c) {
            let at = b * n + row;
            let (p, t, out) = (&p[at..][..c], &t[at..][..c], &mut out[row..][..c]);
            for i in 0..c {
                let d = scale * v[i] * (p[i] - t[i]);
                out[i] = if add { out[i] + d } else { d };
            }
        }
    });
}
