//! The metrics of a classifier with one class for each sample.

use super::calibration::{Reliability, brier, log_loss};
use super::intervals::{Metrics, NamedValues, Resampling};
use super::predicted_classes;
use super::ranking::Ranking;
use learn::score::{ClassScores, Confusion};
use serde_json::{Map, Value, json};

/// The predictions of a classifier for some samples, and the ground truth.
#[derive(Clone, Copy, Debug)]
pub struct Outcomes<'a> {
    /// [samples, classes].
    pub probabilities: &'a [f64],
    /// The class of each sample.
    pub truth: &'a [usize],
    /// The predicted class of each sample: [`predicted_classes`], or the decision of a policy.
    pub predicted: &'a [usize],
}

/// All metrics of a classifier, with the names of its evaluation file.
#[derive(Clone, Debug)]
pub struct ClassificationMetrics {
    /// `accuracy`; `matthews_correlation`, 0 if only one class occurs or is predicted; `f1_`, `precision_` and
    /// `recall_` with `macro` (over the classes that occur as a true or predicted class), `micro` (equal to the
    /// accuracy), `weighted` (by class size) and `binary` (class 1 of two); `auroc` and
    /// `average_precision`, of class 1 of two, otherwise the mean over the classes, each against the rest, undefined if
    /// a class is absent; `log_loss`, `brier`; `ece`, the calibration error of the probability of class 1 of two, and
    /// `ece_top_label`, that of the probability of the most probable class.
    pub metrics: Metrics,
    /// [classes, classes], indexed by true class, then by predicted class.
    pub confusion_matrix: Vec<Vec<u64>>,
    /// Like scikit-learn's: the scores of each class that occurs by its label, then `accuracy`, `macro avg` and
    /// `weighted avg`. Classes also have their `auroc` and `average_precision` against the rest.
    pub classification_report: Map<String, Value>,
    /// The reliability diagram of the probability of class 1 of two, otherwise of the most probable class.
    pub reliability: Reliability,
}

impl ClassificationMetrics {
    /// Computes the metrics; `labels` are the names of the classes.
    pub fn of(outcomes: &Outcomes, labels: &[String], resampling: Resampling) -> Self {
        let samples = outcomes.truth.len();
        let prepared = Precomputed::of(outcomes, labels.len());
        let metrics = Metrics::of(samples, resampling, |weights| prepared.metrics(weights));
        let confusion = prepared.confusion(&vec![1; samples]);
        Self {
            classification_report: prepared.report(&confusion, labels),
            metrics,
            confusion_matrix: confusion.counts().to_vec(),
            reliability: prepared.reliability(prepared.classes != 2, &vec![1; samples]),
        }
    }
}

/// The macro F1 of the samples of each group (a criterion, a source), numbered from 0; `None` for a group without
/// samples.
pub fn macro_f1_by_group(
    outcomes: &Outcomes,
    classes: usize,
    groups: &[usize],
) -> Vec<Option<f64>> {
    let count = groups.iter().max().map_or(0, |last| last + 1);
    let mut by_group = vec![Confusion::new(classes); count];
    for ((truth, predicted), group) in outcomes.truth.iter().zip(outcomes.predicted).zip(groups) {
        by_group[*group].add(*truth, *predicted);
    }
    let macro_f1 = |own: &Confusion| (own.samples() > 0).then(|| own.macro_average().f1);
    by_group.iter().map(macro_f1).collect()
}

/// Quantities that are independent of the weights of samples, computed once for all resamples.
struct Precomputed<'a> {
    outcomes: &'a Outcomes<'a>,
    classes: usize,
    /// Of class 1 of two, otherwise of every class.
    rankings: Vec<Ranking>,
    /// The most probable class of each sample.
    top: Vec<usize>,
    /// Log loss and Brier score of each sample.
    losses: Vec<[f64; 2]>,
}

impl<'a> Precomputed<'a> {
    fn of(outcomes: &'a Outcomes, classes: usize) -> Self {
        let rows = outcomes.probabilities.chunks_exact(classes).zip(outcomes.truth);
        Self {
            outcomes,
            classes,
            rankings: rankings(outcomes.probabilities, classes),
            top: predicted_classes(outcomes.probabilities, classes),
            losses: rows.map(|(row, truth)| [log_loss(row[*truth]), brier(row, *truth)]).collect(),
        }
    }

