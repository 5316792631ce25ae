//! Vectors from texts: ridge regression on the counts of tokens and pairs of tokens.
//!
//! Minimises Σ |y - W·x - b|² + λ·|W|² (Hoerl and Kennard 1970). Without the means, which give b, the solution is W =
//! (XᵀX + λI)⁻¹·XᵀY or, with fewer records than features, the equal Xᵀ·(XXᵀ + λI)⁻¹·Y. The system has as many unknowns as
//! there are features or records, whichever is less: at most 6144, for which matrix and factor take 600 MB.
//!
//! 20,000 texts with 4496 features take 7 seconds of CPU time for two values of λ and 64 dimensions, and at the limits,
//! with 6144 features and 1024 dimensions, 56 for all (AVX-512, 2.5 GHz).

use super::counts::Counts;
use crate::common::cholesky::Cholesky;
use crate::multimodal::metrics::paired_cosines;
use crate::text::baselines::features::Rows;
use rayon::prelude::*;
use unix::{Error, Result};

/// Candidate values of λ.
const PENALTIES: [f64; 5] = [0.1, 1.0, 10.0, 100.0, 1000.0];

/// What is counted in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextFeatures {
    /// The 2048 most frequent tokens of the training split.
    Tokens,
    /// Also pairs of neighbouring tokens, hashed into 4096 buckets.
    TokensAndBigrams,
}

/// A linear map from the counts in a text to a vector.
#[derive(Clone, Debug)]
pub struct TextRidge {
    counts: Counts,
    /// [features, dim].
    weights: Vec<f64>,
    /// [dim].
    bias: Vec<f64>,
    /// The λ that was chosen.
    pub penalty: f64,
}

impl TextRidge {
    /// Fits the map to training texts and their vectors [texts, dim], with the λ that has the highest mean cosine on the
    /// validation texts. Vectors should be standardised: scales change no prediction, but the cosines. Values of λ are
    /// tried in ascending order until one is worse than the best so far.
    ///
    /// Errors: 65 without training texts, or if the vectors are not finite.
    pub fn fit<T: AsRef<[i32]> + Sync>(
        features: TextFeatures,
        dim: usize,
        train: (&[T], &[f32]),
        validation: (&[T], &[f32]),
    ) -> Result<Self> {
        let counts = Counts::fit(train.0, features == TextFeatures::TokensAndBigrams);
        let rows = counts.of(train.0);
        let by_feature = rows.transposed();
        let (mean_y, y) = centred(train.1, dim)?;
        let n = rows.len() as f64;
        let sum = |feature: usize| -> f64 {
            by_feature.row(feature).iter().map(|(_, x)| f64::from(*x)).sum()
        };
        let mean_x: Vec<f64> = (0..rows.width).map(|feature| sum(feature) / n).collect();
        let dual = rows.len() < rows.width;
        let equations = if dual {
            // The inner products of x - mean.
            let with_mean = times(&rows, &mean_x, 1);
            let of_mean: f64 = mean_x.iter().map(|x| x * x).sum();
            let shift = |i: usize, j: usize| of_mean - with_mean[i] - with_mean[j];
            Equations { matrix: product(&rows, &by_feature, shift), right: y, outputs: dim }
        } else {
            let shift = |i: usize, j: usize| -n * mean_x[i] * mean_x[j];
            let right = times(&by_feature, &y, dim);
            Equations { matrix: product(&by_feature, &rows, shift), right, outputs: dim }
        };
        let fit = |penalty: f64| {
            let solution = equations.solve(penalty)?;
            // Solutions of the dual sum to 0, so the mean of x adds nothing.
            let weights = if dual { times(&by_feature, &solution, dim) } else { solution };
            let bias = bias(&weights, &mean_x, &mean_y);
            Some(Self { counts: counts.clone(), weights, bias, penalty })
        };
        let rows = counts.of(validation.0);
        choose(fit, |model| {
            let cosines = paired_cosines(&model.of_rows(&rows), validation.1, dim);
            cosines.iter().sum::<f64>() / cosines.len().max(1) as f64
        })
    }

    /// The vectors [texts, dim] of texts.
    pub fn predict<T: AsRef<[i32]> + Sync>(&self, texts: &[T]) -> Vec<f32> {
        self.of_rows(&self.counts.of(texts))
    }

    fn of_rows(&self, rows: &Rows) -> Vec<f32> {
        let mut found = times(rows, &self.weights, self.bias.len());
        add_bias(&mut found, &self.bias);
        found.iter().map(|y| *y as f32).collect()
    }
}

