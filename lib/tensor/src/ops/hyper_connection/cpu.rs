use super::mixing::Mixing;
use super::{Coefficients, LEAST, MOST_STREAMS, Sizes};
use crate::dtype::Float;
use crate::op::{GradBuffer, Grads, Saved};
use crate::ops::residual::{self, Gain};
use crate::parallel::{reduce, rows_per_block};
use crate::simd::sum;
use crate::{Scratch, Tensor, for_rows, vectorize, with_float};

/// The inputs after R as slices.
struct Inputs<'a, T> {
    gamma: &'a [T],
    a: &'a [T],
    b: &'a [T],
    mixing: Mixing<'a, T>,
}

impl<'a, T: Float> Inputs<'a, T> {
    fn new(op: Coefficients, inputs: &[&'a Tensor]) -> Self {
        let [gamma, a, alpha, b, beta] = [1, 2, 3, 4, 5].map(|i| inputs[i].read::<T>());
        let scales = op.scales().map(|i| inputs[i].read::<T>()[0]);
        let mixing = Mixing { form: op.0, sizes: Sizes::of(inputs[0]), alpha, beta, scales };
        Inputs { gamma, a, b, mixing }
    }
}

/// Writes (1 + γ) ∘ (A, b), transposed: [S + 2, H].
fn fold<T: Float>(inputs: &Inputs<T>, out: &mut [T]) {
    let Sizes { streams: s, width: h, .. } = inputs.mixing.sizes;
    for (j, row) in out.chunks_exact_mut(h).enumerate() {
        for (i, out) in row.iter_mut().enumerate() {
            let weight = if j <= s { inputs.a[i * (s + 1) + j] } else { inputs.b[i] };
            *out = (T::ONE + inputs.gamma[i]) * weight;
        }
    }
}

/// Writes z, y and √H/‖R_s‖ of each stream and token [T, S, S + 3].
fn features<T: Float>(sizes: Sizes, x: &[T], weights: &[T], out: &mut [T]) {
    let Sizes { streams, width: h, .. } = sizes;
    let root = T::of(h as f64).sqrt();
    for_rows!((out, streams + 3), (streams + 3) * h, |row, out| {
        let x = &x[row * h..][..h];
        let c = root / sum([x], |[x]| x * x).sqrt().maximum(T::of(LEAST));
        for j in 0..streams + 2 {
            out[j] = c * sum([x, &weights[j * h..][..h]], |[x, w]| x * w);
        }
        out[streams + 2] = c;
    });
}

/// Returns the inputs, the folded weights and the features.
pub(super) fn coefficients<T: Float>(
    op: Coefficients,
    inputs: &[&Tensor],
    out: &mut Tensor,
) -> Saved {
    let (each, dtype) = (Inputs::<T>::new(op, inputs), out.dtype());
    let sizes = each.mixing.sizes;
    let mut weights = Tensor::empty(&[sizes.streams + 2, sizes.width], dtype);
    let mut found = Tensor::empty(&[sizes.tokens, sizes.features()], dtype);
    fold(&each, weights.write());
    features::<T>(sizes, inputs[0].read(), weights.read(), found.write());
    let (features, count) = (found.read::<T>(), sizes.features());
    for_rows!((out.write::<T>(), sizes.coefficients()), 500 * sizes.streams, |token, out| {
        each.mixing.forward(&features[token * count..][..count], out);
    });
    inputs.iter().map(|input| (*input).clone()).chain([weights, found]).collect()
}

pub(super) fn coefficients_backward<T: Float>(
    op: Coefficients,
    saved: &Saved,
    dy: &[T],
    grads: &mut Grads,
) {
    let count = saved.len() - 2;
    let inputs: Vec<&Tensor> = saved[..count].iter().collect();
    let (weights, features) = (saved[count].read::<T>(), saved[count + 1].read::<T>());
    let each = Inputs::<T>::new(op, &inputs);
    let (sizes, x) = (each.mixing.sizes, inputs[0].read::<T>());
    let Sizes { tokens, streams, width: h } = sizes;
    let (rows, sums) = (sizes.features(), sizes.sums());
    // For each token, the gradients of the features and of the small parameters.
    let mut parts = Scratch::<T>::uninit(tokens * (rows + sums));
    for_rows!((&mut *parts, rows + sums), 2000 * streams, |token, out| {
        let (out, sums) = out.split_at_mut(rows);
        let dy = &dy[token * sizes.coefficients()..][..sizes.coefficients()];
        each.mixing.backward(&features[token * rows..][..rows], dy, out, sums);
    });
    let part = |token: usize, s: usize| &parts[token * (rows + sums) + s * (streams + 3)..];

    let mut weight_sums = Scratch::<T>::zeroed((streams + 2) * h);
    reduce(tokens, rows_per_block(streams * h), &mut weight_sums, |range, sums| {
        vectorize!({
            for token in range {
                for s in 0..streams {
                    let (x, part) = (&x[(token * streams + s) * h..][..h], part(token, s));
                    for (j, sums) in sums.chunks_exact_mut(h).enumerate() {
                        for i in 0..h {
                            sums[i] = part[j].mul_add(x[i], sums[i]);
                        }
                    }
                }
            }
        });
    });
    let mut small = Scratch::<T>::zeroed(sums);
    reduce(tokens, 64, &mut small, |range, total| {
        for token in range {
            let part = &parts[token * (rows + sums) + rows..][..sums];
            total.iter_mut().zip(part).for_each(|(total, part)| *total += *part);
        }
    });

    if let Some(grad) = grads.buffer(0) {
        let add = grad.accumulate;
        for_rows!((grad.tensor.write::<T>(), h), (streams + 3) * h, |row, dx| {
            let (x, part) = (&x[row * h..][..h], part(row / streams, row % streams));
            let own = part[streams + 2];
            for i in 0..h {
                let d = -own * x[i];
                dx[i] = if add { dx[i] + d } else { d };
            }
            for j in 0..streams + 2 {
                let (part, weights) = (part[j], &weights[j * h..][..h]);
                for i in 0..h {
                    dx[i] = part.mul_add(weights[i], dx[i]);
                }
            }
        });
    }
    let [dgamma, da, dalpha, db, dbeta] = grads.buffers([1, 2, 3, 4, 5]);
    let weight_of = |i: usize, j: usize| {
        if j <= streams { each.a[i * (streams + 1) + j] } else { each.b[i] }
    };
    if let Some(grad) = dgamma {
        for (i, d) in grad.zeroed::<T>().iter_mut().enumerate() {
            for j in 0..streams + 2 {
                *d += weight_sums[j * h + i] * weight_of(i, j);
            }
        }
    }
    if let Some(grad) = da {
        for (i, d) in grad.zeroed::<T>().chunks_exact_mut(streams + 1).enumerate() {
            for (j, d) in d.iter_mut().enumerate() {
                *d += weight_sums[j * h + i] * (T::ONE + each.gamma[i]);
            }
        }
    }
    if let Some(grad) = db {
        for (i, d) in grad.zeroed::<T>().iter_mut().enumerate() {
            *d += weight_sums[(streams + 1) * h + i] * (T::ONE + each.gamma[i]);
        }
    }
    let (dalphas, rest) = small.split_at(streams * (streams + 1));
    let (dbetas, scales) = rest.split_at(streams);
    for (grad, sums) in [(dalpha, dalphas), (dbeta, dbetas)] {
        if let Some(grad) = grad {
            grad.add(sums);
        }
    }
    // In the plain form, p and r are one input.
    for (scale, i) in op.scales().into_iter().enumerate() {
        if let Some(grad) = grads.buffer(i) {
            grad.add(&scales[scale..=scale]);
        }
    }
}

/// u = Σ_s a_s·R_s as a tensor of the given shape.
pub(super) fn input(x: &Tensor, c: &Tensor, shape: &[usize]) -> Tensor {
    let mut u = Tensor::empty(shape, x.dtype());
    with_float!(x.dtype(), T => width::<T>(x, c.read(), u.write()));
    u
}

/// u = Σ_s a_s·R_s.
pub(super) fn width<T: Float>(x: &Tensor, c: &[T], out: &mut [T]) {
    let (sizes, x) = (Sizes::of(x), x.read::<T>());
    let Sizes { streams, width: h, .. } = sizes;
    for_rows!((out, h), (streams + 1) * h, |token, out| {
        let c = &c[token * sizes.coefficients()..];
        out.fill(T::ZERO);
        for s in 0..streams {
            let x = &x[(token * streams + s) * h..][..h];
            for i in 0..h {
                out[i] = c[s].mul_add(x[i], out[i]);
            }
        }
    });
}

pub(super) fn width_backward<T: Float>(
    x: &Tensor,
    c: &[T],
    dy: &[T],
    [dx, dc]: [Option<&mut GradBuffer>; 2],
) {
    let (sizes, x) = (Sizes::of(x), x.read::<T>());
    let (Sizes { streams, width: h, .. }, count) = (sizes, sizes.coefficients());
    if let Some(grad) = dx {
        let add = grad.accumulate;
        for_rows!((grad.tensor.write::<T>(), h), 2 * h, |row, dx| {
            let (a, dy) = (c[row / streams * count + row % streams], &dy[row / streams * h..][..h]);
            for i in 0..h {
                let d = a * dy[i];
                dx[i] = if add { dx[i] + d } else { d };
            }
        });
    }
    if let Some(grad) = dc {
        for_rows!((grad.zeroed::<T>(), count), streams * h, |token, dc| {
            let dy = &dy[token * h..][..h];
            for s in 0..streams {
                let x = &x[(token * streams + s) * h..][..h];
                dc[s] += sum([x, dy], |[x, dy]| x * dy);
            }
        });
    }
}

/// The gain 1 + g of each token.
struct TokenGains<'a, T> {
    gain: Gain,
    group: usize,
    m: &'a [T],
}

