//! The part of a result that a leaderboard keeps.

use report::evaluation::{Direction, Metric, MetricsFile, Scores, Subject};
use serde::{Deserialize, Serialize};
use std::path::Path;
use unix::Result;

/// What was evaluated, and its metrics over all samples.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Scored {
    /// Identifies the evaluation; see [`Subject::hash`].
    pub evaluation: String,
    /// What was evaluated.
    #[serde(flatten)]
    pub subject: Subject,
    /// Its scores, without the values of single steps.
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
    /// Reads the result in a folder of `evaluate score`. Errors: those of [`MetricsFile::read`].
    pub fn read(folder: &Path) -> Result<Self> {
        MetricsFile::read(folder).map(Self::from)
    }

    /// A metric by its name; see [`Scores::metric`].
    pub fn metric(&self, name: &str) -> Option<&Metric> {
        self.scores.metric(name)
    }

    /// Orders results by a metric, the lowest first: infinite without the metric, and if it is not finite.
    pub(super) fn order(&self, metric: &str, direction: Direction) -> f64 {
        let value = self.metric(metric).map(|metric| metric.value);
        let value = value.filter(|value| value.is_finite());
        value.map_or(f64::INFINITY, |value| direction.sign() * value)
    }
}
