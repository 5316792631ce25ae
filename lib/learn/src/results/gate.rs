//! Gates: conditions that a result must meet, relative to a baseline on a leaderboard.

use super::{Board, Row, Scored};
use report::document::equal_precision;
use report::evaluation::Direction;
use serde::Serialize;
use unix::{Error, Result, text};

/// Conditions that a candidate must meet.
#[derive(Clone, Debug)]
pub struct Gate {
    /// Metric that must improve; by default the primary metric of the candidate.
    pub metric: Option<String>,
    /// Minimum improvement over the baseline.
    pub min_improvement: f64,
    /// Other metrics, with the maximum factor by which each may be worse than in the baseline.
    pub max_ratios: Vec<(String, f64)>,
}

/// Outcome of a condition.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Check {
    /// Kind of condition: `improvement` or `ratio`; `measured` without a baseline.
    pub gate: &'static str,
    /// Name of the metric.
    pub metric: String,
    /// Whether the metric is minimised or maximised.
    pub direction: Direction,
    /// Value for the candidate.
    pub candidate: Option<f64>,
    /// Value for the baseline.
    pub baseline: Option<f64>,
    /// Worst value that passes.
    pub limit: Option<f64>,
    /// Whether the candidate passes.
    pub passed: bool,
}

impl Gate {
    fn metric<'g>(&'g self, candidate: &'g Scored) -> &'g String {
        self.metric.as_ref().unwrap_or(&candidate.subject.metric)
    }

    /// Returns the best row by the gate's metric with the protocol of `candidate`, from the first of `labels` that has
    /// such rows. Rows of the candidate's own evaluation are ignored, so that it never competes with itself.
    ///
    /// Errors: 2 for a metric that is neither minimised nor maximised.
    pub fn baseline<'b>(
        &self,
        board: &'b Board,
        candidate: &Scored,
        labels: &[String],
    ) -> Result<Option<&'b Row>> {
        let metric = self.metric(candidate);
        let direction = direction(candidate, metric)?;
        let may_serve = |row: &&Row| {
            row.scored.subject.protocol == candidate.subject.protocol
                && row.scored.evaluation != candidate.evaluation
        };
        let order = |row: &&Row| row.scored.order(metric, direction);
        Ok(labels.iter().find_map(|label| {
            let rows = board.rows.iter().filter(|row| row.label == *label).filter(may_serve);
            rows.min_by(|a, b| order(a).total_cmp(&order(b)))
        }))
    }

    /// Compares the candidate with the baseline; without a baseline, only requires that the candidate has all metrics.
    ///
    /// Errors: 2 for a metric that is neither minimised nor maximised.
    pub fn check(&self, candidate: &Scored, baseline: Option<&Scored>) -> Result<Vec<Check>> {
        let value =
            |scored: &Scored, metric: &String| scored.metric(metric).map(|found| found.value);
        let check = |gate, metric: &String, limit: &dyn Fn(f64, Direction) -> f64| {
            let direction = direction(candidate, metric)?;
            let limit = |base| limit(base, direction);
            let own = value(candidate, metric);
            let base = baseline.map(|base| value(base, metric));
            let passes = |own: f64, limit| own == limit || direction.is_better(own, limit);
            let (gate, limit, passed) = match (own, base) {
                (own, None) => ("measured", None, own.is_some_and(f64::is_finite)),
                (Some(own), Some(Some(base))) => {
                    (gate, Some(limit(base)), passes(own, limit(base)))
                }
                (_, Some(base)) => (gate, base.map(limit), false),
            };
            let (metric, baseline) = (metric.clone(), base.flatten());
            Ok(Check { gate, metric, direction, candidate: own, baseline, limit, passed })
        };
        let improved = |base: f64, to: Direction| base - to.sign() * self.min_improvement;
        let mut checks = vec![check("improvement", self.metric(candidate), &improved)?];
        for (metric, factor) in &self.max_ratios {
            let worse = |base: f64, to| match to {
                Direction::Minimize => factor * base,
                Direction::Maximize => base / factor,
            };
            checks.push(check("ratio", metric, &worse)?);
        }
        Ok(checks)
    }
}

/// Returns the direction in which a metric improves; for a missing metric, which fails anyway, `Minimize`.
fn direction(candidate: &Scored, name: &str) -> Result<Direction> {
    match candidate.metric(name) {
        None => Ok(Direction::default()),
        Some(metric) => metric.direction.ok_or_else(|| {
            Error::usage(format!(
                "{}: neither smaller nor larger values are better, so it cannot be a condition",
                text::quote(name)
            ))
        }),
    }
}

