//! Logistic regression on sparse vectors, multinomial or one binary model per label, with an L2 penalty.

use super::Targets;
use super::features::Rows;
use rayon::prelude::*;
use std::collections::VecDeque;

/// Updates that L-BFGS remembers.
const MEMORY: usize = 6;
/// Maximum number of iterations.
const ITERATIONS: usize = 200;
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
            self.linear(rows.row(at), &mut z);
            let p = z.iter_mut().map(|z| f64::from(*z));
            match self.link {
                Link::Sigmoid => p.map(sigmoid).collect(),
                Link::Binary => p.flat_map(|z| [sigmoid(-z), sigmoid(z)]).collect(),
                Link::Softmax => softmax(&p.collect::<Vec<_>>()).0,
            }
        };
        (0..rows.len()).into_par_iter().flat_map_iter(of_row).collect()
    }

    /// w·x + b.
    fn linear(&self, row: &[(u32, f32)], z: &mut [f32]) {
        let features = self.weights.len() / self.columns - 1;
        z.copy_from_slice(&self.weights[features * self.columns..]);
        for (feature, x) in row {
            let weights = &self.weights[*feature as usize * self.columns..][..self.columns];
            z.iter_mut().zip(weights).for_each(|(z, w)| *z += x * w);
        }
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

    /// Minimises the sum of the log losses plus |w|²/(2·strength), from the weights of `model`: L-BFGS (Nocedal 1980)
    /// with backtracking.
    pub fn fit(&self, model: &mut Logistic, strength: f64) {
        let penalty = 1.0 / (strength * self.rows.len().max(1) as f64);
        let (mut value, mut gradient) = self.evaluate(model, penalty);
        let first = norm(&self.evaluate(&self.start(), penalty).1);
        let mut memory: VecDeque<CurvaturePair> = VecDeque::new();
        for _ in 0..ITERATIONS {
            if norm(&gradient) <= TOLERANCE * first {
                break;
            }
            let direction = direction(&gradient, &memory);
            let slope = dot(&direction, &gradient);
            // The first step is of length 1; later ones have the scale of the curvature.
            let mut size = if memory.is_empty() { 1.0 / norm(&gradient) } else { 1.0 };
            let old = model.weights.clone();
            let next = loop {
                let step = size as f32;
                let moved = model.weights.par_iter_mut().zip(&old).zip(&direction);
                moved.for_each(|((w, old), d)| *w = old + step * d);
                let next = self.evaluate(model, penalty);
                if next.0 <= value + 1e-4 * size * slope {
                    break Some(next);
                }
                size *= 0.5;
                if size < 1e-10 {
                    break None;
                }
            };
            let Some((next, next_gradient)) = next else {
                // No step of any size helps within the precision of f32.
                model.weights = old;
                break;
            };
            let s = difference(&model.weights, &old);
            let y = difference(&next_gradient, &gradient);
            let curvature = dot(&s, &y);
            if curvature > 0.0 {
                memory.truncate(MEMORY - 1);
                memory.push_front(CurvaturePair {
                    scale: curvature / dot(&y, &y),
                    curvature,
                    s,
                    y,
                });
            }
            (value, gradient) = (next, next_gradient);
        }
    }

    /// Mean loss plus penalty, and its gradient.
    fn evaluate(&self, model: &Logistic, penalty: f64) -> (f64, Vec<f32>) {
        let (columns, texts) = (model.columns, self.rows.len());
        let mut residuals = vec![0.0_f32; texts * columns];
        let blocks = residuals.par_chunks_mut(BLOCK * columns).enumerate();
        let losses: Vec<f64> = blocks
            .map(|(block, residuals)| {
                let rows = residuals.chunks_exact_mut(columns).zip(block * BLOCK..);
                rows.map(|(z, text)| {
                    model.linear(self.rows.row(text), z);
                    self.loss(model.link, text, z)
                })
                .sum()
            })
            .collect();
        let features = self.rows.width * columns;
        let squares = dot(&model.weights[..features], &model.weights[..features]);
        let n = texts.max(1) as f64;
        let value = losses.iter().sum::<f64>() / n + 0.5 * penalty * squares;
        let mut gradient = vec![0.0; model.weights.len()];
        let scale = 1.0 / n as f32;
        let of_feature = |(feature, (out, weights)): (usize, (&mut [f32], &[f32]))| {
            for (text, x) in self.by_feature.row(feature) {
                let residuals = &residuals[*text as usize * columns..][..columns];
                out.iter_mut().zip(residuals).for_each(|(out, r)| *out += x * r);
            }
            out.iter_mut().zip(weights).for_each(|(g, w)| *g = *g * scale + penalty as f32 * w);
        };
        let (of_features, intercept) = gradient.split_at_mut(features);
        let weights = model.weights[..features].par_chunks_exact(columns);
        of_features.par_chunks_exact_mut(columns).zip(weights).enumerate().for_each(of_feature);
        for (column, out) in intercept.iter_mut().enumerate() {
            let own = residuals.iter().skip(column).step_by(columns);
            *out = (own.map(|r| f64::from(*r)).sum::<f64>() / n) as f32;
        }
        (value, gradient)
    }

    /// The log loss of a text, given its linear scores `z`, which are overwritten with p - y.
    fn loss(&self, link: Link, text: usize, z: &mut [f32]) -> f64 {
        let mut sum = 0.0;
        if link == Link::Softmax {
            let (p, total) = softmax(&z.iter().map(|z| f64::from(*z)).collect::<Vec<_>>());
            for (class, (z, p)) in z.iter_mut().zip(p).enumerate() {
                let truth = self.targets.has(text, class);
                sum += if truth { total - f64::from(*z) } else { 0.0 };
                *z = (p - f64::from(truth)) as f32;
            }
            return sum;
        }
        for (at, z) in z.iter_mut().enumerate() {
            let truth = self.targets.has(text, at + usize::from(link == Link::Binary));
            let value = f64::from(*z);
            // ln(1 + exp(-z)) for what is true, ln(1 + exp(z)) otherwise.
            let wrong = if truth { -value } else { value };
            sum += wrong.max(0.0) + (-wrong.abs()).exp().ln_1p();
            *z = (sigmoid(value) - f64::from(truth)) as f32;
        }
        sum
    }
}

