//! Backward pass on the CPU. The scores are recomputed one block of queries at a time.

use super::cpu::{Dropped, Rows, buffer, grain, groups, query_blocks, scale, visible};
use super::layout::{Segment, SegmentRole, Sizes, segments, visible_keys};
use super::{Attention, Layout};
use crate::dtype::Float;
use crate::op::GradBuffer;
use crate::ops::normalization::{input_gradient, statistics};
use crate::parallel::{Shared, blocks};
use crate::product::{View, product, product_into};
use crate::simd::sum;
use crate::vectorize;
use crate::{Scratch, Tensor};

/// For each operand that needs a gradient: whether to accumulate, and the memory of the gradient.
type Targets<'a, T> = Vec<Option<(bool, Shared<'a, T>)>>;

pub(super) fn backward<T: Float>(
    op: &Attention,
    s: Sizes,
    inputs: &[&Tensor],
    dy: &[T],
    buffers: &mut [Option<&mut GradBuffer>],
) {
    let (buffers, weight_buffers) = buffers.split_at_mut(op.operands());
    // Nothing is written for masked rows, so their gradients must be zeroed here.
    let masked = op.mask.causal || op.mask.padding;
    let targets: Targets<T> = buffers
        .iter_mut()
        .map(|grad| {
            let grad = grad.as_mut()?;
            let add = grad.accumulate || masked;
            let data = if masked { grad.zeroed() } else { grad.tensor.write() };
            Some((add, Shared::new(data)))
        })
        .collect();
    let call = Call {
        op,
        s,
        inputs,
        parts: [SegmentRole::Queries, SegmentRole::Keys, SegmentRole::Values]
            .map(|p| segments(op, s, p, inputs)),
        out: inputs[inputs.len() - 2].read(),
        stats: inputs[inputs.len() - 1].read(),
        dy,
        targets,
        dropped: Dropped::new(op, s, inputs),
        dense: [op.weights() > 0, op.weights() > 0, false]
            .map(|n| n || op.layout == Layout::Joined),
    };
    // Normalization weight gradients, one row per (sample, key/value head), summed in a fixed order at the end.
    let width = op.weights() * s.dim;
    let mut dweights = Scratch::<T>::zeroed(s.batch * s.kv_heads * width);
    {
        let dweights = Shared::new(&mut dweights);
        blocks(s.batch * s.kv_heads, grain(s), |range| {
            let mut work = Work::new(&call);
            for i in range {
                // SAFETY: every (sample, key/value head) has its own row.
                let dweights = unsafe { dweights.slice(i * width..(i + 1) * width) };
                call.head(&mut work, i / s.kv_heads, i % s.kv_heads, dweights);
            }
        });
    }
    for (which, grad) in weight_buffers.iter_mut().enumerate() {
        let Some(grad) = grad else { continue };
        let total = grad.zeroed::<T>();
        for row in dweights.chunks_exact(width) {
            let row = &row[which * s.dim..][..s.dim];
            total.iter_mut().zip(row).for_each(|(t, r)| *t += *r);
        }
    }
}

/// State of one backward pass.
struct Call<'a, T> {
    op: &'a Attention,
    s: Sizes,
    inputs: &'a [&'a Tensor],
    /// Locations of queries, keys and values.
    parts: [Vec<Segment>; 3],
    out: &'a [T],
    stats: &'a [T],
    dy: &'a [T],
    targets: Targets<'a, T>,
    dropped: Option<Dropped>,
    /// For queries, keys and values: whether the gradient is collected in a dense buffer before it is written.
    dense: [bool; 3],
}

/// Scratch buffers of one thread.
struct Work<T> {
    p: Scratch<T>,
    /// dP, then dS.
    ds: Scratch<T>,
    /// Query, key and value gradients that pass through the normalization or are split before they are written.
    dense: [Scratch<T>; 3],
    /// Copies of queries, keys and values.
    copies: [Scratch<T>; 3],
}

