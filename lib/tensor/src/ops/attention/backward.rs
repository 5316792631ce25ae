use super::cpu::{Operand, grain, normalized, offset, scale};
use super::{Attention, Sizes};
use crate::dtype::Float;
use crate::op::Slot;
use crate::ops::rmsnorm;
use crate::parallel::{Shared, blocks};
use crate::product::{View, product, product_into};
use crate::simd::sum;
use crate::tensor::{Scratch, Tensor};
use crate::vectorize;

/// Where the gradient of queries, keys or values goes.
struct Target<'a, T> {
    data: &'a Shared<'a, T>,
    start: usize,
    add: bool,
}

pub(super) fn backward<T: Float>(
    op: &Attention,
    s: Sizes,
    saved: &[Tensor],
    dy: &[T],
    slots: &mut [Option<Slot>],
) {
    let inputs: Vec<&Tensor> = saved.iter().collect();
    let operands = Operand::<T>::all(op, s, &inputs);
    let out = saved[saved.len() - 2].read::<T>();
    let stats = saved[saved.len() - 1].read::<T>();
    let (slots, weight_slots) = slots.split_at_mut(op.operands());
    let shared: Vec<Option<(bool, Shared<T>)>> = slots
        .iter_mut()
        .map(|slot| slot.as_mut().map(|slot| (slot.add, Shared::new(slot.tensor.write()))))
        .collect();
    let targets: [Option<Target<T>>; 3] = [0, 1, 2].map(|i| {
        let (slot, start) = if op.packed { (0, i * s.heads * s.dim) } else { (i, 0) };
        shared[slot].as_ref().map(|(add, data)| Target { data, start, add: *add })
    });
    let norm = op.qk_norm.map(|epsilon| {
        let weights = &saved[op.operands()..];
        (epsilon, weights[0].read::<T>(), weights[1].read::<T>())
    });
    // Gradients of the two weights, a row each (sample, head), summed in order at the end.
    let mut dweights =
        Scratch::<T>::zeroed(if norm.is_some() { s.batch * s.heads * 2 * s.dim } else { 0 });
    {
        let dweights = Shared::new(&mut dweights);
        blocks(s.batch * s.heads, grain(s), |range| {
            let mut work = Work::new(s);
            for i in range {
                let (sample, head) = (i / s.heads, i % s.heads);
                let at = operands.map(|x| x.at(s, sample, head));
                let width = if norm.is_some() { 2 * s.dim } else { 0 };
                // SAFETY: every (sample, head) has its own row.
                let dweights = unsafe { dweights.slice(i * width..(i + 1) * width) };
                let stats = &stats[i * s.tokens * 2..][..s.tokens * 2];
                let from = sample * s.tokens * s.heads * s.dim + head * s.dim;
                let (out, dout) = (&out[from..], &dy[from..]);
                work.head(
                    s,
                    at,
                    stats,
                    [out, dout],
                    norm,
                    &targets,
                    offset(s, sample, head),
                    dweights,
                );
            }
        });
    }
    for (which, slot) in weight_slots.iter_mut().enumerate() {
        let Some(slot) = slot else { continue };
        let total = slot.zeroed::<T>();
        for row in dweights.chunks_exact(2 * s.dim) {
            let row = &row[which * s.dim..][..s.dim];
            total.iter_mut().zip(row).for_each(|(t, r)| *t += *r);
        }
    }
}

/// Working memory of one thread.
struct Work<T> {
    /// P, then unused.
    p: Scratch<T>,
    /// dP, then dS.
    ds: Scratch<T>,
    /// Gradient of normalised queries or keys.
    dn: Scratch<T>,
}

impl<T: Float> Work<T> {
    fn new(s: Sizes) -> Self {
        let square = s.tokens * s.tokens;
        Self {
            p: Scratch::arbitrary(square),
            ds: Scratch::arbitrary(square),
            dn: Scratch::arbitrary(s.tokens * s.dim),
        }
    }