impl Check {
    /// Describes the candidate value and the limit in one line.
    pub fn describe(&self, baseline: &str) -> String {
        let Self { metric, candidate, baseline: base, limit, .. } = self;
        match (candidate, base, limit) {
            (None, ..) => format!("{metric}: the report has no such metric"),
            (Some(own), ..) if !own.is_finite() => {
                format!("{metric}: the value is NaN or infinite, which fails any limit")
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
                let beyond = match self.direction {
                    Direction::Minimize => "above",
                    Direction::Maximize => "below",
                };
                format!(
                    "{metric} is {own}, {beyond} the limit of {limit}: the baseline, {baseline}, has {base}"
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::examples::result;
    use super::*;

    fn gate(metric: Option<&str>, min_improvement: f64, max_ratios: &[(&str, f64)]) -> Gate {
        let max_ratios = max_ratios.iter().map(|(name, factor)| (name.to_string(), *factor));
        Gate { metric: metric.map(String::from), min_improvement, max_ratios: max_ratios.collect() }
    }

    #[test]
    fn metrics_must_improve_in_their_direction() {
        let (base, own) = (Scored::from(result(0.5, 0.5)), Scored::from(result(0.25, 0.75)));
        for (metric, ratio, gain, factor, passed) in [
            (None, "f1", 0.25, 1.0, [true, true]),
            (None, "f1", 0.375, 0.625, [false, false]),
            (Some("f1"), "error", 0.25, 0.5, [true, true]),
            (Some("f1"), "error", 0.375, 0.375, [false, false]),
            (Some("naive.f1"), "tool.error", 0.0, 1.0, [true, true]),
        ] {
            let gate = gate(metric, gain, &[(ratio, factor)]);
            let checks = gate.check(&own, Some(&base)).unwrap();
            assert_eq!([checks[0].passed, checks[1].passed], passed, "{checks:?}");
        }
        // With the roles swapped, the candidate is worse; the limits bound by which factor.
        let limits = [("error", 2.0), ("error", 1.75), ("f1", 1.5), ("f1", 1.25)];
        let checks = gate(None, -1.0, &limits).check(&base, Some(&own)).unwrap();
        let passed: Vec<bool> = checks.iter().map(|check| check.passed).collect();
        assert_eq!(passed, [true, true, false, true, false]);
        assert!(checks[2].describe("x").contains("error is 0.50000, above the limit of 0.43750"));
        assert!(checks[4].describe("x").contains("f1 is 0.50000, below the limit of 0.60000"));
    }

    #[test]
    fn a_condition_needs_a_direction_and_a_value() {
        let own = Scored::from(result(0.25, 0.75));
        for gate in [gate(Some("count"), 0.0, &[]), gate(None, 0.0, &[("count", 1.0)])] {
            let error = gate.check(&own, None).unwrap_err();
            assert_eq!(error.exit, unix::Exit::Usage);
            assert!(error.to_string().contains("count: neither smaller nor larger"), "{error}");
        }
        let missing = gate(Some("no_such"), -9.0, &[]).check(&own, Some(&own)).unwrap();
        assert!(!missing[0].passed && missing[0].describe("x").contains("no such metric"));
        let broken = Scored::from(result(f64::NAN, 0.75));
        for (own, base) in [(&own, Some(&broken)), (&broken, Some(&own)), (&broken, None)] {
            assert!(!gate(None, -9.0, &[]).check(own, base).unwrap()[0].passed);
        }
    }

    #[test]
    fn the_baseline_is_the_best_row_in_the_direction_of_the_metric() {
        let own = Scored::from(result(0.125, 0.5));
        let mut other = result(0.0, 1.0);
        other.subject.protocol["split"] = "validation".into();
        let all = [result(0.5, 0.875), result(f64::NAN, f64::NAN), result(0.25, 0.75), other];
        let rows = all.into_iter().enumerate();
        let mut rows: Vec<Row> = rows
            .map(|(at, file)| Row::new("x", &at.to_string(), None, Scored::from(file)))
            .collect();
        rows.push(Row::new("x", "own", None, own.clone()));
        let board = Board { rows };
        let labels = ["none".to_string(), "x".to_string()];
        for (metric, name) in [(None, "2"), (Some("f1"), "0")] {
            let found = gate(metric, 0.0, &[]).baseline(&board, &own, &labels).unwrap();
            assert_eq!(found.unwrap().name, name, "{metric:?}");
        }
        assert!(gate(None, 0.0, &[]).baseline(&board, &own, &labels[..1]).unwrap().is_none());
    }
}
