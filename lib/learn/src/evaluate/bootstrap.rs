//! Bootstrap confidence intervals.

use crate::score::quantile;
use rayon::prelude::*;
use tensor::random::{Philox, Purpose};

/// Number of bootstrap resamples.
const RESAMPLES: u64 = 1000;

/// A bootstrap stratum: clusters are drawn independently of other strata, and all samples of a cluster are drawn
/// together.
#[derive(Clone, Copy, Debug)]
pub struct Stratum {
    /// Key of the stratum's random numbers.
    pub number: u64,
    /// Number of clusters in the stratum.
    pub clusters: usize,
}

/// Bootstrap (Efron 1979): returns the value of the statistic `of` for each of [`RESAMPLES`] resamples. A resample
/// draws from every stratum, with replacement, as many clusters as it has; `of` takes the indices of the drawn clusters
/// by stratum. The random numbers depend only on stratum, resample and draw.
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

/// Returns the 95 % confidence interval of a statistic from its [`bootstrap`] values, by the percentile method.
pub fn interval(resampled: impl Iterator<Item = f64>) -> [f64; 2] {
    let resampled: Vec<f64> = resampled.collect();
    [0.025, 0.975].map(|q| quantile(resampled.clone(), q))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The confidence interval of the mean of n values is ±1.96 standard errors, √(s²/n) with the population variance
    /// s²; the quantiles of 1000 resamples scatter by 4 % of the interval width (standard deviation).
    #[test]
    fn the_interval_of_a_mean_is_that_of_its_standard_error() {
        let n = 400;
        let random = Philox::new(test_support::seed(), Purpose::Test);
        let values: Vec<f64> = (0..n).map(|i| f64::from(random.normal(0, i))).collect();
        let mean = values.iter().sum::<f64>() / n as f64;
        let variance = values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n as f64;
        let error = (variance / n as f64).sqrt();
        // Two strata with half of the clusters each have nearly the same interval as one stratum.
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
