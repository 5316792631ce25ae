//! Statistics of evaluations: means and quantiles that no single sample dominates, rank correlation, and bootstrap
//! intervals.

use learn::score::quantile;
use rayon::prelude::*;
use tensor::random::{Philox, Purpose};

/// Number of bootstrap resamples.
const RESAMPLES: u64 = 1000;

/// exp of the mean logarithm; 0 if a value is 0.
pub fn geometric_mean(values: &[f64]) -> f64 {
    (values.iter().map(|value| value.ln()).sum::<f64>() / values.len() as f64).exp()
}

/// Spearman's rank correlation: Pearson's correlation of the ranks, where equal values share their mean rank. NaN if
/// all values of a list are equal, or one is NaN.
pub fn rank_correlation(a: &[f64], b: &[f64]) -> f64 {
    if a.iter().chain(b).any(|value| value.is_nan()) {
        return f64::NAN;
    }
    let middle = (a.len() as f64 - 1.0) / 2.0;
    let centred = |values| ranks(values).into_iter().map(|rank| rank - middle).collect();
    let (a, b): (Vec<f64>, Vec<f64>) = (centred(a), centred(b));
    let product = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    product(&a, &b) / (product(&a, &a) * product(&b, &b)).sqrt()
}

/// Ranks from 0.
fn ranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|i, j| values[*i].total_cmp(&values[*j]));
    let mut ranks = vec![0.0; values.len()];
    let mut first = 0;
    for equal in order.chunk_by(|i, j| values[*i] == values[*j]) {
        let rank = first as f64 + (equal.len() - 1) as f64 / 2.0;
        equal.iter().for_each(|i| ranks[*i] = rank);
        first += equal.len();
    }
    ranks
}

/// Clusters of samples that are resampled as a whole.
#[derive(Clone, Copy, Debug)]
pub struct Stratum {
    /// Key of its random numbers.
    pub number: u64,
    /// Number of clusters.
    pub clusters: usize,
}

/// Bootstrap (Efron 1979): what `of` computes from each of [`RESAMPLES`] resamples. A resample draws as many clusters as
/// there are, with replacement, from every stratum; `of` takes the drawn clusters by stratum. The random numbers are a
/// function of stratum, resample and draw.
pub fn bootstrap<T: Send>(strata: &[Stratum], of: impl Fn(&[Vec<usize>]) -> T + Sync) -> Vec<T> {
    let random = Philox::new(0, Purpose::Bootstrap);
    let resample = |resample: u64| {
        let drawn = |stratum: &Stratum| {
            let (random, count) = (random.at_source(stratum.number), stratum.clusters as u64);
            (0..count).map(|draw| random.below(resample, draw, count) as usize).collect()
        };
        of(&strata.iter().map(drawn).collect::<Vec<_>>())
    };
    (0..RESAMPLES).into_par_iter().map(resample).collect()
}

/// Bounds of the 95 % interval of a value, from its values in the resamples of [`bootstrap`]: the percentile method.
pub fn interval(resampled: impl Iterator<Item = f64>) -> [f64; 2] {
    let resampled: Vec<f64> = resampled.collect();
    [0.025, 0.975].map(|q| quantile(resampled.clone(), q))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_and_means_are_those_of_numpy() {
        // numpy.quantile([3, 1, 2, 10], [0, 0.5, 0.95, 1]), scipy.stats.gmean([1, 2, 4]).
        let at = |q| quantile(vec![3.0, 1.0, 2.0, 10.0], q);
        assert_eq!([at(0.0), at(0.5), at(1.0)], [1.0, 2.5, 10.0]);
        assert!((at(0.95) - 8.95).abs() < 1e-12);
        assert_eq!(quantile(vec![1.0, f64::INFINITY], 1.0), f64::INFINITY);
        assert!((geometric_mean(&[1.0, 2.0, 4.0]) - 2.0).abs() < 1e-15);
        assert_eq!(geometric_mean(&[0.0, 2.0]), 0.0);
    }

    #[test]
    fn rank_correlations_are_those_of_scipy() {
        // scipy.stats.spearmanr([1, 2, 3, 4, 5], [5, 6, 7, 8, 7]): 0.8207826816681233, with a tie.
        let found = rank_correlation(&[1.0, 2.0, 3.0, 4.0, 5.0], &[5.0, 6.0, 7.0, 8.0, 7.0]);
        assert!((found - 0.8207826816681233).abs() < 1e-12, "{found}");
        let x: Vec<f64> = (0..9).map(f64::from).collect();
        let cubes: Vec<f64> = x.iter().map(|x| -x * x * x).collect();
        assert!((rank_correlation(&x, &cubes) + 1.0).abs() < 1e-12);
        assert!(rank_correlation(&x, &[1.0; 9]).is_nan());
    }

    /// The interval of a mean of n values is ±1.96 standard errors, √(s²/n) with the population variance s²; the
    /// quantiles of 1000 resamples scatter by 4 % of its width (standard deviation).
    #[test]
    fn the_interval_of_a_mean_is_that_of_its_standard_error() {
        let n = 400;
        let random = Philox::new(test_support::seed(), Purpose::Test);
        let values: Vec<f64> = (0..n).map(|i| f64::from(random.normal(0, i))).collect();
        let mean = values.iter().sum::<f64>() / n as f64;
        let variance = values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n as f64;
        let error = (variance / n as f64).sqrt();
        // Two strata of half the clusters each have nearly the same interval as one.
        for clusters in [n as usize, n as usize / 2] {
            let strata = values.chunks(clusters).zip(0..);
            let strata: Vec<Stratum> =
                strata.map(|(own, number)| Stratum { number, clusters: own.len() }).collect();
            let means = bootstrap(&strata, |draws| {
                let all = values.chunks(clusters).zip(draws);
                let drawn = all.flat_map(|(own, draws)| draws.iter().map(|i| own[*i]));
                drawn.sum::<f64>() / n as f64
            });
            let [low, high] = interval(means.into_iter());
            assert!(((mean - low) / error - 1.96).abs() < 0.35, "{low} {mean} {error}");
            assert!(((high - mean) / error - 1.96).abs() < 0.35, "{high} {mean} {error}");
        }
        // A single cluster has no spread.
        let single = bootstrap(&[Stratum { number: 0, clusters: 1 }], |draws| draws[0][0]);
        assert!(single.iter().all(|drawn| *drawn == 0));
    }
}
