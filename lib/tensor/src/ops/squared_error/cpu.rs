use crate::dtype::Float;
use crate::op::Slot;
use crate::parallel::{Shared, blocks, rows_per_block};
use crate::simd::{sum, vectorize};

/// Mean of (p - t)² of each sample.
pub(super) fn means<T: Float>(p: &[T], t: &[T], means: &mut [T]) {
    let samples = means.len();
    let n = p.len() / samples.max(1);
    let means = Shared::new(means);
    blocks(samples, rows_per_block(n), |range| {
        for b in range {
            let (p, t) = (&p[b * n..][..n], &t[b * n..][..n]);
            let total = vectorize(|| sum(n, |i| (p[i] - t[i]) * (p[i] - t[i])));
            // SAFETY: every sample has its own element.
            let mean = unsafe { means.slice(b..b + 1) };
            mean[0] = total / T::of(n as f64);
        }
    });
}

/// d (+)= factor·w_b·(p - t)/n.
pub(super) fn backward<T: Float>(factor: T, p: &[T], t: &[T], w: &[T], slot: &mut Slot) {
    let n = p.len() / w.len().max(1);
    let add = slot.add;
    let out = Shared::new(slot.tensor.write::<T>());
    blocks(w.len(), rows_per_block(n), |range| {
        for b in range {
            let (p, t) = (&p[b * n..][..n], &t[b * n..][..n]);
            let scale = factor * w[b] / T::of(n as f64);
            // SAFETY: samples are disjoint.
            let out = unsafe { out.slice(b * n..(b + 1) * n) };
            vectorize(|| {
                for i in 0..n {
                    let d = scale * (p[i] - t[i]);
                    out[i] = if add { out[i] + d } else { d };
                }
            });
        }
    });
}