/// An update that L-BFGS remembers: the change of the weights and of the gradient.
struct CurvaturePair {
    s: Vec<f32>,
    y: Vec<f32>,
    /// s·y.
    curvature: f64,
    /// (s·y)/(y·y).
    scale: f64,
}

/// The L-BFGS direction by the two-loop recursion; `memory` has the newest step first.
fn direction(gradient: &[f32], memory: &VecDeque<CurvaturePair>) -> Vec<f32> {
    let mut direction: Vec<f32> = gradient.par_iter().map(|g| -g).collect();
    let factors: Vec<f64> = memory
        .iter()
        .map(|step| {
            let factor = dot(&step.s, &direction) / step.curvature;
            add(&mut direction, -factor, &step.y);
            factor
        })
        .collect();
    if let Some(newest) = memory.front() {
        direction.par_iter_mut().for_each(|d| *d *= newest.scale as f32);
    }
    for (step, factor) in memory.iter().zip(factors).rev() {
        let back = dot(&step.y, &direction) / step.curvature;
        add(&mut direction, factor - back, &step.s);
    }
    direction
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

fn difference(a: &[f32], b: &[f32]) -> Vec<f32> {
    a.par_iter().zip(b).map(|(a, b)| a - b).collect()
}

fn add(to: &mut [f32], factor: f64, x: &[f32]) {
    to.par_iter_mut().zip(x).for_each(|(to, x)| *to += factor as f32 * x);
}
