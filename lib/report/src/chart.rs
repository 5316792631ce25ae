//! Charts, such as metrics by update with one curve per run. [`crate::terminal`] and [`crate::picture`] draw them.

use crate::axis::Axis;
use crate::history::{History, Series};
use crate::panel::Curve;

/// A chart of one metric.
#[derive(Clone, Debug)]
pub struct Chart {
    /// The metric, as in [`History::metric`].
    pub metric: String,
    /// Title of the chart.
    pub title: String,
    /// The axis of updates.
    pub x: Axis,
    /// The axis of values.
    pub y: Axis,
    /// The curves, the first one on top. Curves of runs are in the order of the runs that have the metric.
    pub curves: Vec<Curve>,
}

impl Chart {
    /// Creates the chart of a metric of [`History::metric`]; None if no run has it.
    pub fn new(metric: &str, runs: &[(String, &History)]) -> Option<Self> {
        let curve = |(run, (name, history)): (usize, &(String, &History))| {
            let name = if runs.len() > 1 { name.clone() } else { String::new() };
            Curve::of_run(run, &name, 1.8, history.metric(metric))
        };
        let mut curves: Vec<Curve> = runs.iter().enumerate().map(curve).collect();
        curves.retain(|curve| !curve.points.is_empty());
        let points = curves.iter().flat_map(|curve| &curve.points).copied();
        let (updates, values): (Vec<f64>, Vec<f64>) = points.unzip();
        let last = updates.iter().copied().reduce(f64::max)?;
        let first = updates.into_iter().fold(0.0, f64::min);
        // Learning rate and throughput may end at zero.
        let from_zero = ["learning_rate", "throughput"].contains(&metric);
        let y = if from_zero && values.iter().all(|value| *value >= 0.0) {
            let high = values.into_iter().fold(0.0, f64::max);
            Axis::linear("", 0.0, if high > 0.0 { 1.05 * high } else { 1.0 })
        } else {
            Axis::covering("", &values)
        };
        let x = Axis::linear("update", first, last.max(1.0));
        Some(Self { metric: metric.into(), title: title(metric), x, y, curves })
    }

    /// Creates a chart with a bar for each value, the first at the top.
    pub fn bars(title: &str, label: &str, values: &[(&str, f64)]) -> Self {
        let name = |(name, value): &(&str, f64)| format!("{name} {value:.3}");
        let names = values.iter().rev().map(name).collect();
        let bar = |(at, (_, value)): (usize, &(&str, f64))| {
            Curve::of_run(0, "", 9.0, [0.0, *value].map(|x| (x, at as f64)))
        };
        let most = values.iter().map(|(_, value)| *value).fold(0.0, f64::max);
        Self {
            metric: label.into(),
            title: title.into(),
            x: Axis::linear(label, 0.0, 1.06 * most),
            y: Axis::categories("", names),
            curves: values.iter().rev().enumerate().map(bar).collect(),
        }
    }

    /// Returns the names of the metrics that some run has.
    pub fn names(runs: &[(String, &History)]) -> Vec<String> {
        let mut names = Vec::new();
        for name in runs.iter().flat_map(|(_, history)| history.metrics()) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }

    /// Creates the charts of these metrics, or of all metrics that some run has, without parts `NAME[PART]` if `NAME`
    /// exists.
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

/// Thins a series to at most `count` points, each the mean of equally many neighbours.
pub(crate) fn thinned(series: &Series, count: usize) -> Series {
    let group = series.len().div_ceil(count.max(1)).max(1);
    let mean = |points: &[(f64, f64)]| {
        let count = points.len() as f64;
        let sum = points.iter().fold((0.0, 0.0), |sum, p| (sum.0 + p.0, sum.1 + p.1));
        (sum.0 / count, sum.1 / count)
    };
    series.chunks(group).map(mean).collect()
}