    /// All gradients of one (sample, head).
    #[allow(clippy::too_many_arguments)] // each is a different thing, used once
    fn head(
        &mut self,
        s: Sizes,
        [q, k, v]: [&[T]; 3],
        stats: &[T],
        [out, dout]: [&[T]; 2],
        norm: Option<(f64, &[T], &[T])>,
        targets: &[Option<Target<T>>; 3],
        at: usize,
        dweights: &mut [T],
    ) {
        let (t, d) = (s.tokens, s.dim);
        let dense = norm.map(|(epsilon, wq, wk)| {
            (normalized(s, q, wq, epsilon), normalized(s, k, wk, epsilon))
        });
        let (qv, kv) = match &dense {
            Some((q, k)) => (View::new(q, t, d, d), View::new(k, t, d, d)),
            None => (View::new(q, t, d, s.stride), View::new(k, t, d, s.stride)),
        };
        let (vv, dov) = (View::new(v, t, d, s.stride), View::new(dout, t, d, s.heads * d));
        product(&mut self.p, t, false, scale(s), qv, kv.transposed());
        product(&mut self.ds, t, false, T::ONE, dov, vv.transposed());
        let (p, ds) = (&mut *self.p, &mut *self.ds);
        vectorize!({
            for (row, stats) in stats.chunks_exact(2).enumerate() {
                let (p, ds) = (&mut p[row * t..][..t], &mut ds[row * t..][..t]);
                let (top, inverse) = (stats[0], stats[1]);
                let at = row * s.heads * d;
                let dot = sum([&out[at..at + d], &dout[at..at + d]], |[o, d]| o * d);
                for (p, ds) in p.iter_mut().zip(ds) {
                    *p = (*p - top).exp() * inverse;
                    *ds = *p * (*ds - dot);
                }
            }
        });
        let (pv, dsv) = (View::new(&self.p, t, t, t), View::new(&self.ds, t, t, t));
        if let Some(target) = &targets[2] {
            into(target, s, at, T::ONE, pv.transposed(), dov);
        }
        for (which, lhs, rhs) in [(0, dsv, kv), (1, dsv.transposed(), qv)] {
            match norm {
                None => {
                    if let Some(target) = &targets[which] {
                        into(target, s, at, scale(s), lhs, rhs);
                    }
                }
                Some((epsilon, wq, wk)) => {
                    product(&mut self.dn, d, false, scale(s), lhs, rhs);
                    let (x, w) = if which == 0 { (q, wq) } else { (k, wk) };
                    let dw = &mut dweights[which * d..][..d];
                    normalization(s, x, w, epsilon, &self.dn, targets[which].as_ref(), at, dw);
                }
            }
        }
    }
}

/// target (+)= alpha·lhs·rhs for one (sample, head).
fn into<T: Float>(target: &Target<T>, s: Sizes, at: usize, alpha: T, lhs: View<T>, rhs: View<T>) {
    // SAFETY: every (sample, head) writes its own columns of its own rows, and queries, keys and values
    // have columns or tensors of their own.
    unsafe {
        let out = target.data.pointer(at + target.start);
        product_into(out, s.stride, target.add, alpha, lhs, rhs);
    }
}

/// Backward of the normalisation of queries or keys, from the gradient `dn` of the normalised ones.
#[allow(clippy::too_many_arguments)] // each is a different thing, used once
fn normalization<T: Float>(
    s: Sizes,
    x: &[T],
    w: &[T],
    epsilon: f64,
    dn: &[T],
    target: Option<&Target<T>>,
    at: usize,
    dw: &mut [T],
) {
    vectorize!({
        for t in 0..s.tokens {
            let (x, dn) = (&x[t * s.stride..][..s.dim], &dn[t * s.dim..][..s.dim]);
            let r = rmsnorm::rstd(x, T::of(epsilon));
            if let Some(target) = target {
                let from = at + target.start + t * s.stride;
                // SAFETY: as in `into`.
                let dx = unsafe { target.data.slice(from..from + s.dim) };
                rmsnorm::input_gradient(x, r, w, dn, dx, target.add);
            }
            for ((dw, dn), x) in dw.iter_mut().zip(dn).zip(x) {
                *dw = (*dn * r).mul_add(*x, *dw);
            }
        }
    });
}
