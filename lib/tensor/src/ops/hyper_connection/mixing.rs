//! The coefficients of one token as a function of its features, on the CPU.

use super::{Form, ITERATIONS, LEAST, MOST_STREAMS, Sizes};
use crate::dtype::Float;
use crate::ops::activation::sigmoid;

type Matrix<T> = [[T; MOST_STREAMS]; MOST_STREAMS];

/// Parameters of the coefficients.
pub(super) struct Mixing<'a, T> {
    pub(super) form: Form,
    pub(super) sizes: Sizes,
    /// [S, S + 1].
    pub(super) alpha: &'a [T],
    /// [S].
    pub(super) beta: &'a [T],
    /// p, r, q.
    pub(super) scales: [T; 3],
}

/// A matrix after a half-step of the iteration, and whether the sum of each line counted as the least.
#[derive(Clone, Copy)]
struct HalfStep<T> {
    matrix: Matrix<T>,
    is_least: [bool; MOST_STREAMS],
}

/// The element of line `line`, a column in the first half of an iteration, at position `i`.
fn place(is_column: bool, line: usize, i: usize) -> (usize, usize) {
    if is_column { (i, line) } else { (line, i) }
}

/// A matrix of n rows and columns, the rest zero.
fn matrix<T: Float>(n: usize, element: impl Fn(usize, usize) -> T) -> Matrix<T> {
    let of = |s: usize, t: usize| if s.max(t) < n { element(s, t) } else { T::ZERO };
    std::array::from_fn(|s| std::array::from_fn(|t| of(s, t)))
}

/// Returns exp(logits - maximum of the column) and the result of every half-step.
fn sinkhorn<T: Float>(logits: &Matrix<T>, n: usize) -> [HalfStep<T>; 2 * ITERATIONS + 1] {
    let most = |t: usize| (1..n).fold(logits[0][t], |most, s| most.maximum(logits[s][t]));
    let mut matrix = matrix(n, |s, t| (logits[s][t] - most(t)).exp());
    let least = T::of(LEAST);
    let mut steps = [HalfStep { matrix, is_least: [false; MOST_STREAMS] }; 2 * ITERATIONS + 1];
    for (half, step) in steps[1..].iter_mut().enumerate() {
        for line in 0..n {
            let at = |i| place(half % 2 == 0, line, i);
            let sum = (0..n).map(at).fold(T::ZERO, |sum, (s, t)| sum + matrix[s][t]);
            step.is_least[line] = sum < least;
            (0..n).map(at).for_each(|(s, t)| matrix[s][t] = matrix[s][t] / sum.maximum(least));
        }
        step.matrix = matrix;
    }
    steps
}

/// Returns the gradient of the logits. With g the gradient of the logarithm of a matrix, a division of a line by its sum
/// subtracts y·Σg, where y is the line after it.
fn sinkhorn_backward<T: Float>(
    steps: &[HalfStep<T>; 2 * ITERATIONS + 1],
    d: impl Fn(usize, usize) -> T,
    n: usize,
) -> Matrix<T> {
    let mut g = matrix(n, |s, t| steps[2 * ITERATIONS].matrix[s][t] * d(s, t));
    for (half, step) in steps[1..].iter().enumerate().rev() {
        for line in (0..n).filter(|line| !step.is_least[*line]) {
            let at = |i| place(half % 2 == 0, line, i);
            let sum = (0..n).map(at).fold(T::ZERO, |sum, (s, t)| sum + g[s][t]);
            (0..n).map(at).for_each(|(s, t)| g[s][t] = g[s][t] - step.matrix[s][t] * sum);
        }
    }
    g
}