    /// The metrics with these sample weights.
    fn metrics(&self, weights: &[u32]) -> NamedValues {
        let confusion = self.confusion(weights);
        let samples = confusion.samples() as f64;
        let some = |value: f64| (samples > 0.0).then_some(value);
        let (mean_of, by_size) = (confusion.macro_average(), confusion.weighted_average());
        let positive = (self.classes == 2 && samples > 0.0).then(|| confusion.of_class(1));
        let accuracy = some(confusion.accuracy());
        let ranked = self.ranked(weights);
        let loss = |at: usize| {
            let weighted = self.losses.iter().zip(weights).map(|(own, n)| own[at] * f64::from(*n));
            some(weighted.sum::<f64>() / samples)
        };
        vec![
            ("accuracy", accuracy),
            ("matthews_correlation", some(confusion.matthews_correlation())),
            ("f1_macro", some(mean_of.f1)),
            ("f1_micro", accuracy),
            ("f1_weighted", some(by_size.f1)),
            ("f1_binary", positive.map(|own| own.f1)),
            ("precision_macro", some(mean_of.precision)),
            ("precision_weighted", some(by_size.precision)),
            ("precision_binary", positive.map(|own| own.precision)),
            ("recall_macro", some(mean_of.recall)),
            ("recall_weighted", some(by_size.recall)),
            ("recall_binary", positive.map(|own| own.recall)),
            ("auroc", mean(ranked.iter().map(|own| own.0))),
            ("average_precision", mean(ranked.iter().map(|own| own.1))),
            ("log_loss", loss(0)),
            ("brier", loss(1)),
            ("ece", positive.and_then(|_| self.reliability(false, weights).error())),
            ("ece_top_label", self.reliability(true, weights).error()),
        ]
    }

    fn confusion(&self, weights: &[u32]) -> Confusion {
        confusion(self.outcomes, self.classes, |sample| weights[sample])
    }

    fn ranked(&self, weights: &[u32]) -> Vec<(Option<f64>, Option<f64>)> {
        ranked(&self.rankings, self.classes, self.outcomes.truth, |sample| weights[sample])
    }

    /// The diagram of the most probable class, or of class 1.
    fn reliability(&self, of_top: bool, weights: &[u32]) -> Reliability {
        let rows = self.outcomes.probabilities.chunks_exact(self.classes);
        let samples = rows.zip(self.outcomes.truth).zip(&self.top).zip(weights);
        Reliability::of(samples.map(|(((row, truth), top), weight)| {
            let class = if of_top { *top } else { 1 };
            (row[class], *truth == class, *weight)
        }))
    }

    fn report(&self, confusion: &Confusion, labels: &[String]) -> Map<String, Value> {
        let ranked = self.ranked(&vec![1; self.top.len()]);
        let of_class = |(class, scores): (usize, ClassScores)| {
            let mut row = json!(scores);
            // Of two classes only the second is ranked.
            let at = if self.classes == 2 { class.checked_sub(1) } else { Some(class) };
            if let Some((auroc, precision)) = at.and_then(|at| ranked.get(at)) {
                row["auroc"] = json!(auroc);
                row["average_precision"] = json!(precision);
            }
            (labels[class].clone(), row)
        };
        let mut report: Map<_, _> = confusion.of_classes().into_iter().map(of_class).collect();
        report.insert("accuracy".into(), json!(confusion.accuracy()));
        report.insert("macro avg".into(), json!(confusion.macro_average()));
        report.insert("weighted avg".into(), json!(confusion.weighted_average()));
        report
    }
}

fn confusion(outcomes: &Outcomes, classes: usize, weight: impl Fn(usize) -> u32) -> Confusion {
    let mut confusion = Confusion::new(classes);
    for (sample, (truth, predicted)) in outcomes.truth.iter().zip(outcomes.predicted).enumerate() {
        confusion.add_counts(*truth, *predicted, u64::from(weight(sample)));
    }
    confusion
}

/// The rankings by the probability of class 1 of two, otherwise of every class.
fn rankings(probabilities: &[f64], classes: usize) -> Vec<Ranking> {
    let of_class = |class: usize| {
        let column = probabilities.iter().skip(class).step_by(classes);
        Ranking::new(&column.copied().collect::<Vec<_>>())
    };
    (usize::from(classes == 2)..classes).map(of_class).collect()
}

/// AUROC and average precision of the [`rankings`].
fn ranked(
    rankings: &[Ranking],
    classes: usize,
    truth: &[usize],
    weight: impl Fn(usize) -> u32,
) -> Vec<(Option<f64>, Option<f64>)> {
    let first = classes - rankings.len();
    let of = |(class, ranking): (usize, &Ranking)| {
        ranking.auroc_and_average_precision(|sample| truth[sample] == class, &weight)
    };
    (first..).zip(rankings).map(of).collect()
}

/// The mean; None if one of the values is undefined.
pub(super) fn mean(values: impl Iterator<Item = Option<f64>>) -> Option<f64> {
    let defined: Vec<f64> = values.collect::<Option<_>>()?;
    (!defined.is_empty()).then(|| defined.iter().sum::<f64>() / defined.len() as f64)
}
