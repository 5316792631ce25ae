//! Scores of a model: accumulators by metric and group, and per-sample values. Scores merge across batches and ranks.

mod confusion;
mod edits;
mod regression;

pub use confusion::{ClassScores, Confusion};
pub use edits::edit_distance;
pub use regression::{ChannelErrors, RegressionErrors};
pub use report::evaluation::Direction;

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::hash::Hash;

/// Metric values by name.
pub type Metrics = BTreeMap<String, f64>;

/// Sums of squared errors and squared targets, accumulated in f64.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sums {
    /// Σ (p - t)².
    #[serde(with = "bits")]
    pub error: f64,
    /// Σ t².
    #[serde(with = "bits")]
    pub target: f64,
    /// Number of elements.
    pub count: u64,
}

impl Sums {
    /// Adds a prediction and its target.
    pub fn add(&mut self, prediction: &[f32], target: &[f32]) {
        for (p, t) in prediction.iter().zip(target) {
            let (p, t) = (f64::from(*p), f64::from(*t));
            self.error += (p - t) * (p - t);
            self.target += t * t;
        }
        self.count += target.len() as u64;
    }

    /// Adds the sums of `other`.
    fn merge(&mut self, other: &Self) {
        self.error += other.error;
        self.target += other.target;
        self.count += other.count;
    }

    /// Normalised root mean square error √(Σ (p - t)²/Σ t²).
    pub fn nrmse(&self) -> f64 {
        (self.error / self.target).sqrt()
    }
}

/// For `#[serde(with = "bits")]`: stores an f64 as its bit pattern, because JSON has neither infinity nor NaN.
pub mod bits {
    use serde::{Deserialize, Deserializer, Serializer};

    /// Writes the bit pattern as an integer.
    pub fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(value.to_bits())
    }

    /// Reads the output of [`serialize`].
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        u64::deserialize(deserializer).map(f64::from_bits)
    }
}

/// An f64 that is serialised as its bit pattern.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Bits(#[serde(with = "bits")] pub f64);

/// Returns quantile `q`, in 0..=1, of `values`, with linear interpolation (NumPy's default); NaN if there are no values
/// or one of them is NaN.
pub fn quantile(mut values: Vec<f64>, q: f64) -> f64 {
    if values.iter().any(|value| value.is_nan()) {
        return f64::NAN;
    }
    values.sort_unstable_by(f64::total_cmp);
    let place = q * values.len().saturating_sub(1) as f64;
    let at = |place: f64| values.get(place as usize).copied().unwrap_or(f64::NAN);
    let (low, high) = (at(place.floor()), at(place.ceil()));
    // The case of equal values avoids ∞ - ∞ = NaN in the interpolation.
    if low == high { low } else { low + place.fract() * (high - low) }
}

/// Accumulator of one metric.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Accumulator {
    /// Weighted mean: Σ weight·value / Σ weight.
    Mean {
        #[serde(with = "bits")]
        sum: f64,
        #[serde(with = "bits")]
        weight: f64,
    },
    /// [`Sums::nrmse`].
    Nrmse(Sums),
    /// [`Confusion::metrics`].
    Confusion(Confusion),
    /// F1 of one class, from the numbers of true positives, predictions and samples.
    F1 { hits: u64, predicted: u64, support: u64 },
    /// Mean of other metrics, by name.
    MeanOf(Vec<String>),
    /// [`ChannelErrors::metrics`], overall and per channel.
    Regression(RegressionErrors),
}

impl Accumulator {
    /// Returns the resulting metrics with their names.
    fn metrics(&self, name: &str) -> Vec<(String, f64)> {
        match self {
            Self::Mean { sum, weight } => vec![(name.into(), sum / weight)],
            Self::Nrmse(sums) => vec![(name.into(), sums.nrmse())],
            Self::Regression(errors) => errors.metrics(),
            Self::F1 { hits, predicted, support } => {
                vec![(name.into(), ClassScores::of_counts(*hits, *predicted, *support).f1)]
            }
            Self::MeanOf(_) => Vec::new(),
            Self::Confusion(confusion) => {
                confusion.metrics().map(|(metric, value)| (format!("{name}{metric}"), value)).into()
            }
        }
    }

