//! Results of runs and evaluations: comparison, gates, leaderboards, and the analysis of a training log.
//!
//! Everything here reads the files that other programs wrote (metrics.json, log.jsonl, config.yaml) and runs no model.
//! Two evaluations are compared only if they followed the same protocol; see [`Scored`].

mod advice;
mod analysis;
mod board;
mod compare;
mod gate;
mod metrics;
mod scored;

pub use advice::Advice;
pub use analysis::Analysis;
pub use board::{Board, Row};
pub use compare::Comparison;
pub use gate::{Check, Gate};
pub use scored::{Report, Scored};

use report::document::{Cell, equal_precision};
use serde_json::{Map, Value};

/// Significant digits of metrics in tables.
const DIGITS: usize = 4;

/// Cells with the values of one quantity, in equal precision. If `mark`, the lowest is marked, unless all are equal.
fn cells(values: &[Option<f64>], mark: bool) -> Vec<Cell> {
    let known = || values.iter().flatten().copied();
    let lowest = known().reduce(f64::min);
    let differ = known().any(|value| Some(value) != lowest);
    let is_best = |value: &Option<f64>| mark && differ && value.is_some() && *value == lowest;
    let texts = equal_precision(values, DIGITS);
    texts.into_iter().zip(values).map(|(text, v)| Cell::number(text).best(is_best(v))).collect()
}

/// Whether a metric is an error, of which lower values are better. Of others no value is marked as the best.
fn is_error(metric: &str) -> bool {
    let quantity = metric.rsplit('.').next().unwrap_or(metric);
    ["mse", "mae", "error", "crps"].iter().any(|part| quantity.contains(part))
}

/// The keys of all maps, in the order in which they first occur.
fn names<'a>(maps: impl Iterator<Item = &'a Map<String, Value>>) -> Vec<String> {
    let mut names = Vec::new();
    for name in maps.flat_map(Map::keys) {
        if !names.contains(name) {
            names.push(name.clone());
        }
    }
    names
}

/// A number of a file in JSON, which has null for one that is not finite.
fn number(value: &Value) -> Option<f64> {
    if value.is_null() { Some(f64::NAN) } else { value.as_f64() }
}

/// Adds the leaves of nested objects to `out`, by path: `{"a": {"b": 1}}` gives `a.b`.
fn flatten(path: &str, value: &Value, out: &mut Map<String, Value>) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (key, value) in fields {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                flatten(&path, value, out);
            }
        }
        leaf => _ = out.insert(path.into(), leaf.clone()),
    }
}
