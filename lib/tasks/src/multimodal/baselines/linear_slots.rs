//! Slots of a meaning from its vector: one linear classifier per slot, by ridge regression on one-hot targets.

use super::ridge::{Equations, add_bias, bias, centred, choose};
use rayon::prelude::*;
use tensor::product::{View, product};
use unix::Result;

/// Number of rows of a product that are computed at once.
const BLOCK: usize = 64;

/// A linear map from a vector to a score for every value of `N` slots. The value with the highest score is predicted.
#[derive(Clone, Debug)]
pub struct LinearSlots<const N: usize> {
    dim: usize,
    /// The number of values of each slot.
    values: [usize; N],
    /// [dim, values of all slots].
    weights: Vec<f64>,
    bias: Vec<f64>,
    /// The λ that was chosen.
    pub penalty: f64,
}

impl<const N: usize> LinearSlots<N> {
    /// Fits the map to training vectors [records, dim] and their slots, with the λ that has the most correct slots on
    /// the validation vectors. It never predicts a value above the largest one of a slot in the training split.
    ///
    /// Errors: 65 without training vectors, or if they are not finite.
    pub fn fit(
        dim: usize,
        train: (&[f32], &[[u8; N]]),
        validation: (&[f32], &[[u8; N]]),
    ) -> Result<Self> {
        let largest = |slot: usize| train.1.iter().map(|slots| slots[slot]).max().unwrap_or(0);
        let values: [usize; N] = std::array::from_fn(|slot| usize::from(largest(slot)) + 1);
        let outputs: usize = values.iter().sum();
        let mut targets = vec![0.0; train.1.len() * outputs];
        for (row, slots) in targets.chunks_exact_mut(outputs).zip(train.1) {
            let mut first = 0;
            for (slot, values) in slots.iter().zip(&values) {
                row[first + usize::from(*slot)] = 1.0;
                first += values;
            }
        }
        let (mean_x, x) = centred(train.0, dim)?;
        let (mean_y, y) = centred(&targets, outputs)?;
        let equations = Equations {
            matrix: inner(&x, &x, dim, dim),
            right: inner(&x, &y, dim, outputs),
            outputs,
        };
        let fit = |penalty: f64| {
            let weights = equations.solve(penalty)?;
            let bias = bias(&weights, &mean_x, &mean_y);
            Some(Self { dim, values, weights, bias, penalty })
        };
        choose(fit, |model| {
            let pairs = model.predict(validation.0).into_iter().zip(validation.1);
            let correct =
                pairs.flat_map(|(own, truth)| (0..N).filter(move |i| own[*i] == truth[*i]));
            correct.count() as f64
        })
    }

    /// The slots of vectors [records, dim]; of equal scores the first value.
    pub fn predict(&self, vectors: &[f32]) -> Vec<[u8; N]> {
        let outputs = self.bias.len();
        let block = |rows: &[f32]| {
            let x: Vec<f64> = rows.iter().map(|x| f64::from(*x)).collect();
            let n = x.len() / self.dim;
            let mut scores = vec![0.0; n * outputs];
            let (x, w) = (View::new(&x, n, self.dim, self.dim), &self.weights);
            product(&mut scores, outputs, false, 1.0, x, View::new(w, self.dim, outputs, outputs));
            add_bias(&mut scores, &self.bias);
            scores.chunks_exact(outputs).map(|row| self.best(row)).collect::<Vec<_>>()
        };
        vectors.par_chunks(BLOCK * self.dim).flat_map_iter(block).collect()
    }

    /// The value of each slot with the highest score.
    fn best(&self, scores: &[f64]) -> [u8; N] {
        let mut rest = scores;
        self.values.map(|values| {
            let (own, others) = rest.split_at(values);
            rest = others;
            (1..values).fold(0, |best, value| if own[value] > own[best] { value } else { best })
                as u8
        })
    }
}

/// The product aᵀ·b [p, q] of a [n, p] and b [n, q].
fn inner(a: &[f64], b: &[f64], p: usize, q: usize) -> Vec<f64> {
    let n = a.len() / p;
    let mut out = vec![0.0; p * q];
    out.par_chunks_mut(BLOCK * q).enumerate().for_each(|(block, out)| {
        let a = View::new(&a[block * BLOCK..], n, out.len() / q, p).transposed();
        product(out, q, false, 1.0, a, View::new(b, n, q, q));
    });
    out
}
