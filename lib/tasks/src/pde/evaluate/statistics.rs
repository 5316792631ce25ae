//! Statistics over rollouts: means and quantiles that no single rollout dominates, rank correlation, and bootstrap
//! intervals.

use rayon::prelude::*;
use tensor::random::{Philox, Purpose};

/// Number of bootstrap resamples.
const RESAMPLES: u64 = 1000;

/// exp of the mean logarithm; 0 if a value is 0.
pub fn geometric_mean(values: &[f64]) -> f64 {
    (values.iter().map(|value| value.ln()).sum::<f64>() / values.len() as f64).exp()
}

/// The quantile `q` in 0..=1, interpolated linearly between order statistics, as by default in NumPy. NaN counts as the
/// largest value.
pub fn quantile(mut values: Vec<f64>, q: f64) -> f64 {
    if values.is_empty() {
        return f64::NAN;
    }
    values.sort_by(f64::total_cmp);
    let place = q * (values.len() - 1) as f64;
    let (low, part) = (place as usize, place.fract());
    // Where nothing is interpolated, infinite neighbours must not turn the value into NaN.
    match part == 0.0 {
        true => values[low],
        false => values[low] + part * (values[low + 1] - values[low]),
    }
}

/// Spearman's rank correlation: Pearson's correlation of the ranks, where equal values share their mean rank. NaN if
/// all values of a list are equal.
pub fn rank_correlation(a: &[f64], b: &[f64]) -> f64 {
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

/// Clusters of samples that are resampled as a whole, each as sums over its samples.
pub struct Stratum<const N: usize> {
    /// Key of its random numbers.
    pub number: u64,
    /// The sums of each cluster.
    pub clusters: Vec<[f64; N]>,
}

/// Percentile bootstrap (Efron 1979): bounds of 95 % intervals of values that `of` computes from sums over clusters.
/// Each resample draws as many clusters as there are, with replacement, from every stratum. The random numbers are a
/// function of stratum, resample and draw.
pub fn bootstrap<const N: usize, const K: usize>(
    strata: &[Stratum<N>],
    of: impl Fn([f64; N]) -> [f64; K] + Sync,
) -> [[f64; 2]; K] {
    let random = Philox::new(0, Purpose::Bootstrap);
    let resample = |number: u64| {
        let mut sums = [0.0; N];
        for stratum in strata {
            let (random, count) = (random.at_source(stratum.number), stratum.clusters.len() as u64);
            for draw in 0..count {
                let cluster = &stratum.clusters[random.below(number, draw, count) as usize];
                sums.iter_mut().zip(cluster).for_each(|(sum, value)| *sum += value);
            }
        }
        of(sums)
    };
    let resampled: Vec<[f64; K]> = (0..RESAMPLES).into_par_iter().map(resample).collect();
    std::array::from_fn(|value| {
        [0.025, 0.975].map(|q| quantile(resampled.iter().map(|all| all[value]).collect(), q))
    })
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
        let clusters: Vec<[f64; 2]> =
            (0..n).map(|i| [f64::from(random.normal(0, i)), 1.0]).collect();
        let mean = clusters.iter().map(|c| c[0]).sum::<f64>() / n as f64;
        let variance = clusters.iter().map(|c| (c[0] - mean).powi(2)).sum::<f64>() / n as f64;
        let error = (variance / n as f64).sqrt();
        // Two strata of half the clusters each have nearly the same interval as one.
        let (low, high) = clusters.split_at(n as usize / 2);
        for strata in [vec![clusters.clone()], vec![low.to_vec(), high.to_vec()]] {
            let strata: Vec<Stratum<2>> =
                (0..).zip(strata).map(|(number, clusters)| Stratum { number, clusters }).collect();
            let [[low, high]] = bootstrap(&strata, |[sum, count]| [sum / count]);
            assert!(((mean - low) / error - 1.96).abs() < 0.35, "{low} {mean} {error}");
            assert!(((high - mean) / error - 1.96).abs() < 0.35, "{high} {mean} {error}");
        }
        // A single cluster has no spread.
        let single = [Stratum { number: 0, clusters: vec![[3.0, 2.0]] }];
        assert_eq!(bootstrap(&single, |[sum, count]| [sum / count]), [[1.5, 1.5]]);
    }
}
