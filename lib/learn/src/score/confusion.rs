//! Confusion matrix of a classifier, and the metrics derived from it.

use serde::{Deserialize, Serialize};

/// The confusion matrix of a classifier.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Confusion {
    /// Counts [classes, classes], indexed by true class, then by predicted class.
    counts: Vec<Vec<u64>>,
}

/// Scores of one class, or an average over classes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct ClassScores {
    /// tp/(tp + fp).
    pub precision: f64,
    /// tp/(tp + fn).
    pub recall: f64,
    /// 2·tp/(2·tp + fp + fn).
    #[serde(rename = "f1-score")]
    pub f1: f64,
    /// tp + fn, the number of samples of the class.
    pub support: u64,
}

impl ClassScores {
    /// Computes the scores of a class with `hits` true positives, `predicted` predictions and `support` samples. 0/0
    /// counts as 0.
    pub fn of_counts(hits: u64, predicted: u64, support: u64) -> Self {
        let ratio = |divisor: f64| if divisor == 0.0 { 0.0 } else { hits as f64 / divisor };
        Self {
            precision: ratio(predicted as f64),
            recall: ratio(support as f64),
            f1: ratio((support + predicted) as f64 / 2.0),
            support,
        }
    }

    /// Weighted average of class scores; all 0 if the weights sum to 0.
    pub fn average(classes: &[Self], weight: impl Fn(&Self) -> f64) -> Self {
        let total: f64 = classes.iter().map(&weight).sum();
        let mean = |of: fn(&Self) -> f64| match total == 0.0 {
            true => 0.0,
            false => classes.iter().map(|own| weight(own) * of(own)).sum::<f64>() / total,
        };
        Self {
            precision: mean(|own| own.precision),
            recall: mean(|own| own.recall),
            f1: mean(|own| own.f1),
            support: classes.iter().map(|own| own.support).sum(),
        }
    }
}

impl Confusion {
    /// Creates a matrix for `classes` classes without samples.
    pub fn new(classes: usize) -> Self {
        Self { counts: vec![vec![0; classes]; classes] }
    }

    /// Counts one sample of class `truth` that was predicted as `prediction`.
    pub fn add(&mut self, truth: usize, prediction: usize) {
        self.add_counts(truth, prediction, 1);
    }

    /// Counts `count` samples of class `truth` that were predicted as `prediction`.
    pub fn add_counts(&mut self, truth: usize, prediction: usize, count: u64) {
        let classes = self.counts.len().max(truth + 1).max(prediction + 1);
        if classes > self.counts.len() {
            self.counts.resize_with(classes, Vec::new);
            self.counts.iter_mut().for_each(|row| row.resize(classes, 0));
        }
        self.counts[truth][prediction] += count;
    }

    /// Adds the counts of `other`.
    pub fn merge(&mut self, other: &Self) {
        for (truth, row) in other.counts.iter().enumerate() {
            (0..).zip(row).for_each(|(prediction, n)| self.add_counts(truth, prediction, *n));
        }
    }

    /// Counts [classes, classes], indexed by true class, then by predicted class.
    pub fn counts(&self) -> &[Vec<u64>] {
        &self.counts
    }

    /// Number of samples.
    pub fn samples(&self) -> u64 {
        self.counts.iter().flatten().sum()
    }

    /// Fraction of samples on the diagonal; NaN without samples.
    pub fn accuracy(&self) -> f64 {
        let right: u64 = self.counts.iter().enumerate().map(|(class, row)| row[class]).sum();
        right as f64 / self.samples() as f64
    }

