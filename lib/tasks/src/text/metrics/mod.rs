//! Metrics of classification, as pure functions of probabilities and true classes. Names and edge cases are those of
//! scikit-learn where it has the metric. Where scikit-learn leaves a metric undefined (e.g. ROC AUC with a single
//! class), it is undefined here too.

mod calibration;
mod classification;
mod decision;
mod intervals;
mod multi_label;
mod ranking;
#[cfg(test)]
mod tests;

pub use calibration::{Bin, Reliability, brier, fit_temperature, log_loss};
pub use classification::{ClassificationMetrics, Outcomes, macro_f1_by_group};
pub use decision::{DecisionPolicy, best_threshold, best_thresholds};
pub use intervals::{Metric, Metrics, Resampling};
pub use multi_label::{LabelOutcomes, MultiLabel};
pub use ranking::Ranking;

/// Probabilities [samples, classes] of logits of the same shape divided by `temperature`.
pub fn softmax(logits: &[f32], classes: usize, temperature: f64) -> Vec<f64> {
    let mut probabilities = Vec::with_capacity(logits.len());
    for row in logits.chunks_exact(classes) {
        let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let exp = |z: &f32| (f64::from(z - largest) / temperature).exp();
        let total: f64 = row.iter().map(exp).sum();
        probabilities.extend(row.iter().map(|z| exp(z) / total));
    }
    probabilities
}

/// Probabilities of the labels of a multi-label classifier: 1/(1 + exp(-z/temperature)).
pub fn sigmoid(logits: &[f32], temperature: f64) -> Vec<f64> {
    logits.iter().map(|z| 1.0 / (1.0 + (-f64::from(*z) / temperature).exp())).collect()
}

/// The most probable class of each sample, from probabilities [samples, classes]; the first one on ties.
pub fn predicted_classes(probabilities: &[f64], classes: usize) -> Vec<usize> {
    let largest = |row: &[f64]| {
        let better =
            |best: usize, (class, p): (usize, &f64)| if *p > row[best] { class } else { best };
        row.iter().enumerate().fold(0, better)
    };
    probabilities.chunks_exact(classes).map(largest).collect()
}
