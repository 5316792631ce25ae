//! Agreement of cosines with graded similarities, as in the benchmarks of semantic textual similarity.

use crate::statistics::{correlation, rank_correlation};
use crate::text::metrics::{Metrics, Resampling};

/// `pearson` and `spearman`: the correlations of the cosine of each pair of records with its gold score, with intervals
/// unless `resampling` is None. Undefined if all values of a list are equal, or one is not finite.
///
/// # Panics
/// If the lists differ in length.
pub fn correlations(cosines: &[f64], gold: &[f64], resampling: Resampling) -> Metrics {
    assert_eq!(cosines.len(), gold.len(), "each pair has one cosine and one gold score");
    Metrics::of(cosines.len(), resampling, |weights| {
        let drawn = |values: &[f64]| -> Vec<f64> {
            let pairs = values.iter().zip(weights);
            pairs.flat_map(|(value, n)| std::iter::repeat_n(*value, *n as usize)).collect()
        };
        let (a, b) = (drawn(cosines), drawn(gold));
        let defined = |value: f64| value.is_finite().then_some(value);
        vec![
            ("pearson", defined(correlation(&a, &b))),
            ("spearman", defined(rank_correlation(&a, &b))),
        ]
    })
}