    /// Matthews correlation coefficient of true and predicted classes (Gorodkin 2004, for any number of classes); 0 if
    /// all samples have the same true or the same predicted class, NaN without samples.
    pub fn matthews_correlation(&self) -> f64 {
        let samples = self.samples() as f64;
        let sum = |of: &dyn Fn(usize) -> u64| -> f64 {
            (0..self.counts.len()).map(|class| of(class) as f64).sum()
        };
        let truth = |class: usize| self.counts[class].iter().sum::<u64>();
        let predicted = |class: usize| self.counts.iter().map(|row| row[class]).sum::<u64>();
        let right = sum(&|class| self.counts[class][class]);
        let product = sum(&|class| truth(class) * predicted(class));
        let [truths, predictions] = [
            sum(&|class| truth(class) * truth(class)),
            sum(&|class| predicted(class) * predicted(class)),
        ];
        let square = samples * samples;
        let scale = ((square - truths) * (square - predictions)).sqrt();
        let covariance = right * samples - product;
        if scale == 0.0 && samples > 0.0 { 0.0 } else { covariance / scale }
    }

    /// Scores of a class.
    pub fn of_class(&self, class: usize) -> ClassScores {
        let row = &self.counts[class];
        let predicted = self.counts.iter().map(|row| row[class]).sum();
        ClassScores::of_counts(row[class], predicted, row.iter().sum())
    }

    /// Scores of the classes that occur as a true or predicted class, with their class indices.
    pub fn of_classes(&self) -> Vec<(usize, ClassScores)> {
        let occurs = |class: usize| {
            self.counts[class]
                .iter()
                .chain(self.counts.iter().map(|row| &row[class]))
                .any(|n| *n > 0)
        };
        let classes = (0..self.counts.len()).filter(|class| occurs(*class));
        classes.map(|class| (class, self.of_class(class))).collect()
    }

    /// Macro average: the mean over the classes that occur as a true or predicted class, like scikit-learn's
    /// `average="macro"`.
    pub fn macro_average(&self) -> ClassScores {
        self.average(|_| 1.0)
    }

    /// Weighted average: the mean over the classes, weighted by their support, like scikit-learn's
    /// `average="weighted"`.
    pub fn weighted_average(&self) -> ClassScores {
        self.average(|class| class.support as f64)
    }

    fn average(&self, weight: impl Fn(&ClassScores) -> f64) -> ClassScores {
        let classes: Vec<ClassScores> = self.of_classes().into_iter().map(|(_, own)| own).collect();
        ClassScores::average(&classes, weight)
    }

    /// Returns `accuracy`, [macro-averaged](Self::macro_average) precision, recall and F1, and `matthews_correlation`.
    pub fn metrics(&self) -> [(&'static str, f64); 5] {
        let ClassScores { precision, recall, f1, .. } = self.macro_average();
        let accuracy = self.accuracy();
        [
            ("accuracy", accuracy),
            ("precision", precision),
            ("recall", recall),
            ("macro_f1", f1),
            ("matthews_correlation", self.matthews_correlation()),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Confusion matrix [[5, 1, 0], [2, 3, 1], [0, 0, 4]], plus a class that does not occur.
    #[test]
    fn metrics_of_a_confusion_matrix_are_those_of_its_counts() {
        let mut confusion = Confusion::default();
        let counts = [(0, 0, 5), (0, 1, 1), (1, 0, 2), (1, 1, 3), (1, 2, 1), (2, 2, 4), (4, 4, 0)];
        counts.into_iter().for_each(|(truth, found, n)| confusion.add_counts(truth, found, n));
        let expected = [
            12.0 / 16.0,
            (5.0 / 7.0 + 3.0 / 4.0 + 4.0 / 5.0) / 3.0,
            (5.0 / 6.0 + 3.0 / 6.0 + 1.0) / 3.0,
            (10.0 / 13.0 + 6.0 / 10.0 + 8.0 / 9.0) / 3.0,
            // The covariance 12·16 - (7·6 + 4·6 + 5·4) over the square roots of 16² - (6² + 6² + 4²) and 16² - (7² + 4²
            // + 5²).
            106.0 / (168.0 * 166.0_f64).sqrt(),
        ];
        for ((name, found), expected) in confusion.metrics().into_iter().zip(expected) {
            assert!((found - expected).abs() < 1e-15, "{name}: {found}, not {expected}");
        }
    }
}