    fn merge(&mut self, other: &Self) {
        match (self, other) {
            (Self::Mean { sum, weight }, Self::Mean { sum: s, weight: w }) => {
                *sum += s;
                *weight += w;
            }
            (Self::Nrmse(sums), Self::Nrmse(other)) => sums.merge(other),
            (Self::Confusion(counts), Self::Confusion(other)) => counts.merge(other),
            (Self::Regression(errors), Self::Regression(other)) => errors.merge(other),
            (
                Self::F1 { hits, predicted, support },
                Self::F1 { hits: h, predicted: p, support: s },
            ) => {
                *hits += h;
                *predicted += p;
                *support += s;
            }
            // All tasks and ranks use the same kind of accumulator for a given metric.
            _ => {}
        }
    }
}

/// Accumulators by metric name and, for metrics averaged over groups, by group; and values by name and sample ID.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Scores {
    entries: Vec<(String, Option<String>, Accumulator)>,
    /// Whether the model produced a non-finite output.
    #[serde(default)]
    not_finite: bool,
    records: BTreeMap<String, BTreeMap<u64, Bits>>,
}

impl Scores {
    /// Adds `value` to the weighted mean `name`.
    pub fn mean(&mut self, name: &str, value: f64, weight: f64) {
        self.add(name, None, &Accumulator::Mean { sum: value * weight, weight });
    }

    /// Adds a prediction and its target to the normalised root mean square error `name` of `group`.
    pub fn nrmse(&mut self, name: &str, group: &str, prediction: &[f32], target: &[f32]) {
        let mut sums = Sums::default();
        sums.add(prediction, target);
        self.add(name, Some(group), &Accumulator::Nrmse(sums));
    }

    /// Adds a prediction and its target, [.., channels], to the metrics of [`ChannelErrors::metrics`], overall and per
    /// channel as `NAME[CHANNEL]`.
    pub fn regression(&mut self, channels: usize, prediction: &[f32], target: &[f32]) {
        let errors = RegressionErrors::of(channels, prediction, target);
        self.add("", None, &Accumulator::Regression(errors));
    }

    /// Adds a classification result to the confusion matrix, whose metrics are those of [`Confusion::metrics`] with
    /// `prefix` prepended to their names.
    pub fn confusion(&mut self, prefix: &str, truth: usize, prediction: usize) {
        let mut entries = self.entries.iter_mut();
        if let Some((_, _, Accumulator::Confusion(counts))) =
            entries.find(|(name, group, _)| name == prefix && group.is_none())
        {
            return counts.add(truth, prediction);
        }
        let mut counts = Confusion::default();
        counts.add(truth, prediction);
        self.add(prefix, None, &Accumulator::Confusion(counts));
    }

    /// Adds a binary prediction to the F1 score `name`, where true is the positive class.
    pub fn f1(&mut self, name: &str, truth: bool, prediction: bool) {
        let [hits, predicted, support] = [truth && prediction, prediction, truth].map(u64::from);
        self.add(name, None, &Accumulator::F1 { hits, predicted, support });
    }

    /// Defines the metric `name` as the mean of the metrics `others`, which must not be such means themselves.
    pub fn mean_of(&mut self, name: &str, others: &[&str]) {
        let others = others.iter().map(|other| other.to_string()).collect();
        self.add(name, None, &Accumulator::MeanOf(others));
    }

    /// Adds [`edit_distance`] divided by the length of the reference to the error rate `name`.
    pub fn error_rate<T: Eq + Hash>(&mut self, name: &str, prediction: &[T], reference: &[T]) {
        let (sum, weight) = (edit_distance(prediction, reference) as f64, reference.len() as f64);
        self.add(name, None, &Accumulator::Mean { sum, weight });
    }

