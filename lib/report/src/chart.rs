//! Charts of metrics by update, one curve per run; [`crate::terminal`] and [`crate::picture`] draw them.

use crate::axis::Axis;
use crate::history::{History, Series};

/// A chart of one metric.
#[derive(Clone, Debug)]
pub struct Chart {
    /// The metric, as in [`History::metric`].
    pub metric: String,
    /// What it shows.
    pub title: String,
    /// The updates.
    pub x: Axis,
    /// The values.
    pub y: Axis,
    /// The curves of the runs that have the metric, in the order of the runs.
    pub curves: Vec<Curve>,
}

/// The curve of a run.
#[derive(Clone, Debug)]
pub struct Curve {
    /// Number of the run, which determines its colour in all charts.
    pub run: usize,
    /// Its name; empty in a chart of a single run.
    pub name: String,
    /// The values by update.
    pub points: Series,
    /// Whether a line joins its points.
    pub joined: bool,
}

impl Chart {
    /// The chart of a metric of [`History::metric`]; None if no run has it. The values have a logarithmic axis if they
    /// are positive and span more than a factor of 5.
    pub fn new(metric: &str, runs: &[(String, &History)]) -> Option<Self> {
        let curve = |(run, (name, history)): (usize, &(String, &History))| {
            let name = if runs.len() > 1 { name.clone() } else { String::new() };
            Curve { run, name, points: history.metric(metric), joined: true }
        };
        let mut curves: Vec<Curve> = runs.iter().enumerate().map(curve).collect();
        curves.retain(|curve| !curve.points.is_empty());
        let points = || curves.iter().flat_map(|curve| &curve.points).copied();
        let values = || points().map(|(_, value)| value);
        let (first, last) = span(points().map(|(update, _)| update))?;
        let (low, high) = span(values())?;
        // Both may end at zero.
        let from_zero = ["learning_rate", "throughput"].contains(&metric) && low >= 0.0;
        let y = if from_zero {
            Axis::linear("", 0.0, if high > 0.0 { 1.05 * high } else { 1.0 })
        } else if low > 0.0 && high >= 5.0 * low {
            Axis::logarithmic("", values())
        } else {
            // A constant needs a range as well.
            let margin = (0.05 * (high - low)).max(0.01 * high.abs()).max(1e-12);
            Axis::linear("", low - margin, high + margin)
        };
        let x = Axis::linear("update", first.min(0.0), last.max(1.0));
        Some(Self { metric: metric.into(), title: title(metric), x, y, curves })
    }

    /// The metrics that some run has.
    pub fn names(runs: &[(String, &History)]) -> Vec<String> {
        let mut names = Vec::new();
        for name in runs.iter().flat_map(|(_, history)| history.metrics()) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }

    /// The charts of these metrics, or of all that some run has; without those of a part, `NAME[PART]`, beside `NAME`.
    pub fn all(metrics: &[String], runs: &[(String, &History)]) -> Vec<Self> {
        let mut all = if metrics.is_empty() { Self::names(runs) } else { metrics.to_vec() };
        if metrics.is_empty() {
            let names = all.clone();
            let is_part = |name: &String| {
                name.split_once('[').is_some_and(|(whole, _)| names.iter().any(|n| n == whole))
            };
            all.retain(|name| !is_part(name));
        }
        all.iter().filter_map(|metric| Self::new(metric, runs)).collect()
    }
}

fn title(metric: &str) -> String {
    match metric {
        "loss" => "training loss".into(),
        "throughput" => "throughput (samples/s)".into(),
        "learning_rate" | "gradient_norm" => metric.replace('_', " "),
        other => match other.split_once('.') {
            Some(("validation", name)) => format!("validation {name}"),
            Some(("loss_terms", name)) => format!("training loss: {name}"),
            _ => format!("validation {other}"),
        },
    }
}

fn span(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.fold(None, |span, value| {
        let (low, high) = span.unwrap_or((value, value));
        Some((low.min(value), high.max(value)))
    })
}

/// At most `count` points: means of equally many neighbours.
pub(crate) fn thinned(series: &Series, count: usize) -> Series {
    let group = series.len().div_ceil(count.max(1)).max(1);
    let mean = |points: &[(f64, f64)]| {
        let count = points.len() as f64;
        let sum = points.iter().fold((0.0, 0.0), |sum, p| (sum.0 + p.0, sum.1 + p.1));
        (sum.0 / count, sum.1 / count)
    };
    series.chunks(group).map(mean).collect()
}
