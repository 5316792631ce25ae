//! Scores of a model: accumulators by name and group, which merge over batches and ranks.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Measured values by name.
pub type Metrics = BTreeMap<String, f64>;

/// Sums of squared errors and squared targets, in f64.
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

    /// Adds the sums of other elements.
    fn merge(&mut self, other: &Self) {
        self.error += other.error;
        self.target += other.target;
        self.count += other.count;
    }

    /// √(Σ (p - t)²/Σ t²): root mean square of the error over that of the target.
    pub fn nrmse(&self) -> f64 {
        (self.error / self.target).sqrt()
    }
}

/// Numbers by their bits: JSON knows no infinity.
mod bits {
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(value.to_bits())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        u64::deserialize(deserializer).map(f64::from_bits)
    }
}

/// How the values of one metric are combined.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
enum Accumulator {
    /// Σ weight·value over Σ weight.
    Mean {
        #[serde(with = "bits")]
        sum: f64,
        #[serde(with = "bits")]
        weight: f64,
    },
    /// [`Sums::nrmse`].
    Nrmse(Sums),
}

impl Accumulator {
    fn value(&self) -> f64 {
        match self {
            Self::Mean { sum, weight } => sum / weight,
            Self::Nrmse(sums) => sums.nrmse(),
        }
    }

    fn merge(&mut self, other: &Self) {
        match (self, other) {
            (Self::Mean { sum, weight }, Self::Mean { sum: s, weight: w }) => {
                *sum += s;
                *weight += w;
            }
            (Self::Nrmse(sums), Self::Nrmse(other)) => sums.merge(other),
            // A metric is of one kind wherever a task adds to it.
            _ => {}
        }
    }
}

/// Accumulators by the name of their metric and, for metrics that are averaged over groups, the group's.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Scores {
    entries: Vec<(String, Option<String>, Accumulator)>,
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

    fn add(&mut self, name: &str, group: Option<&str>, value: &Accumulator) {
        let found = self.entries.iter_mut().find(|(n, g, _)| n == name && g.as_deref() == group);
        match found {
            Some((_, _, accumulator)) => accumulator.merge(value),
            None => self.entries.push((name.into(), group.map(Into::into), *value)),
        }
    }

    /// Adds the scores of other samples.
    pub fn merge(&mut self, other: &Self) {
        for (name, group, accumulator) in &other.entries {
            self.add(name, group.as_deref(), accumulator);
        }
    }

    /// Every metric by its name. Of one with groups that of each as `NAME[GROUP]`, and their mean as `NAME`.
    pub fn metrics(&self) -> Metrics {
        let mut metrics = Metrics::new();
        let mut groups: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
        for (name, group, accumulator) in &self.entries {
            let value = accumulator.value();
            match group {
                None => drop(metrics.insert(name.clone(), value)),
                Some(group) => {
                    metrics.insert(format!("{name}[{group}]"), value);
                    groups.entry(name).or_default().push(value);
                }
            }
        }
        for (name, values) in groups {
            metrics.insert(name.into(), values.iter().sum::<f64>() / values.len() as f64);
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
        let parts =
            [("a", 0.5, 2.0), ("b", 0.25, 1.0), ("a", 1.0, 6.0)].map(|(group, x, weight)| {
                let mut part = Scores::default();
                for scores in [&mut part, &mut all] {
                    scores.mean("accuracy", x, weight);
                    scores.nrmse("error", group, &[x as f32, 0.0], &[0.0, 1.0]);
                }
                part
            });
        let mut merged = Scores::default();
        for part in &parts {
            // As ranks send them to each other.
            let told = serde_json::to_vec(part).unwrap();
            merged.merge(&serde_json::from_slice(&told).unwrap());
        }
        assert_eq!(merged, all);
        let metrics = merged.metrics();
        let [of_a, of_b] = [3.25_f64 / 2.0, 1.0625].map(f64::sqrt);
        let expected = [
            ("accuracy", 7.25 / 9.0),
            ("error", (of_a + of_b) / 2.0),
            ("error[a]", of_a),
            ("error[b]", of_b),
        ];
        assert_eq!(metrics.iter().map(|(n, v)| (n.as_str(), *v)).collect::<Vec<_>>(), expected);
    }
}