/// Normal equations without penalty.
pub(super) struct Equations {
    /// Symmetric; only the lower triangle is read.
    pub matrix: Vec<f64>,
    /// [unknowns, outputs].
    pub right: Vec<f64>,
    pub outputs: usize,
}

impl Equations {
    /// The solution [unknowns, outputs] with this λ; `None` if values are not finite.
    pub fn solve(&self, penalty: f64) -> Option<Vec<f64>> {
        let n = self.right.len() / self.outputs;
        let mut matrix = self.matrix.clone();
        (0..n).for_each(|i| matrix[i * n + i] += penalty);
        let mut solution = self.right.clone();
        Cholesky::factor(matrix, n)?.solve(&mut solution, self.outputs);
        Some(solution)
    }
}

/// The model of the λ with the highest score. Errors: 65 when a model cannot be fitted.
pub(super) fn choose<M>(fit: impl Fn(f64) -> Option<M>, score: impl Fn(&M) -> f64) -> Result<M> {
    let fit = |penalty| {
        fit(penalty).ok_or_else(|| {
            Error::data("a linear baseline cannot be fitted: vectors are not finite")
        })
    };
    let mut best = fit(PENALTIES[0])?;
    let mut most = score(&best);
    for penalty in &PENALTIES[1..] {
        let model = fit(*penalty)?;
        let own = score(&model);
        if own < most {
            break;
        }
        if own > most {
            (best, most) = (model, own);
        }
    }
    Ok(best)
}

/// The mean [width] of rows, and the rows without it. Errors: 65 without rows, or if values are not finite.
pub(super) fn centred(values: &[f32], width: usize) -> Result<(Vec<f64>, Vec<f64>)> {
    let mut mean = vec![0.0; width];
    for row in values.chunks_exact(width) {
        mean.iter_mut().zip(row).for_each(|(sum, x)| *sum += f64::from(*x));
    }
    let n = (values.len() / width) as f64;
    mean.iter_mut().for_each(|sum| *sum /= n);
    if !mean.iter().all(|x| x.is_finite()) {
        let text = "a linear baseline cannot be fitted: the training split is empty, or a vector is not finite";
        return Err(Error::data(text));
    }
    let rows = values.par_chunks_exact(width);
    let centred =
        rows.flat_map_iter(|row| row.iter().zip(&mean).map(|(x, mean)| f64::from(*x) - mean));
    let centred = centred.collect();
    Ok((mean, centred))
}

/// b = mean y - W·mean x, for W as [features, outputs].
pub(super) fn bias(weights: &[f64], mean_x: &[f64], mean_y: &[f64]) -> Vec<f64> {
    let mut bias = mean_y.to_vec();
    for (row, x) in weights.chunks_exact(mean_y.len()).zip(mean_x) {
        bias.iter_mut().zip(row).for_each(|(bias, w)| *bias -= w * x);
    }
    bias
}

/// Adds b to every row.
pub(super) fn add_bias(rows: &mut [f64], bias: &[f64]) {
    rows.par_chunks_exact_mut(bias.len()).for_each(|row| {
        row.iter_mut().zip(bias).for_each(|(y, bias)| *y += bias);
    });
}

/// The product [rows, m] of a sparse matrix and a dense one [columns, m].
fn times(rows: &Rows, dense: &[f64], m: usize) -> Vec<f64> {
    let mut out = vec![0.0; rows.len() * m];
    out.par_chunks_exact_mut(m).enumerate().for_each(|(row, out)| {
        for (column, x) in rows.row(row) {
            let dense = &dense[*column as usize * m..][..m];
            out.iter_mut().zip(dense).for_each(|(out, y)| *out += f64::from(*x) * y);
        }
    });
    out
}

/// The lower triangle of the product of a sparse matrix and its transpose, plus `shift` of row and column. Each row is
/// summed by one thread in the order of its entries.
fn product(rows: &Rows, transposed: &Rows, shift: impl Fn(usize, usize) -> f64 + Sync) -> Vec<f64> {
    let n = rows.len();
    let mut out = vec![0.0; n * n];
    out.par_chunks_exact_mut(n.max(1)).enumerate().for_each(|(i, out)| {
        out[..=i].iter_mut().enumerate().for_each(|(j, out)| *out = shift(i, j));
        for (k, x) in rows.row(i) {
            let others = transposed.row(*k as usize).iter();
            for (j, y) in others.take_while(|(j, _)| *j as usize <= i) {
                out[*j as usize] += f64::from(x * y);
            }
        }
    });
    out
}
