//! Statistics of evaluations: geometric mean, correlation and rank correlation.

/// Returns exp of the mean logarithm; 0 if a value is 0.
pub fn geometric_mean(values: &[f64]) -> f64 {
    (values.iter().map(|value| value.ln()).sum::<f64>() / values.len() as f64).exp()
}

/// Computes Pearson's correlation. NaN if all values of a list are equal, or one is NaN.
pub fn correlation(a: &[f64], b: &[f64]) -> f64 {
    // The computed mean of equal values may differ from them.
    if [a, b].iter().any(|values| values.iter().all(|value| *value == values[0])) {
        return f64::NAN;
    }
    let centred = |values: &[f64]| -> Vec<f64> {
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        values.iter().map(|value| value - mean).collect()
    };
    let (a, b) = (centred(a), centred(b));
    let product = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    product(&a, &b) / (product(&a, &a) * product(&b, &b)).sqrt()
}

/// Computes Spearman's rank correlation: Pearson's correlation of the ranks, where ties share their mean rank. NaN if
/// all values of a list are equal, or one is NaN.
pub fn rank_correlation(a: &[f64], b: &[f64]) -> f64 {
    if a.iter().chain(b).any(|value| value.is_nan()) {
        return f64::NAN;
    }
    correlation(&ranks(a), &ranks(b))
}

/// Returns the ranks of `values`, counted from 0; ties share their mean rank.
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

#[cfg(test)]
mod tests {
    use super::*;
    use learn::score::quantile;

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
    fn correlations_are_those_of_scipy() {
        // scipy.stats.pearsonr([1, 2, 3, 4, 5], [5, 6, 7, 8, 7]): 0.8320502943378436.
        let found = correlation(&[1.0, 2.0, 3.0, 4.0, 5.0], &[5.0, 6.0, 7.0, 8.0, 7.0]);
        assert!((found - 0.8320502943378436).abs() < 1e-12, "{found}");
        assert!(correlation(&[0.1; 3], &[1.0, 2.0, 4.0]).is_nan());
        // scipy.stats.spearmanr([1, 2, 3, 4, 5], [5, 6, 7, 8, 7]): 0.8207826816681233, with a tie.
        let found = rank_correlation(&[1.0, 2.0, 3.0, 4.0, 5.0], &[5.0, 6.0, 7.0, 8.0, 7.0]);
        assert!((found - 0.8207826816681233).abs() < 1e-12, "{found}");
        let x: Vec<f64> = (0..9).map(f64::from).collect();
        let cubes: Vec<f64> = x.iter().map(|x| -x * x * x).collect();
        assert!((rank_correlation(&x, &cubes) + 1.0).abs() < 1e-12);
        assert!(rank_correlation(&x, &[1.0; 9]).is_nan());
    }
}
