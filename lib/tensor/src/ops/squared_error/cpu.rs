use crate::Scratch;
use crate::dtype::Float;
use crate::op::GradBuffer;
use crate::parallel::{Shared, blocks, rows_per_block};
use crate::simd::sum;
use crate::vectorize;

/// Mean of v ∘ (p - t)² for each sample.
pub(super) fn means<T: Float>(p: &[T], t: &[T], v: &[T], samples: usize) -> Scratch<T> {
    let n = p.len() / samples.max(1);
    let mut means = Scratch::uninit(samples);
    let shared = Shared::new(&mut means);
    blocks(samples, rows_per_block(n), |range| {
        for b in range {
            let (p, t) = (&p[b * n..][..n], &t[b * n..][..n]);
            let mut total = T::ZERO;
            vectorize!({
                for (p, t) in p.chunks_exact(v.len()).zip(t.chunks_exact(v.len())) {
                    total += sum([p, t, v], |[p, t, v]| v * (p - t) * (p - t));
                }
            });
            // SAFETY: every sample has its own element.
            let mean = unsafe { shared.slice(b..b + 1) };
            mean[0] = total / T::of(n as f64);
        }
    });
    means
}

/// d (+)= factor·w_b·v ∘ (p - t)/n.
pub(super) fn backward<T: Float>(
    factor: T,
    p: &[T],
    t: &[T],
    (w, v): (&[T], &[T]),
    grad: &mut GradBuffer,
) {
    let (n, c) = (p.len() / w.len().max(1), v.len());
    let add = grad.accumulate;
    let out = Shared::new(grad.tensor.write::<T>());
    blocks(w.len(), rows_per_block(n), |range| {
        for b in range {
            let (p, t) = (&p[b * n..][..n], &t[b * n..][..n]);
            let scale = factor * w[b] / T::of(n as f64);
            // SAFETY: samples are disjoint.
            let out = unsafe { out.slice(b * n..(b + 1) * n) };
            vectorize!({
                for row in (0..n).step_by(c) {
                    let (p, t, out) = (&p[row..][..c], &t[row..][..c], &mut out[row..][..c]);
                    for i in 0..c {
                        let d = scale * v[i] * (p[i] - t[i]);
                        out[i] = if add { out[i] + d } else { d };
                    }
                }
            });
        }
    });
}
