//! The part of a result that a leaderboard stores.

use report::evaluation::{Direction, Metric, MetricsFile, Scores, Subject};
use serde::{Deserialize, Serialize};
use std::path::Path;
use unix::Result;

/// Subject of an evaluation, and its metrics over all samples.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Scored {
    /// Identifies the evaluation; see [`Subject::hash`].
    pub evaluation: String,
    /// Subject of the evaluation.
    #[serde(flatten)]
    pub subject: Subject,
    /// Scores, without per-step values.
    #[serde(flatten)]
    pub scores: Scores,
}

impl From<MetricsFile> for Scored {
    fn from(file: MetricsFile) -> Self {
        let MetricsFile { subject, mut scores, .. } = file;
        let metrics = scores.methods.values_mut().flat_map(|metrics| metrics.values_mut());
        metrics.for_each(|metric| metric.by_step.clear());
        Self { evaluation: subject.hash(), subject, scores }
    }
}

impl Scored {
    /// Reads the result in an output folder of `evaluate score`. Errors: as in [`MetricsFile::read`].
    pub fn read(folder: &Path) -> Result<Self> {
        MetricsFile::read(folder).map(Self::from)
    }

    /// Looks up a metric by name; see [`Scores::metric`].
    pub fn metric(&self, name: &str) -> Option<&Metric> {
        self.scores.metric(name)
    }

    /// Sort key by a metric, best first; infinite if the metric is missing or not finite.
    pub(super) fn order(&self, metric: &str, direction: Direction) -> f64 {
        let value = self.metric(metric).map(|metric| metric.value);
        let value = value.filter(|value| value.is_finite());
        value.map_or(f64::INFINITY, |value| direction.sign() * value)
    }
}
