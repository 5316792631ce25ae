//! Bootstrap intervals.

use crate::score::quantile;
use rayon::prelude::*;
use tensor::random::{Philox, Purpose};

/// Number of bootstrap resamples.
const RESAMPLES: u64 = 1000;

/// A stratum of the bootstrap: clusters are drawn from it independently of the other strata, and the samples of a
/// cluster are drawn together.
#[derive(Clone, Copy, Debug)]
pub struct Stratum {
    /// Key of its random numbers.
    pub number: u64,
    /// Number of clusters.
    pub clusters: usize,
}

/// Bootstrap (Efron 1979): what `of` computes from each of [`RESAMPLES`] resamples. A resample draws as many clusters
/// as there are, with replacement, from every stratum; `of` takes the drawn clusters by stratum. The random numbers are
/// a function of stratum, resample and draw.
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

/// The 95 % confidence interval of a value from its values in the resamples of [`bootstrap`], by the percentile method.
pub fn interval(resampled: impl Iterator<Item = f64>) -> [f64; 2] {
    let resampled: Vec<f64> = resampled.collect();
    [0.025, 0.975].map(|q| quantile(resampled.clone(), q))
}

#[cfg(test)]
mod tests {
    use super::*;

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
