//! Metrics of multi-label classification, in which each label is decided independently.

use super::calibration::{Reliability, log_loss};
use super::classification::mean;
use super::intervals::{Metrics, NamedValues, Resampling};
use super::ranking::Ranking;
use learn::score::{ClassScores, Confusion};
use serde_json::{Map, Value, json};

/// The predictions of a multi-label classifier for some samples, and the ground truth; all [samples, labels].
#[derive(Clone, Copy, Debug)]
pub struct LabelOutcomes<'a> {
    /// The probability of every label.
    pub probabilities: &'a [f64],
    /// Whether the sample has the label.
    pub truth: &'a [bool],
    /// Whether the label is predicted.
    pub predicted: &'a [bool],
}

/// All metrics of a multi-label classifier, with the names of its evaluation file.
#[derive(Clone, Debug)]
pub struct MultiLabel {
    /// `accuracy`, the share of samples with all labels right; `f1_`, `precision_` and `recall_` with `macro` (the mean
    /// over all labels), `micro` (over all decisions) and `weighted` (by label size); `auroc` and `average_precision`,
    /// the mean over the labels for which they are defined, and with `_micro` over all decisions; `log_loss`, `brier`
    /// and `ece` over all decisions.
    pub metrics: Metrics,
    /// For each label [[true negatives, false positives], [false negatives, true positives]].
    pub confusion_matrix: Vec<Vec<Vec<u64>>>,
    /// Like scikit-learn's: the scores of each label, then `micro avg`, `macro avg` and `weighted avg`. Labels also
    /// have their `auroc` and `average_precision`.
    pub classification_report: Map<String, Value>,
    /// The reliability diagram of all probabilities.
    pub reliability: Reliability,
}

impl MultiLabel {
    /// Computes the metrics; `labels` are the names of the labels.
    pub fn of(outcomes: &LabelOutcomes, labels: &[String], resampling: Resampling) -> Self {
        let samples = outcomes.truth.len() / labels.len();
        let ones = vec![1; samples];
        let prepared = Precomputed::of(outcomes, labels.len());
        let confusions = prepared.confusions(&ones);
        let counts = confusions.iter().map(|own| own.counts().to_vec()).collect();
        Self {
            metrics: Metrics::of(samples, resampling, |weights| prepared.metrics(weights)),
            confusion_matrix: counts,
            classification_report: prepared.report(&confusions, labels),
            reliability: prepared.reliability(&ones),
        }
    }
}

/// Quantities that are independent of the weights of samples, computed once for all resamples.
struct Precomputed<'a> {
    outcomes: &'a LabelOutcomes<'a>,
    labels: usize,
    /// Of each label.
    rankings: Vec<Ranking>,
    /// Of all decisions.
    overall: Ranking,
}

impl<'a> Precomputed<'a> {
    fn of(outcomes: &'a LabelOutcomes, labels: usize) -> Self {
        let of_label = |label: usize| {
            let column = outcomes.probabilities.iter().skip(label).step_by(labels);
            Ranking::new(&column.copied().collect::<Vec<_>>())
        };
        let rankings = (0..labels).map(of_label).collect();
        Self { outcomes, labels, rankings, overall: Ranking::new(outcomes.probabilities) }
    }