    /// Checks `outputs`; if any is not finite, every metric becomes NaN. For metrics based on class decisions, which
    /// would otherwise score an arbitrary class.
    pub fn check_finite<T: Copy + Into<f64>>(&mut self, outputs: &[T]) {
        self.not_finite |= outputs.iter().any(|value| !(*value).into().is_finite());
    }

    /// Records the per-sample value `name`, for metrics that are not sums: quantiles, ranks, worst samples.
    pub fn record(&mut self, name: &str, id: u64, value: f64) {
        self.records.entry(name.into()).or_default().insert(id, Bits(value));
    }

    /// Returns the value called `name` of every sample, sorted by sample ID.
    pub fn records(&self, name: &str) -> Vec<(u64, f64)> {
        let values = self.records.get(name).into_iter().flatten();
        values.map(|(id, value)| (*id, value.0)).collect()
    }

    fn add(&mut self, name: &str, group: Option<&str>, value: &Accumulator) {
        let found = self.entries.iter_mut().find(|(n, g, _)| n == name && g.as_deref() == group);
        match found {
            Some((_, _, accumulator)) => accumulator.merge(value),
            None => self.entries.push((name.into(), group.map(Into::into), value.clone())),
        }
    }

    /// Merges the scores of `other`.
    pub fn merge(&mut self, other: &Self) {
        self.not_finite |= other.not_finite;
        for (name, group, accumulator) in &other.entries {
            self.add(name, group.as_deref(), accumulator);
        }
        for (name, values) in &other.records {
            self.records.entry(name.clone()).or_default().extend(values);
        }
    }