impl<T: Float> Work<T> {
    fn new(call: &Call<T>) -> Self {
        let s = call.s;
        let tallest = query_blocks(call.op, s).next().map_or(0, |block| block.len());
        let rows = [s.queries, s.keys, s.keys];
        Self {
            p: Scratch::uninit(tallest * s.keys),
            ds: Scratch::uninit(tallest * s.keys),
            dense: [0, 1, 2]
                .map(|i| Scratch::uninit(if call.dense[i] { rows[i] * s.dim } else { 0 })),
            copies: [0, 1, 2].map(|i| buffer(call.op, s, &call.parts[i])),
        }
    }
}

impl<T: Float> Call<'_, T> {
    /// Computes all gradients of one sample and key/value head, including all of its query heads.
    fn head(&self, work: &mut Work<T>, sample: usize, kv_head: usize, dweights: &mut [T]) {
        let (op, s, inputs, d) = (self.op, self.s, self.inputs, self.s.dim);
        let seen = visible_keys(op, &self.parts[1], inputs, sample);
        let all = [self.parts[0][0].rows, self.parts[0].get(1).map_or(0, |x| x.rows)];
        let keys = seen[0] + seen[1];
        if keys == 0 {
            return;
        }
        let at = [sample, kv_head];
        let [of_q, of_k, of_v] = &mut work.copies;
        let k = Rows::gather(op, s, inputs, &self.parts[1], seen, at, of_k);
        let v = Rows::gather(op, s, inputs, &self.parts[2], seen, at, of_v);
        // Without a causal mask, the first product overwrites all keys, so the buffers need not be zeroed.
        let mut fresh = !op.mask.causal;
        if !fresh {
            work.dense.iter_mut().for_each(|x| x.fill(T::ZERO));
        }
        for head in kv_head * s.group()..(kv_head + 1) * s.group() {
            let q = Rows::gather(op, s, inputs, &self.parts[0], all, [sample, head], of_q);
            for block in query_blocks(op, s) {
                let n = visible(op, s, keys, block.end - 1);
                if n == 0 {
                    continue;
                }
                let (t, width) = (block.len(), s.heads * d);
                let from = (sample * s.queries + block.start) * width + head * d;
                let (out, dout) = (&self.out[from..], &self.dy[from..]);
                let from = ((sample * s.heads + head) * s.queries + block.start) * 2;
                let stats = &self.stats[from..from + t * 2];
                let (qv, kv) = (q.view(d, block.clone()), k.view(d, 0..n));
                let dov = View::new(dout, t, d, width);
                let (p, ds) = (&mut work.p[..t * n], &mut work.ds[..t * n]);
                product(p, n, false, scale(s), qv, kv.transposed());
                product(ds, n, false, T::ONE, dov, v.view(d, 0..n).transposed());
                let seen = |row: usize| visible(op, s, keys, block.start + row);
                vectorize!({
                    for group in groups(t, n) {
                        for row in group.clone() {
                            let (p, hidden) = p[row * n..][..n].split_at_mut(seen(row));
                            let top = stats[row * 2];
                            p.iter_mut().for_each(|p| *p = *p - top);
                            hidden.fill(T::ZERO);
                        }
                        let of_group = group.start * n..group.end * n;
                        p[of_group].iter_mut().for_each(|p| *p = p.exp());
                        for row in group {
                            let (p, hidden_p) = p[row * n..][..n].split_at_mut(seen(row));
                            let (ds, hidden_ds) = ds[row * n..][..n].split_at_mut(seen(row));
                            let inverse = stats[row * 2 + 1];
                            let at = row * width;
                            let dot = sum([&out[at..at + d], &dout[at..at + d]], |[o, d]| o * d);
                            p.iter_mut().for_each(|p| *p *= inverse);
                            match &self.dropped {
                                Some(dropped) => {
                                    let query = block.start + row;
                                    dropped.gradient([sample, head], query, p, ds, dot);
                                }
                                None => {
                                    for (p, ds) in p.iter().zip(ds) {
                                        *ds = *p * (*ds - dot);
                                    }
                                }
                            }
                            hidden_p.fill(T::ZERO);
                            hidden_ds.fill(T::ZERO);
                        }
                    }
                });
                let (pv, dsv) = (View::new(p, t, n, n), View::new(ds, t, n, n));
                let dense = &mut work.dense;
                let (first, query) = ([sample, head], block.start);
                self.into(2, dense, at, 0, !fresh, T::ONE, pv.transposed(), dov);
                self.into(0, dense, first, query, false, scale(s), dsv, kv);
                self.into(1, dense, at, 0, !fresh, scale(s), dsv.transposed(), qv);
                fresh = false;
            }
            if self.dense[0] {
                self.emit(0, &work.dense[0], all, [sample, head], dweights);
            }
        }
        for part in [1, 2] {
            if self.dense[part] {
                self.emit(part, &work.dense[part], seen, at, dweights);
            }
        }
    }

    /// Writes alpha·lhs·rhs to the gradient of `part`, starting at row `row`. With `more`, accumulates onto the values
    /// that this pass has already written.
    #[allow(clippy::too_many_arguments)] // unrelated arguments of a private helper
    fn into(
        &self,
        part: usize,
        dense: &mut [Scratch<T>; 3],
        [sample, head]: [usize; 2],
        row: usize,
        more: bool,
        alpha: T,
        lhs: View<T>,
        rhs: View<T>,
    ) {
        let (segment, d) = (&self.parts[part][0], self.s.dim);
        if self.dense[part] {
            product(&mut dense[part][row * d..], d, more, alpha, lhs, rhs);
        } else if let Some((add, data)) = &self.targets[segment.input] {
            let at = segment.at(self.s, sample, head) + row * segment.stride;
            // SAFETY: every (sample, head) writes its own columns of its own rows, and queries, keys and values have
            // separate columns or tensors.
            unsafe {
                let out = data.pointer(at);
                product_into(out, segment.stride, *add || more, alpha, lhs, rhs);
            }
        }
    }

    /// Propagates the dense gradients `dn` (`counts` rows of each segment) through the normalization, if any, and
    /// writes them to the gradients of the inputs.
    fn emit(
        &self,
        part: usize,
        dn: &[T],
        counts: [usize; 2],
        [sample, head]: [usize; 2],
        dweights: &mut [T],
    ) {
        let d = self.s.dim;
        let (first, second) = dn.split_at(counts[0] * d);
        for (segment, dn) in self.parts[part].iter().zip([first, &second[..counts[1] * d]]) {
            let at = segment.at(self.s, sample, head);
            let x = &self.inputs[segment.input].read::<T>()[at..];
            let target = self.targets[segment.input].as_ref();
            let norm = segment.weight.zip(self.op.qk_norm).map(|(weight, epsilon)| {
                let which = (weight - self.op.operands()) * d;
                (self.inputs[weight].read::<T>(), T::of(epsilon), which)
            });
            vectorize!({
                for (t, dn) in dn.chunks_exact(d).enumerate() {
                    let x = &x[t * segment.stride..][..d];
                    let from = at + t * segment.stride;
                    let dx = target.map(|(add, data)| {
                        // SAFETY: as in `into`.
                        (*add, unsafe { data.slice(from..from + d) })
                    });
                    let Some((w, epsilon, which)) = norm else {
                        if let Some((add, dx)) = dx {
                            let sum = |dx: &T, dn: &T| if add { *dx + *dn } else { *dn };
                            dx.iter_mut().zip(dn).for_each(|(dx, dn)| *dx = sum(dx, dn));
                        }
                        continue;
                    };
                    let stats = statistics(x, false, epsilon);
                    if let Some((add, dx)) = dx {
                        let plain = (T::ZERO, w);
                        input_gradient(x, (stats, false), plain, dn, dx, add);
                    }
                    for ((dw, dn), x) in dweights[which..][..d].iter_mut().zip(dn).zip(x) {
                        *dw = (*dn * stats.1).mul_add(*x, *dw);
                    }
                }
            });
        }
    }
}