    /// The metrics with these sample weights.
    fn metrics(&self, weights: &[u32]) -> NamedValues {
        let LabelOutcomes { probabilities, truth, predicted } = self.outcomes;
        let samples: u64 = weights.iter().map(|n| u64::from(*n)).sum();
        let some = |value: f64| (samples > 0).then_some(value);
        let decisions = (samples * self.labels as u64) as f64;
        let confusions = self.confusions(weights);
        let scores: Vec<ClassScores> = confusions.iter().map(|own| own.of_class(1)).collect();
        let pooled = pooled(&confusions);
        let mean_of = ClassScores::average(&scores, |_| 1.0);
        let by_size = ClassScores::average(&scores, |own| own.support as f64);
        let rows = truth.chunks_exact(self.labels).zip(predicted.chunks_exact(self.labels));
        let right = rows.zip(weights).filter(|((truth, predicted), _)| truth == predicted);
        let right: u64 = right.map(|(_, n)| u64::from(*n)).sum();
        let ranked = self.ranked(weights);
        let of_all = self.overall.auroc_and_average_precision(
            |decision| truth[decision],
            |decision| weights[decision / self.labels],
        );
        let mean_loss = |of: fn(f64, bool) -> f64| {
            let all = probabilities.iter().zip(*truth).enumerate();
            let sum: f64 =
                all.map(|(i, (p, y))| of(*p, *y) * f64::from(weights[i / self.labels])).sum();
            some(sum / decisions)
        };
        vec![
            ("accuracy", some(right as f64 / samples as f64)),
            ("f1_macro", some(mean_of.f1)),
            ("f1_micro", some(pooled.f1)),
            ("f1_weighted", some(by_size.f1)),
            ("precision_macro", some(mean_of.precision)),
            ("precision_micro", some(pooled.precision)),
            ("precision_weighted", some(by_size.precision)),
            ("recall_macro", some(mean_of.recall)),
            ("recall_micro", some(pooled.recall)),
            ("recall_weighted", some(by_size.recall)),
            ("auroc", mean(ranked.iter().map(|own| own.0))),
            ("auroc_micro", of_all.0),
            ("average_precision", mean(ranked.iter().map(|own| own.1))),
            ("average_precision_micro", of_all.1),
            ("log_loss", mean_loss(|p, y| log_loss(if y { p } else { 1.0 - p }))),
            ("brier", mean_loss(|p, y| (p - f64::from(u8::from(y))).powi(2))),
            ("ece", self.reliability(weights).error()),
        ]
    }

    fn confusions(&self, weights: &[u32]) -> Vec<Confusion> {
        let mut confusions = vec![Confusion::new(2); self.labels];
        let decisions = self.outcomes.truth.iter().zip(self.outcomes.predicted);
        for (i, (truth, predicted)) in decisions.enumerate() {
            let weight = u64::from(weights[i / self.labels]);
            let own = &mut confusions[i % self.labels];
            own.add_counts(usize::from(*truth), usize::from(*predicted), weight);
        }
        confusions
    }

    fn ranked(&self, weights: &[u32]) -> Vec<(Option<f64>, Option<f64>)> {
        let of_label = |(label, ranking): (usize, &Ranking)| {
            let is_positive = |sample: usize| self.outcomes.truth[sample * self.labels + label];
            ranking.auroc_and_average_precision(is_positive, |sample| weights[sample])
        };
        self.rankings.iter().enumerate().map(of_label).collect()
    }

    fn reliability(&self, weights: &[u32]) -> Reliability {
        let all = self.outcomes.probabilities.iter().zip(self.outcomes.truth).enumerate();
        Reliability::of(all.map(|(i, (p, y))| (*p, *y, weights[i / self.labels])))
    }

    fn report(&self, confusions: &[Confusion], labels: &[String]) -> Map<String, Value> {
        let ranked = self.ranked(&vec![1; self.outcomes.truth.len() / self.labels]);
        let scores: Vec<ClassScores> = confusions.iter().map(|own| own.of_class(1)).collect();
        let rows = labels.iter().zip(&scores).zip(ranked);
        let of_label = |((label, scores), (auroc, precision)): ((&String, &ClassScores), _)| {
            let mut row = json!(scores);
            (row["auroc"], row["average_precision"]) = (json!(auroc), json!(precision));
            (label.clone(), row)
        };
        let mut report: Map<_, _> = rows.map(of_label).collect();
        let by_size = ClassScores::average(&scores, |own| own.support as f64);
        report.insert("micro avg".into(), json!(pooled(confusions)));
        report.insert("macro avg".into(), json!(ClassScores::average(&scores, |_| 1.0)));
        report.insert("weighted avg".into(), json!(by_size));
        report
    }
}

/// The micro-averaged scores: those of the decisions for all labels together.
fn pooled(confusions: &[Confusion]) -> ClassScores {
    let mut sum = Confusion::new(2);
    confusions.iter().for_each(|own| sum.merge(own));
    sum.of_class(1)
}
