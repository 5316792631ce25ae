use super::{Attention, Sizes};
use crate::dtype::Float;
use crate::ops::rmsnorm;
use crate::parallel::{Shared, blocks};
use crate::product::{View, product, product_into};
use crate::simd::{max, sum};
use crate::tensor::{Scratch, Tensor};
use crate::vectorize;

/// Queries, keys or values: where those of a (sample, head) start.
#[derive(Clone, Copy)]
pub(super) struct Operand<'a, T> {
    data: &'a [T],
    start: usize,
}

impl<'a, T: Float> Operand<'a, T> {
    /// The three operands of a call.
    pub(super) fn all(op: &Attention, s: Sizes, inputs: &[&'a Tensor]) -> [Self; 3] {
        [0, 1, 2].map(|i| match op.packed {
            true => Operand { data: inputs[0].read(), start: i * s.heads * s.dim },
            false => Operand { data: inputs[i].read(), start: 0 },
        })
    }

    /// From the first element of (sample, head) on.
    pub(super) fn at(&self, s: Sizes, sample: usize, head: usize) -> &'a [T] {
        &self.data[offset(s, sample, head) + self.start..]
    }
}

/// Offset of (sample, head) from the start of an operand.
pub(super) fn offset(s: Sizes, sample: usize, head: usize) -> usize {
    sample * s.tokens * s.stride + head * s.dim
}

/// Rows normalised by root mean square and weighted, packed densely.
pub(super) fn normalized<T: Float>(s: Sizes, x: &[T], weight: &[T], epsilon: f64) -> Scratch<T> {
    let mut out = Scratch::arbitrary(s.tokens * s.dim);
    vectorize!({
        for (t, y) in out.chunks_exact_mut(s.dim).enumerate() {
            let x = &x[t * s.stride..][..s.dim];
            let r = rmsnorm::rstd(x, T::of(epsilon));
            for ((y, x), w) in y.iter_mut().zip(x).zip(weight) {
                *y = *x * r * *w;
            }
        }
    });
    out
}

/// 1/√D.
pub(super) fn scale<T: Float>(s: Sizes) -> T {
    T::of(1.0 / (s.dim as f64).sqrt())
}

/// Heads that one thread takes at a time.
pub(super) fn grain(s: Sizes) -> usize {
    (128 * 1024 / (s.tokens * s.tokens * s.dim)).max(1)
}

pub(super) fn forward<T: Float>(
    op: &Attention,
    s: Sizes,
    inputs: &[&Tensor],
    stats: &mut [T],
    out: &mut [T],
) {
    let [q, k, v] = Operand::<T>::all(op, s, inputs);
    let weights = &inputs[op.operands()..];
    let (t, d, width) = (s.tokens, s.dim, s.heads * s.dim);
    let (stats, out) = (Shared::new(stats), Shared::new(out));
    blocks(s.batch * s.heads, grain(s), |range| {
        let mut scores = Scratch::<T>::arbitrary(t * t);
        for i in range {
            let (sample, head) = (i / s.heads, i % s.heads);
            let (q, k, v) = (q.at(s, sample, head), k.at(s, sample, head), v.at(s, sample, head));
            match op.qk_norm {
                None => {
                    let (q, k) = (View::new(q, t, d, s.stride), View::new(k, t, d, s.stride));
                    product(&mut scores, t, false, scale(s), q, k.transposed());
                }
                Some(epsilon) => {
                    let q = normalized(s, q, weights[0].read(), epsilon);
                    let k = normalized(s, k, weights[1].read(), epsilon);
                    let (q, k) = (View::new(&q, t, d, d), View::new(&k, t, d, d));
                    product(&mut scores, t, false, scale(s), q, k.transposed());
                }
            }
            // SAFETY: every (sample, head) has its own part.
            let stats = unsafe { stats.slice(i * t * 2..(i + 1) * t * 2) };
            vectorize!({
                for (row, stats) in scores.chunks_exact_mut(t).zip(stats.chunks_exact_mut(2)) {
                    let top = max(row);
                    for x in row.iter_mut() {
                        *x = (*x - top).exp();
                    }
                    (stats[0], stats[1]) = (top, T::ONE / sum([row], |[x]| x));
                }
            });
            let at = sample * t * width + head * d;
            // SAFETY: every (sample, head) writes its own columns of its own rows of `out`.
            unsafe {
                product_into(
                    out.pointer(at),
                    width,
                    false,
                    T::ONE,
                    View::new(&scores, t, t, t),
                    View::new(v, t, d, s.stride),
                );
            }
            // The rows of P add up to one only now: there are fewer elements here than in the scores.
            vectorize!({
                for (row, stats) in stats.chunks_exact(2).enumerate() {
                    let from = at + row * width;
                    // SAFETY: as above.
                    let y = unsafe { out.slice(from..from + d) };
                    y.iter_mut().for_each(|y| *y *= stats[1]);
                }
            });
        }
    });
}
