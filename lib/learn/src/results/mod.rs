//! Results of runs and evaluations: comparison, gates, leaderboards, and the analysis of a training log.
//!
//! This module reads only files written by other programs (metrics.json, losses.csv, log.jsonl, config.yaml); it runs
//! no model and is independent of the task. Two evaluations are compared only if they followed the same protocol; see
//! [`report::evaluation::Subject`].

mod advice;
mod analysis;
mod board;
mod compare;
mod difference;
mod evaluations;
mod gate;
mod scored;

pub use advice::Advice;
pub use analysis::Analysis;
pub use board::{Board, Ranking, Row};
pub use compare::{Comparison, Line};
pub use gate::{Check, Gate};
pub use scored::Scored;

use report::document::{Cell, equal_precision};
use report::evaluation::{Direction, Metric};
use serde_json::{Map, Value};

/// Number of significant digits of metrics in tables.
const DIGITS: usize = 4;

/// Formats the values of one metric as cells of equal precision, with their intervals. The best value in `direction` is
/// highlighted, unless all values are equal.
fn cells(metrics: &[Option<&Metric>], direction: Option<Direction>) -> Vec<Cell> {
    let values: Vec<Option<f64>> =
        metrics.iter().map(|metric| metric.map(|metric| metric.value)).collect();
    let known = || values.iter().flatten().copied();
    let best = direction.and_then(|direction| {
        known().reduce(|a, b| if direction.is_better(b, a) || a.is_nan() { b } else { a })
    });
    let differ = known().any(|value| Some(value) != best);
    let texts = equal_precision(&values, DIGITS);
    let cell = |(text, metric): (String, &Option<&Metric>)| {
        let is_best = differ && best.is_some_and(|best| metric.is_some_and(|m| m.value == best));
        let interval = metric.and_then(|metric| metric.interval);
        Cell::number(with_interval(&text, interval)).best(is_best)
    };
    texts.into_iter().zip(metrics).map(cell).collect()
}

/// Appends an interval to the text of a number, in the same precision but with at least two significant digits of the
/// interval width.
fn with_interval(text: &str, interval: Option<[f64; 2]>) -> String {
    let Some([low, high]) = interval else { return text.into() };
    if text.contains('e') {
        return format!("{text} [{low:.*e}, {high:.*e}]", DIGITS - 1, DIGITS - 1);
    }
    let own = text.split_once('.').map_or(0, |(_, decimals)| decimals.len());
    let width = high - low;
    let needed = if width > 0.0 { (1.0 - width.log10().floor()).clamp(0.0, 9.0) } else { 0.0 };
    let decimals = own.max(needed as usize);
    format!("{text} [{low:.decimals$}, {high:.decimals$}]")
}

/// Returns the distinct keys in the order in which they first occur.
fn names<'a>(keys: impl Iterator<Item = &'a String>) -> Vec<String> {
    let mut names = Vec::new();
    for name in keys {
        if !names.contains(name) {
            names.push(name.clone());
        }
    }
    names
}

/// Converts a JSON value to a number; None for null, which stands for a non-finite number.
fn number(value: &Value) -> Option<f64> {
    if value.is_null() { Some(f64::NAN) } else { value.as_f64() }
}

/// Adds the leaves of nested objects to `out`, by path: `{"a": {"b": 1}}` gives `a.b`.
fn flatten(path: &str, value: &Value, out: &mut Map<String, Value>) {
    match value {
        Value::Object(fields) if path.is_empty() || !fields.is_empty() => {
            for (key, value) in fields {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                flatten(&path, value, out);
            }
        }
        leaf => _ = out.insert(path.into(), leaf.clone()),
    }
}

/// Small hand-written results.
#[cfg(test)]
mod examples {
    use super::*;
    use report::evaluation::{FORMAT, MetricsFile, Scores, Subject, VERSION};
    use serde_json::json;
    use std::path::Path;

    /// Creates a result of a model with the metrics error and score, each with an interval, and a baseline.
    pub fn result(error: f64, score: f64) -> MetricsFile {
        let around = |metric: Metric| {
            let interval = [metric.value - 0.05, metric.value + 0.05];
            metric.with_interval(Some(interval))
        };
        let own = [
            ("error", around(Metric::error(error))),
            ("f1", around(Metric::score(score))),
            ("count", Metric::plain(3.0)),
        ];
        let naive = [("error", Metric::error(1.0)), ("f1", Metric::score(0.25))];
        let of = |metrics: &[(&str, Metric)]| {
            metrics.iter().map(|(name, metric)| (name.to_string(), metric.clone())).collect()
        };
        let methods = [("tool".to_string(), of(&own)), ("naive".to_string(), of(&naive))];
        let Value::Object(protocol) = json!({"data_hash": "0123456789abcdef", "split": "test"})
        else {
            unreachable!()
        };
        let model = json!({"checkpoint": "run/ckpt/step-1", "blake3": format!("{error} {score}")});
        let Value::Object(models) = json!({"tool": model}) else { unreachable!() };
        let subject = Subject {
            task: "tool".into(),
            metric: "error".into(),
            description: "12 items".into(),
            protocol,
            models,
            ..Subject::default()
        };
        let scores = Scores { samples: 12, methods: methods.into_iter().collect() };
        MetricsFile {
            format: FORMAT.into(),
            version: VERSION,
            subject,
            scores,
            groups: Vec::new(),
            details: Map::new(),
        }
    }

    /// Writes a result to a folder.
    pub fn store(folder: &Path, result: &MetricsFile) {
        std::fs::create_dir_all(folder).unwrap();
        std::fs::write(folder.join("metrics.json"), json!(result).to_string()).unwrap();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_value_in_its_direction_is_marked() {
        let metrics = [0.5, f64::NAN, 0.25, 0.25].map(Metric::plain);
        let metrics: Vec<Option<&Metric>> = metrics.iter().map(Some).chain([None]).collect();
        let marked = |direction| {
            let cells = cells(&metrics, direction).into_iter();
            cells.map(|cell| cell == cell.clone().best(true)).collect::<Vec<_>>()
        };
        assert_eq!(marked(Some(Direction::Minimize)), [false, false, true, true, false]);
        assert_eq!(marked(Some(Direction::Maximize)), [true, false, false, false, false]);
        assert_eq!(marked(None), [false; 5]);
        let equal = [0.5, 0.5].map(Metric::plain);
        let cells = cells(&equal.each_ref().map(Some), Some(Direction::Minimize));
        assert!(cells.iter().all(|cell| *cell != cell.clone().best(true)));
    }

    #[test]
    fn intervals_have_the_precision_of_their_value_and_of_their_width() {
        for (text, interval, expected) in [
            ("0.1235", [0.1, 0.15], "0.1235 [0.1000, 0.1500]"),
            ("1", [0.97, 1.0], "1 [0.970, 1.000]"),
            ("3.200e-9", [1e-9, 4e-9], "3.200e-9 [1.000e-9, 4.000e-9]"),
            ("5", [5.0, 5.0], "5 [5, 5]"),
        ] {
            assert_eq!(with_interval(text, Some(interval)), expected);
        }
        assert_eq!(with_interval("–", None), "–");
    }
}
