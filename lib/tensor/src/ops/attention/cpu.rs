//! Attention on the CPU. Keys hidden by padding are skipped when rows are gathered; the causal mask is applied per
//! block of queries, so most of the hidden scores are not computed.

use super::layout::{Segment, SegmentRole, Sizes, segments, visible_keys};
use super::{Attention, Layout};
use crate::dtype::Float;
use crate::ops::dropout::Mask;
use crate::ops::normalization::statistics;
use crate::parallel::{Shared, blocks};
use crate::product::{View, product, product_into};
use crate::simd::{max, sum};
use crate::vectorize;
use crate::{Scratch, Tensor};
use std::ops::Range;

/// Queries per block under a causal mask.
const CAUSAL_BLOCK: usize = 64;

/// Queries, keys or values of one (sample, head), as a matrix.
pub(super) enum Rows<'a, T> {
    /// In place, as a strided view of an input.
    Strided { data: &'a [T], stride: usize },
    /// Normalized or joined, hence copied.
    Dense(&'a [T]),
}

/// Returns a buffer for [`Rows::gather`], for all rows of the segments.
pub(super) fn buffer<T: Float>(op: &Attention, s: Sizes, segments: &[Segment]) -> Scratch<T> {
    let rows: usize = segments.iter().map(|segment| segment.rows).sum();
    Scratch::uninit(if is_copied(op, segments) { rows * s.dim } else { 0 })
}

fn is_copied(op: &Attention, segments: &[Segment]) -> bool {
    op.layout == Layout::Joined || segments[0].weight.is_some()
}

impl<'a, T: Float> Rows<'a, T> {
    /// Returns the first `counts` rows of each segment, copied to `buffer` only if they are normalized or joined.
    pub(super) fn gather(
        op: &Attention,
        s: Sizes,
        inputs: &[&'a Tensor],
        segments: &[Segment],
        counts: [usize; 2],
        [sample, head]: [usize; 2],
        buffer: &'a mut [T],
    ) -> Self {
        let rows = |segment: &Segment| {
            let at = segment.at(s, sample, head);
            &inputs[segment.input].read::<T>()[at..]
        };
        if !is_copied(op, segments) {
            return Rows::Strided { data: rows(&segments[0]), stride: segments[0].stride };
        }
        let d = s.dim;
        let dense = &mut buffer[..(counts[0] + counts[1]) * d];
        let (first, second) = dense.split_at_mut(counts[0] * d);
        for (segment, out) in segments.iter().zip([first, second]) {
            let x = rows(segment);
            match (segment.weight, op.qk_norm) {
                (Some(weight), Some(epsilon)) => {
                    let weight = inputs[weight].read::<T>();
                    vectorize!({
                        for (t, y) in out.chunks_exact_mut(d).enumerate() {
                            let x = &x[t * segment.stride..][..d];
                            let (_, r) = statistics(x, false, T::of(epsilon));
                            for ((y, x), w) in y.iter_mut().zip(x).zip(weight) {
                                *y = *x * r * *w;
                            }
                        }
                    });
                }
                _ => {
                    for (t, y) in out.chunks_exact_mut(d).enumerate() {
                        y.copy_from_slice(&x[t * segment.stride..][..d]);
                    }
                }
            }
        }
        Rows::Dense(dense)
    }

    /// Returns a range of rows as a matrix.
    pub(super) fn view(&self, d: usize, range: Range<usize>) -> View<'_, T> {
        match self {
            Rows::Strided { data, stride } => {
                View::new(&data[range.start * stride..], range.len(), d, *stride)
            }
            Rows::Dense(data) => View::new(&data[range.start * d..], range.len(), d, d),
        }
    }
}

/// Returns the softmax scale, 1/√D.
pub(super) fn scale<T: Float>(s: Sizes) -> T {
    T::of(1.0 / (s.dim as f64).sqrt())
}

/// Returns the number of key/value heads that a thread processes at a time.
pub(super) fn grain(s: Sizes) -> usize {
    (128 * 1024 / (s.queries * s.keys * s.dim * s.group())).max(1)
}

/// Splits the queries into blocks of [`CAUSAL_BLOCK`] under a causal mask; otherwise returns a single block.
pub(super) fn query_blocks(op: &Attention, s: Sizes) -> impl Iterator<Item = Range<usize>> {
    let size = if op.mask.causal { CAUSAL_BLOCK } else { s.queries };
    (0..s.queries).step_by(size).map(move |start| start..(start + size).min(s.queries))
}

/// Dropout of the attention probabilities.
#[derive(Clone, Copy)]
pub(super) struct Dropped {
    mask: Mask,
    scale: f64,
    s: Sizes,
}

impl Dropped {
    /// Returns `None` without dropout or if p = 0.
    pub(super) fn new(op: &Attention, s: Sizes, inputs: &[&Tensor]) -> Option<Self> {
        let (dropout, counter) = op.dropped(inputs)?;
        Some(Self { mask: Mask::new(&dropout, counter.read()), scale: dropout.scale(), s })
    }

    /// Returns the index of the first block of four random words for the keys of a query.
    #[inline(always)]
    fn first(&self, head: usize, query: usize) -> usize {
        (head * self.s.queries + query) * self.s.keys.div_ceil(4)
    }

    /// For the keys of one query and the dropout mask m (0 or 1/(1 - p)), sets ds to p·(m·ds - dot) and p to m·p.
    #[inline(always)]
    pub(super) fn gradient<T: Float>(
        &self,
        [sample, head]: [usize; 2],
        query: usize,
        p: &mut [T],
        ds: &mut [T],
        dot: T,
    ) {
        let (first, scale) = (self.first(head, query), T::of(self.scale));
        self.mask.combine(sample, first, [ds, p], |[ds, p], keep| {
            let masked = |x: T| if keep { scale * x } else { T::ZERO };
            [p * (masked(ds) - dot), masked(p)]
        });
    }

    /// Applies the dropout mask, 0 or 1/(1 - p), to the rows of `queries`, which have `n` keys each.
    pub(super) fn apply<T: Float>(
        &self,
        rows: &mut [T],
        n: usize,
        [sample, head]: [usize; 2],
        queries: Range<usize>,
    ) {
        vectorize!({
            for (query, row) in queries.zip(rows.chunks_exact_mut(n)) {
                let scale = T::of(self.scale);
                self.mask.combine(sample, self.first(head, query), [row], |[x], keep| {
                    [if keep { scale * x } else { T::ZERO }]
                });
            }
        });
    }
}

/// Returns the number of keys, out of the first `keys`, that a query sees.
pub(super) fn visible(op: &Attention, s: Sizes, keys: usize, query: usize) -> usize {
    if op.mask.causal { s.causal_end(query).min(keys) } else { keys }
}

pub(super) fn forward<T: Float>(
    op: &Attention,
    s: Sizes,
    inputs: &[&Tensor],
    stats: &mut [T],
    out: &mut [T],
) {
    let parts = [SegmentRole::Queries, SegmentRole::Keys, SegmentRole::Values]
        .map(|p| segments(op, s, p, inputs));
    let all = [parts[0][0].rows, parts[0].get(1).map_or(0, |x| x.rows)];
    let (t, d, width) = (s.queries, s.dim, s.heads * s.dim);
    let (stats, out) = (Shared::new(stats), Shared::new(out));
    let dropped = Dropped::new(op, s, inputs);
    // Few keys of a cache may be visible.
    let seen = (0..s.batch).map(|sample| visible_keys(op, &parts[1], inputs, sample));
    let most = seen.map(|seen| seen[0] + seen[1]).max().unwrap_or(0);
    blocks(s.batch * s.kv_heads, grain(Sizes { keys: most.max(1), ..s }), |range| {
        let tallest = query_blocks(op, s).next().map_or(0, |block| block.len());
        let mut scores = Scratch::<T>::uninit(tallest * most);
        let [mut of_q, mut of_k, mut of_v] = [0, 1, 2].map(|i| buffer::<T>(op, s, &parts[i]));
        for i in range {
            let (sample, kv_head) = (i / s.kv_heads, i % s.kv_heads);
            let seen = visible_keys(op, &parts[1], inputs, sample);
            let keys = seen[0] + seen[1];
            let at = [sample, kv_head];
            let k = Rows::<T>::gather(op, s, inputs, &parts[1], seen, at, &mut of_k);
            let v = Rows::<T>::gather(op, s, inputs, &parts[2], seen, at, &mut of_v);
            for head in kv_head * s.group()..(kv_head + 1) * s.group() {
                let at = [sample, head];
                let q = Rows::<T>::gather(op, s, inputs, &parts[0], all, at, &mut of_q);
                let first = (sample * s.heads + head) * t * 2;
                // SAFETY: every (sample, head) has its own range.
                let stats = unsafe { stats.slice(first..first + t * 2) };
                for block in query_blocks(op, s) {
                    let n = visible(op, s, keys, block.end - 1);
                    let scores = &mut scores[..block.len() * n];
                    let stats = &mut stats[block.start * 2..block.end * 2];
                    let at = (sample * t + block.start) * width + head * d;
                    if n > 0 {
                        let q = q.view(d, block.clone()).of_steps(t == 1);
                        let k = k.view(d, 0..n);
                        product(scores, n, false, scale(s), q, k.transposed());
                        let seen = |i| visible(op, s, keys, block.start + i);
                        vectorize!({ softmax(scores, n, stats, seen) });
                        if let Some(dropped) = &dropped {
                            dropped.apply(scores, n, [sample, head], block.clone());
                        }
                        let weights = View::new(scores, block.len(), n, n).of_steps(t == 1);
                        // SAFETY: every (sample, head) writes its own columns of its own rows.
                        unsafe {
                            product_into(
                                out.pointer(at),
                                width,
                                false,
                                T::ONE,
                                weights,
                                v.view(d, 0..n),
                            );
                        }
                    } else {
                        stats.fill(T::ZERO);
                    }
                    // The softmax is normalized here because the output has fewer elements than the scores.
                    vectorize!({
                        for (row, stats) in stats.chunks_exact(2).enumerate() {
                            let from = at + row * width;
                            // SAFETY: as above.
                            let y = unsafe { out.slice(from..from + d) };
                            if stats[1] == T::ZERO {
                                y.fill(T::ZERO);
                            }
                            y.iter_mut().for_each(|y| *y *= stats[1]);
                        }
                    });
                }
            }
        }
    });
}

/// Elements of the scores that go through the steps of a softmax together: few enough for the L1 cache. Exponentials of
/// short rows are computed several rows at a time, so that not every row has a remainder of single elements.
const GROUP: usize = 4096;

/// Splits `rows` rows of scores with `n` keys each into groups of about [`GROUP`] elements.
pub(super) fn groups(rows: usize, n: usize) -> impl Iterator<Item = Range<usize>> {
    let height = (GROUP / n).max(1);
    (0..rows).step_by(height).map(move |start| start..(start + height).min(rows))
}

/// Replaces the first `seen(i)` elements of each row i with exp(x - max) and the others with zero. Writes the maximum
/// and 1/sum of each row to `stats`, or zeros if no key is visible.
#[inline(always)]
fn softmax<T: Float>(scores: &mut [T], n: usize, stats: &mut [T], seen: impl Fn(usize) -> usize) {
    for group in groups(scores.len() / n, n) {
        let scores = &mut scores[group.start * n..group.end * n];
        let stats = &mut stats[group.start * 2..group.end * 2];
        for (i, (row, stats)) in
            group.clone().zip(scores.chunks_exact_mut(n).zip(stats.chunks_exact_mut(2)))
        {
            let (row, hidden) = row.split_at_mut(seen(i));
            hidden.fill(T::ZERO);
            let top = if row.is_empty() { T::ZERO } else { max(row) };
            row.iter_mut().for_each(|x| *x = *x - top);
            stats[0] = top;
        }
        scores.iter_mut().for_each(|x| *x = x.exp());
        for (i, (row, stats)) in
            group.zip(scores.chunks_exact_mut(n).zip(stats.chunks_exact_mut(2)))
        {
            let (row, hidden) = row.split_at_mut(seen(i));
            hidden.fill(T::ZERO);
            stats[1] = if row.is_empty() { T::ZERO } else { T::ONE / sum([row], |[x]| x) };
        }
    }
}
