//! Gates: conditions that a result must meet, relative to a baseline on a leaderboard.

use super::{Board, Row, Scored};
use report::document::equal_precision;
use serde::Serialize;

/// The conditions.
#[derive(Clone, Debug)]
pub struct Gate {
    /// The metric that must improve; lower is better.
    pub metric: String,
    /// How far it must be below that of the baseline.
    pub min_improvement: f64,
    /// Metrics and the largest allowed ratio to the baseline.
    pub max_ratios: Vec<(String, f64)>,
}

/// The outcome of one condition.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Check {
    /// `improvement` or `ratio`; `measured` without a baseline.
    pub gate: &'static str,
    /// The metric.
    pub metric: String,
    /// Its value for the candidate.
    pub candidate: Option<f64>,
    /// Its value for the baseline.
    pub baseline: Option<f64>,
    /// The largest value that passes.
    pub limit: Option<f64>,
    /// Whether the candidate passes.
    pub passed: bool,
}

impl Gate {
    /// The best row by the gate's metric of the first of `labels` that has rows with the protocol of `candidate`. Rows
    /// of the candidate's own evaluation do not count, so that it never competes with itself.
    pub fn baseline<'b>(
        &self,
        board: &'b Board,
        candidate: &Scored,
        labels: &[String],
    ) -> Option<&'b Row> {
        let may_serve = |row: &&Row| {
            row.scored.protocol == candidate.protocol
                && row.scored.evaluation != candidate.evaluation
        };
        let value = |row: &&Row| row.scored.metric(&self.metric).unwrap_or(f64::INFINITY);
        labels.iter().find_map(|label| {
            let rows = board.rows.iter().filter(|row| row.label == *label).filter(may_serve);
            rows.min_by(|a, b| value(a).total_cmp(&value(b)))
        })
    }

    /// Compares the candidate with the baseline; without one, only requires that it has all metrics.
    pub fn check(&self, candidate: &Scored, baseline: Option<&Scored>) -> Vec<Check> {
        let check = |gate, metric: &String, limit: &dyn Fn(f64) -> f64| {
            let (own, base) = (candidate.metric(metric), baseline.map(|base| base.metric(metric)));
            let (gate, limit, passed) = match (own, base) {
                (own, None) => ("measured", None, own.is_some_and(f64::is_finite)),
                (Some(own), Some(Some(base))) => (gate, Some(limit(base)), own <= limit(base)),
                (_, Some(base)) => (gate, base.map(limit), false),
            };
            let metric = metric.clone();
            Check { gate, metric, candidate: own, baseline: base.flatten(), limit, passed }
        };
        let improvement = |base: f64| base - self.min_improvement;
        let mut checks = vec![check("improvement", &self.metric, &improvement)];
        for (metric, factor) in &self.max_ratios {
            checks.push(check("ratio", metric, &|base| factor * base));
        }
        checks
    }
}

impl Check {
    /// One line that says which value failed against which.
    pub fn describe(&self, baseline: &str) -> String {
        let Self { metric, candidate, baseline: base, limit, .. } = self;
        match (candidate, base, limit) {
            (None, ..) => format!("{metric}: the report has no such metric"),
            (Some(own), ..) if !own.is_finite() => {
                format!("{metric}: the report has NaN, which no limit allows")
            }
            (_, Some(base), _) if !base.is_finite() => {
                format!(
                    "{metric}: the baseline {baseline} has NaN; remove its row, or choose another label"
                )
            }
            (_, None, _) | (_, _, None) => {
                format!("{metric}: the baseline {baseline} has no such metric")
            }
            (Some(own), Some(base), Some(limit)) => {
                let texts = equal_precision(&[Some(*own), Some(*limit), Some(*base)], 5);
                let [own, limit, base] = [&texts[0], &texts[1], &texts[2]];
                format!(
                    "{metric} is {own}, above the limit of {limit}: the baseline, {baseline}, has {base}"
                )
            }
        }
    }
}
