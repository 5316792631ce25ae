use super::mixing::Mixing;
use super::{Coefficients, LEAST, MOST_STREAMS, Sizes};
use crate::dtype::Float;
use crate::op::{GradBuffer, Grads, Saved};
use crate::parallel::{reduce, rows_per_block};
use crate::simd::sum;
use crate::{Scratch, Tensor, for_rows, vectorize};

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

/// R'_t = Σ_s P_st·R_s + β_t·o.
pub(super) fn depth<T: Float>(x: &Tensor, c: &[T], branch: &[T], out: &mut [T]) {
    let (sizes, x) = (Sizes::of(x), x.read::<T>());
    let (Sizes { streams, width: h, .. }, [to_p, to_beta]) = (sizes, sizes.starts());
    for_rows!((out, h), (streams + 2) * h, |row, out| {
        let (token, t) = (row / streams, row % streams);
        let (c, branch) = (&c[token * sizes.coefficients()..], &branch[token * h..][..h]);
        for i in 0..h {
            out[i] = c[to_beta + t] * branch[i];
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
    dy: &[T],
    [dx, dc, dbranch]: [Option<&mut GradBuffer>; 3],
) {
    let (sizes, x) = (Sizes::of(x), x.read::<T>());
    let (Sizes { streams, width: h, .. }, [to_p, to_beta]) = (sizes, sizes.starts());
    let count = sizes.coefficients();
    // d (+)= Σ_t weights_t·dy_t.
    let mix = |grad: &mut GradBuffer, rows: usize, weight: &(dyn Fn(usize, usize) -> T + Sync)| {
        let add = grad.accumulate;
        for_rows!((grad.tensor.write::<T>(), h), (streams + 1) * h, |row, d| {
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
        mix(grad, streams, &|row, t| c[row / streams * count + to_p + row % streams * streams + t]);
    }
    if let Some(grad) = dbranch {
        mix(grad, 1, &|token, t| c[token * count + to_beta + t]);
    }
    if let Some(grad) = dc {
        for_rows!((grad.zeroed::<T>(), count), streams * (streams + 1) * h, |token, dc| {
            let branch = &branch[token * h..][..h];
            for t in 0..streams {
                let dy = &dy[(token * streams + t) * h..][..h];
                dc[to_beta + t] += sum([branch, dy], |[o, dy]| o * dy);
                for s in 0..streams {
                    let x = &x[(token * streams + s) * h..][..h];
                    dc[to_p + s * streams + t] += sum([x, dy], |[x, dy]| x * dy);
                }
            }
        });
    }
}