    /// Returns all metrics by name. A metric with groups has one entry `NAME[GROUP]` per group, and their mean as
    /// `NAME`. Recorded values have a geometric mean, `NAME_geometric_mean`, and a 95th percentile, `NAME_p95`, neither
    /// of which is dominated by a few bad samples.
    pub fn metrics(&self) -> Metrics {
        let mut metrics = Metrics::new();
        let mut groups: BTreeMap<String, Vec<f64>> = BTreeMap::new();
        for (name, group, accumulator) in &self.entries {
            for (name, value) in accumulator.metrics(name) {
                match group {
                    None => drop(metrics.insert(name, value)),
                    Some(group) => {
                        metrics.insert(format!("{name}[{group}]"), value);
                        groups.entry(name).or_default().push(value);
                    }
                }
            }
        }
        for (name, values) in groups {
            metrics.insert(name, values.iter().sum::<f64>() / values.len() as f64);
        }
        for (name, values) in &self.records {
            let values: Vec<f64> = values.values().map(|value| value.0).collect();
            let logs: f64 = values.iter().map(|value| value.ln()).sum();
            let geometric_mean = (logs / values.len() as f64).exp();
            metrics.insert(format!("{name}_geometric_mean"), geometric_mean);
            metrics.insert(format!("{name}_p95"), quantile(values, 0.95));
        }
        for (name, _, accumulator) in &self.entries {
            if let Accumulator::MeanOf(others) = accumulator {
                let values = others.iter().map(|other| metrics.get(other).unwrap_or(&f64::NAN));
                metrics.insert(name.clone(), values.sum::<f64>() / others.len() as f64);
            }
        }
        if self.not_finite {
            metrics.values_mut().for_each(|value| *value = f64::NAN);
        }
        metrics
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merged_scores_are_those_of_all_samples() {
        let mut all = Scores::default();
        let samples = [("a", 0.5, 2.0), ("b", 0.25, 1.0), ("a", 1.0, 6.0)];
        let mut id = 3;
        let parts = samples.map(|(group, x, weight)| {
            let mut part = Scores::default();
            id -= 1;
            for scores in [&mut part, &mut all] {
                scores.mean("quality", x, weight);
                scores.nrmse("error", group, &[x as f32, 0.0], &[0.0, 1.0]);
                scores.confusion("", id as usize, usize::from(id == 1));
                scores.error_rate("cer", b"abc", b"bcde");
                scores.f1("f1", id > 0, id > 1);
                scores.mean_of("both", &["f1", "quality"]);
                scores.record("loss", id, if id == 0 { f64::INFINITY } else { x });
            }
            part
        });
        let mut merged = Scores::default();
        for part in &parts {
            // Serialise the scores, as ranks do to exchange them.
            let told = serde_json::to_vec(part).unwrap();
            merged.merge(&serde_json::from_slice(&told).unwrap());
        }
        assert_eq!(merged, all);
        let metrics = merged.metrics();
        let [of_a, of_b] = [3.25_f64 / 2.0, 1.0625].map(f64::sqrt);
        let expected = [
            ("accuracy", 2.0 / 3.0),
            ("both", (2.0 / 3.0 + 7.25 / 9.0) / 2.0),
            ("cer", 0.75),
            ("error", (of_a + of_b) / 2.0),
            ("error[a]", of_a),
            ("error[b]", of_b),
            // One of two samples of the class is found.
            ("f1", 2.0 / 3.0),
            ("loss_geometric_mean", f64::INFINITY),
            ("loss_p95", f64::INFINITY),
            // One of two predictions of class 0 is correct, and class 2 is never predicted.
            ("macro_f1", (2.0 / 3.0 + 1.0) / 3.0),
            ("matthews_correlation", 3.0 / 24.0_f64.sqrt()),
            ("precision", (0.5 + 1.0) / 3.0),
            ("quality", 7.25 / 9.0),
            ("recall", 2.0 / 3.0),
        ];
        assert_eq!(merged.records("loss"), [(0, f64::INFINITY), (1, 0.25), (2, 0.5)]);
        assert_eq!(metrics.iter().map(|(n, v)| (n.as_str(), *v)).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn recorded_values_have_a_geometric_mean_and_a_percentile() {
        let mut scores = Scores::default();
        let values = [4.0, 0.25, 2.0, 8.0, 1.0];
        values.iter().enumerate().for_each(|(id, x)| scores.record("e", id as u64, *x));
        let metrics = scores.metrics();
        // 2 to the power (2 - 2 + 1 + 3 + 0)/5. The 95th percentile lies at position 3.8 of 0.25, 1, 2, 4, 8.
        assert!((metrics["e_geometric_mean"] - 2.0_f64.powf(0.8)).abs() < 1e-15);
        assert!((metrics["e_p95"] - 7.2).abs() < 1e-14);
        assert_eq!(quantile(vec![3.0], 0.95), 3.0);
    }

    #[test]
    fn a_value_that_is_not_finite_is_in_every_metric_that_depends_on_it() {
        let mut scores = Scores::default();
        for (id, x) in [1.0, f64::NAN, 2.0].into_iter().enumerate() {
            scores.mean("loss", x, 1.0);
            scores.record("e", id as u64, x);
            scores.nrmse("error", if id == 1 { "a" } else { "b" }, &[x as f32], &[1.0]);
            scores.confusion("", 0, 0);
        }
        let metrics = scores.metrics();
        for name in ["loss", "e_geometric_mean", "e_p95", "error", "error[a]"] {
            assert!(metrics[name].is_nan(), "{name}: {}", metrics[name]);
        }
        assert_eq!((metrics["error[b]"], metrics["accuracy"]), (0.5_f64.sqrt(), 1.0));
        // Decisions based on non-finite outputs have no accuracy, not even after the scores were sent to another rank.
        let mut merged = Scores::default();
        scores.check_finite(&[0.5, f64::INFINITY]);
        merged.merge(&serde_json::from_slice(&serde_json::to_vec(&scores).unwrap()).unwrap());
        assert!(merged.metrics().values().all(|value| value.is_nan()));
    }
}
