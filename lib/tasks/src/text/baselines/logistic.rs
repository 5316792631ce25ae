//! Logistic regression on sparse vectors, multinomial or one binary model per label, with an L2 penalty.

use super::Targets;
use super::features::Rows;
use rayon::prelude::*;

/// Maximum number of Newton steps, and of conjugate gradient steps within each.
const STEPS: usize = 50;
const INNER_STEPS: usize = 200;
/// The fit ends when the norm of the gradient has fallen to this fraction of that at the start.
const TOLERANCE: f64 = 1e-4;
/// Elements or rows per partial sum, so that sums do not depend on the number of threads.
const BLOCK: usize = 4096;

/// Fitted weights. As in scikit-learn's `LogisticRegression`, two classes share one column, the log odds of class 1;
/// with more classes, or with labels, each has its own.
#[derive(Clone, Debug)]
pub struct Logistic {
    link: Link,
    /// Number of columns of `weights`: classes or labels.
    columns: usize,
    /// [features + 1, columns]; the last row is the intercept, without penalty.
    weights: Vec<f32>,
}

/// How the linear functions become probabilities.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Link {
    /// Two classes: class 1 has the probability σ(z), class 0 the rest.
    Binary,
    Softmax,
    /// Independent labels.
    Sigmoid,
}

/// A problem: minimise the mean log loss plus penalty/2·|w|² over the weights.
pub struct Problem<'a> {
    rows: &'a Rows,
    /// The same matrix, by feature.
    by_feature: Rows,
    targets: &'a Targets<'a>,
}

impl Logistic {
    /// Probabilities [rows, classes or labels].
    pub fn predict(&self, rows: &Rows) -> Vec<f64> {
        let of_row = |at: usize| {
            let mut z = vec![0.0; self.columns];
            linear(&self.weights, rows.row(at), &mut z);
            let p = z.iter_mut().map(|z| f64::from(*z));
            match self.link {
                Link::Sigmoid => p.map(sigmoid).collect(),
                Link::Binary => p.flat_map(|z| [sigmoid(-z), sigmoid(z)]).collect(),
                Link::Softmax => softmax(&p.collect::<Vec<_>>()).0,
            }
        };
        (0..rows.len()).into_par_iter().flat_map_iter(of_row).collect()
    }
}

impl<'a> Problem<'a> {
    /// The problem of these rows and their targets.
    pub fn new(rows: &'a Rows, targets: &'a Targets<'a>) -> Self {
        Self { rows, by_feature: rows.transposed(), targets }
    }

    /// The model with all weights 0.
    pub fn start(&self) -> Logistic {
        let (link, columns) = match self.targets {
            Targets::Classes { classes: 2, .. } => (Link::Binary, 1),
            Targets::Classes { classes, .. } => (Link::Softmax, *classes),
            Targets::Labels { labels, .. } => (Link::Sigmoid, *labels),
        };
        Logistic { link, columns, weights: vec![0.0; (self.rows.width + 1) * columns] }
    }

    /// Minimises the sum of the log losses plus |w|²/(2·strength), from the weights of `model`: Newton's method, with
    /// steps by conjugate gradients that get more exact towards the minimum (Nocedal and Wright, Numerical Optimization,
    /// algorithm 7.1), and backtracking.
    pub fn fit(&self, model: &mut Logistic, strength: f64) {
        let penalty = 1.0 / (strength * self.rows.len().max(1) as f64);
        let first = norm(&self.evaluate(&self.start(), penalty).gradient);
        let mut at = self.evaluate(model, penalty);
        for _ in 0..STEPS {
            let distance = norm(&at.gradient);
            if distance <= TOLERANCE * first {
                break;
            }
            let direction =
                self.newton_step(model, &at, penalty, (distance / first).sqrt().min(0.5));
            let slope = dot(&direction, &at.gradient);
            let old = model.weights.clone();
            let mut size = 1.0;
            let next = loop {
                let step = size as f32;
                let moved = model.weights.par_iter_mut().zip(&old).zip(&direction);
                moved.for_each(|((w, old), d)| *w = old + step * d);
                let next = self.evaluate(model, penalty);
                if next.value <= at.value + 1e-4 * size * slope {
                    break Some(next);
                }
                size *= 0.5;
                if size < 1e-10 {
                    break None;
                }
            };
            let Some(next) = next else {
                // No step of any size helps within the precision of f32.
                model.weights = old;
                break;
            };
            at = next;
        }
    }