impl<'a, T: Float> TokenGains<'a, T> {
    fn new((gain, m): (Gain, &'a Tensor), tokens: usize) -> Self {
        Self { gain, group: gain.group(tokens), m: m.read() }
    }

    /// g [H] of a token.
    #[inline(always)]
    fn of(&self, token: usize, h: usize) -> &[T] {
        &self.m[self.gain.start + token / self.group * self.gain.stride..][..h]
    }
}

/// R'_t = Σ_s P_st·R_s + β_t·w ∘ o.
pub(super) fn depth<T: Float>(
    x: &Tensor,
    c: &[T],
    branch: &[T],
    gain: Option<(Gain, &Tensor)>,
    out: &mut [T],
) {
    let (sizes, x) = (Sizes::of(x), x.read::<T>());
    let (Sizes { streams, width: h, .. }, [to_p, to_beta]) = (sizes, sizes.starts());
    let gains = gain.map(|gain| TokenGains::new(gain, sizes.tokens));
    for_rows!((out, h), (streams + 2) * h, |row, out| {
        let (token, t) = (row / streams, row % streams);
        let (c, branch) = (&c[token * sizes.coefficients()..], &branch[token * h..][..h]);
        let beta = c[to_beta + t];
        for i in 0..h {
            out[i] = beta * branch[i];
        }
        if let Some(gains) = &gains {
            let g = gains.of(token, h);
            for i in 0..h {
                out[i] *= T::ONE + g[i];
            }
        }
        for s in 0..streams {
            let (p, x) = (c[to_p + s * streams + t], &x[(token * streams + s) * h..][..h]);
            for i in 0..h {
                out[i] = p.mul_add(x[i], out[i]);
            }
        }
    });
}

pub(super) fn depth_backward<T: Float>(
    x: &Tensor,
    c: &[T],
    branch: &[T],
    gain: Option<(Gain, &Tensor)>,
    dy: &[T],
    [dx, dc, dbranch, dm]: [Option<&mut GradBuffer>; 4],
) {
    let (sizes, x) = (Sizes::of(x), x.read::<T>());
    let (Sizes { streams, width: h, .. }, [to_p, to_beta]) = (sizes, sizes.starts());
    let count = sizes.coefficients();
    // d (+)= Σ_t weights_t·dy_t.
    type Weight<'a, T> = &'a (dyn Fn(usize, usize) -> T + Sync);
    let mix = |d: &mut [T], add: bool, rows: usize, weight: Weight<T>| {
        for_rows!((d, h), (streams + 1) * h, |row, d| {
            if !add {
                d.fill(T::ZERO);
            }
            let weights: [T; MOST_STREAMS] =
                std::array::from_fn(|t| if t < streams { weight(row, t) } else { T::ZERO });
            for t in 0..streams {
                let dy = &dy[(row / rows * streams + t) * h..][..h];
                for i in 0..h {
                    d[i] = weights[t].mul_add(dy[i], d[i]);
                }
            }
        });
    };
    if let Some(grad) = dx {
        let (add, d) = (grad.accumulate, grad.tensor.write());
        mix(d, add, streams, &|row, t| {
            c[row / streams * count + to_p + row % streams * streams + t]
        });
    }
    let beta = |token: usize, t: usize| c[token * count + to_beta + t];
    let gains = gain.map(|gain| TokenGains::new(gain, sizes.tokens));
    match &gains {
        Some(gains) if dbranch.is_some() || dm.is_some() => {
            // The gradient of w ∘ o.
            let mut gated = Scratch::uninit(sizes.tokens * h);
            mix(&mut gated, false, 1, &beta);
            residual::cpu::backward(gains.gain, [branch, gains.m, &gated], h, [dbranch, dm]);
        }
        Some(_) => {}
        None => {
            if let Some(grad) = dbranch {
                let (add, d) = (grad.accumulate, grad.tensor.write());
                mix(d, add, 1, &beta);
            }
        }
    }
    if let Some(grad) = dc {
        for_rows!((grad.zeroed::<T>(), count), streams * (streams + 1) * h, |token, dc| {
            let branch = &branch[token * h..][..h];
            for t in 0..streams {
                let dy = &dy[(token * streams + t) * h..][..h];
                dc[to_beta + t] += match &gains {
                    Some(gains) => {
                        let g = gains.of(token, h);
                        sum([branch, dy, g], |[o, dy, g]| (T::ONE + g) * o * dy)
                    }
                    None => sum([branch, dy], |[o, dy]| o * dy),
                };
                for s in 0..streams {
                    let x = &x[(token * streams + s) * h..][..h];
                    dc[to_p + s * streams + t] += sum([x, dy], |[x, dy]| x * dy);
                }
            }
        });
    }
}