impl<T: Float> Mixing<'_, T> {
    /// The product j of stream s, z for j ≤ S and y for S + 1.
    fn product(&self, features: &[T], s: usize, j: usize) -> T {
        features[s * (self.sizes.streams + 3) + j]
    }

    /// Logits of P.
    fn logits(&self, features: &[T]) -> Matrix<T> {
        let n = self.sizes.streams;
        matrix(n, |s, t| {
            let z = self.product(features, s, t + 1);
            self.scales[1].mul_add(z, self.alpha[s * (n + 1) + t + 1])
        })
    }

    /// Computes the coefficients of a token.
    pub(super) fn forward(&self, features: &[T], out: &mut [T]) {
        let (n, [p, _, q], [to_p, to_beta]) =
            (self.sizes.streams, self.scales, self.sizes.starts());
        let two = T::of(2.0);
        for s in 0..n {
            let alpha = &self.alpha[s * (n + 1)..];
            let (z, y) = (self.product(features, s, 0), self.product(features, s, n + 1));
            (out[s], out[to_beta + s]) = match self.form {
                Form::Plain => (p.mul_add(z.tanh(), alpha[0]), q.mul_add(y.tanh(), self.beta[s])),
                Form::Manifold => {
                    (sigmoid(p.mul_add(z, alpha[0])), two * sigmoid(q.mul_add(y, self.beta[s])))
                }
            };
        }
        let steps = (self.form == Form::Manifold).then(|| sinkhorn(&self.logits(features), n));
        for s in 0..n {
            for t in 0..n {
                out[to_p + s * n + t] = match &steps {
                    Some(steps) => steps[2 * ITERATIONS].matrix[s][t],
                    None => {
                        let z = self.product(features, s, t + 1).tanh();
                        p.mul_add(z, self.alpha[s * (n + 1) + t + 1])
                    }
                };
            }
        }
    }

    /// Computes, for each stream of a token, the gradients of z and y times the factor c = √H/‖R_s‖, and by how much R_s
    /// counts in its own gradient [S, S + 3]; and the gradients of α, β⁰, p, r and q. `d` is the gradient of the
    /// coefficients.
    pub(super) fn backward(&self, features: &[T], d: &[T], out: &mut [T], sums: &mut [T]) {
        let (n, [to_p, to_beta]) = (self.sizes.streams, self.sizes.starts());
        let inverse = T::ONE / T::of(self.sizes.width as f64);
        let logits = (self.form == Form::Manifold).then(|| {
            let steps = sinkhorn(&self.logits(features), n);
            sinkhorn_backward(&steps, |s, t| d[to_p + s * n + t], n)
        });
        sums.fill(T::ZERO);
        let to_scales = n * (n + 2);
        for s in 0..n {
            let (c, mut own) = (self.product(features, s, n + 2), T::ZERO);
            for j in 0..n + 2 {
                let z = self.product(features, s, j);
                // Index of the scale, of the static term, and of the coefficient.
                let (scale, term, at) = match j {
                    0 => (0, s * (n + 1), s),
                    j if j <= n => (1, s * (n + 1) + j, to_p + s * n + j - 1),
                    _ => (2, n * (n + 1) + s, to_beta + s),
                };
                // The gradient of the static term, and what it and z contribute. σ(x)·σ(-x) is accurate where
                // 1 - σ(x) and 1 - tanh² would cancel.
                let (g, value, slope) = match (self.form, &logits) {
                    (Form::Plain, _) => {
                        let twice = z + z;
                        (d[at], z.tanh(), T::of(4.0) * sigmoid(twice) * sigmoid(-twice))
                    }
                    (Form::Manifold, Some(logits)) if scale == 1 => (logits[s][j - 1], z, T::ONE),
                    (Form::Manifold, _) => {
                        let terms = if scale == 0 { self.alpha[term] } else { self.beta[s] };
                        let x = self.scales[scale].mul_add(z, terms);
                        let factor = T::of(if scale == 0 { 1.0 } else { 2.0 });
                        (factor * d[at] * sigmoid(x) * sigmoid(-x), z, T::ONE)
                    }
                };
                sums[term] = g;
                sums[to_scales + scale] += g * value;
                let dz = self.scales[scale] * g * slope;
                out[s * (n + 3) + j] = c * dz;
                own = dz.mul_add(z, own);
            }
            out[s * (n + 3) + n + 2] = own * c * c * inverse;
        }
    }
}