    /// The solution d of H·d = -gradient by conjugate gradients, to a residual of `tolerance` times the gradient.
    fn newton_step(&self, model: &Logistic, at: &Point, penalty: f64, tolerance: f64) -> Vec<f32> {
        let mut step = vec![0.0; at.gradient.len()];
        let mut rest: Vec<f32> = at.gradient.par_iter().map(|g| -g).collect();
        let mut direction = rest.clone();
        let mut squares = dot(&rest, &rest);
        let enough = tolerance * tolerance * squares;
        for _ in 0..INNER_STEPS {
            let curved = self.curvature(model, at, &direction, penalty);
            let curvature = dot(&direction, &curved);
            if curvature <= 0.0 {
                // Only by rounding: the loss is convex.
                break;
            }
            let size = (squares / curvature) as f32;
            step.par_iter_mut().zip(&direction).for_each(|(s, d)| *s += size * d);
            rest.par_iter_mut().zip(&curved).for_each(|(r, c)| *r -= size * c);
            let next = dot(&rest, &rest);
            if next <= enough {
                break;
            }
            let factor = (next / squares) as f32;
            direction.par_iter_mut().zip(&rest).for_each(|(d, r)| *d = r + factor * *d);
            squares = next;
        }
        step
    }

    /// Mean loss plus penalty, and its gradient.
    fn evaluate(&self, model: &Logistic, penalty: f64) -> Point {
        let (mut residuals, losses) =
            self.of_texts(&model.weights, model.columns, |text, z| self.loss(model.link, text, z));
        let features = self.rows.width * model.columns;
        let squares = dot(&model.weights[..features], &model.weights[..features]);
        let value = losses / self.rows.len().max(1) as f64 + 0.5 * penalty * squares;
        let gradient = self.backward(&residuals, &model.weights, model.columns, penalty);
        residuals.par_chunks_mut(model.columns).enumerate().for_each(|(text, residuals)| {
            for (column, r) in residuals.iter_mut().enumerate() {
                *r += f32::from(self.truth(model.link, text, column));
            }
        });
        Point { value, gradient, probabilities: residuals }
    }

    /// The product of the Hessian with `direction`.
    fn curvature(&self, model: &Logistic, at: &Point, direction: &[f32], penalty: f64) -> Vec<f32> {
        let columns = model.columns;
        let (scores, _) = self.of_texts(direction, columns, |text, z| {
            let p = &at.probabilities[text * columns..][..columns];
            if model.link == Link::Softmax {
                let mean: f32 = p.iter().zip(&*z).map(|(p, z)| p * z).sum();
                z.iter_mut().zip(p).for_each(|(z, p)| *z = p * (*z - mean));
            } else {
                z.iter_mut().zip(p).for_each(|(z, p)| *z *= p * (1.0 - p));
            }
            0.0
        });
        self.backward(&scores, direction, columns, penalty)
    }

    /// The linear scores of all texts, which `each` replaces, and the sum of what it returns.
    fn of_texts(
        &self,
        weights: &[f32],
        columns: usize,
        each: impl Fn(usize, &mut [f32]) -> f64 + Sync,
    ) -> (Vec<f32>, f64) {
        let mut scores = vec![0.0_f32; self.rows.len() * columns];
        let blocks = scores.par_chunks_mut(BLOCK * columns).enumerate();
        let sums: Vec<f64> = blocks
            .map(|(block, scores)| {
                let rows = scores.chunks_exact_mut(columns).zip(block * BLOCK..);
                rows.map(|(z, text)| {
                    linear(weights, self.rows.row(text), z);
                    each(text, z)
                })
                .sum()
            })
            .collect();
        (scores, sums.iter().sum())
    }

    /// The mean over texts of x·scoresᵀ, plus penalty·weights.
    fn backward(&self, scores: &[f32], weights: &[f32], columns: usize, penalty: f64) -> Vec<f32> {
        let n = self.rows.len().max(1) as f64;
        let scale = 1.0 / n as f32;
        let mut gradient = vec![0.0; weights.len()];
        let of_feature = |(feature, (out, weights)): (usize, (&mut [f32], &[f32]))| {
            for (text, x) in self.by_feature.row(feature) {
                let scores = &scores[*text as usize * columns..][..columns];
                out.iter_mut().zip(scores).for_each(|(out, s)| *out += x * s);
            }
            out.iter_mut().zip(weights).for_each(|(g, w)| *g = *g * scale + penalty as f32 * w);
        };
        let (of_features, intercept) = gradient.split_at_mut(self.rows.width * columns);
        let weights = weights.par_chunks_exact(columns);
        of_features.par_chunks_exact_mut(columns).zip(weights).enumerate().for_each(of_feature);
        for (column, out) in intercept.iter_mut().enumerate() {
            let own = scores.iter().skip(column).step_by(columns);
            *out = (own.map(|s| f64::from(*s)).sum::<f64>() / n) as f32;
        }
        gradient
    }

    /// Whether the class or label of a column is true of a text.
    fn truth(&self, link: Link, text: usize, column: usize) -> bool {
        self.targets.has(text, column + usize::from(link == Link::Binary))
    }

    /// The log loss of a text, given its linear scores `z`, which are overwritten with p - y.
    fn loss(&self, link: Link, text: usize, z: &mut [f32]) -> f64 {
        let mut sum = 0.0;
        if link == Link::Softmax {
            let (p, total) = softmax(&z.iter().map(|z| f64::from(*z)).collect::<Vec<_>>());
            for (class, (z, p)) in z.iter_mut().zip(p).enumerate() {
                let truth = self.truth(link, text, class);
                sum += if truth { total - f64::from(*z) } else { 0.0 };
                *z = (p - f64::from(truth)) as f32;
            }
            return sum;
        }
        for (at, z) in z.iter_mut().enumerate() {
            let truth = self.truth(link, text, at);
            let value = f64::from(*z);
            // ln(1 + exp(-z)) for what is true, ln(1 + exp(z)) otherwise.
            let wrong = if truth { -value } else { value };
            sum += wrong.max(0.0) + (-wrong.abs()).exp().ln_1p();
            *z = (sigmoid(value) - f64::from(truth)) as f32;
        }
        sum
    }
}

/// The loss at some weights.
struct Point {
    value: f64,
    gradient: Vec<f32>,
    /// [texts, columns].
    probabilities: Vec<f32>,
}

/// w·x + b, for `weights` of [features + 1, columns].
fn linear(weights: &[f32], row: &[(u32, f32)], z: &mut [f32]) {
    let columns = z.len();
    z.copy_from_slice(&weights[weights.len() - columns..]);
    for (feature, x) in row {
        let weights = &weights[*feature as usize * columns..][..columns];
        z.iter_mut().zip(weights).for_each(|(z, w)| *z += x * w);
    }
}

fn sigmoid(z: f64) -> f64 {
    1.0 / (1.0 + (-z).exp())
}

/// Softmax, and ln Σ exp z.
fn softmax(z: &[f64]) -> (Vec<f64>, f64) {
    let largest = z.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let exp: Vec<f64> = z.iter().map(|z| (z - largest).exp()).collect();
    let total: f64 = exp.iter().sum();
    (exp.iter().map(|e| e / total).collect(), largest + total.ln())
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    let block = |(a, b): (&[f32], &[f32])| -> f64 {
        a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
    };
    a.par_chunks(BLOCK).zip(b.par_chunks(BLOCK)).map(block).collect::<Vec<_>>().iter().sum()
}

fn norm(a: &[f32]) -> f64 {
    dot(a, a).sqrt()
}
