//! Analysis of a training run from its log, configuration and status.

use super::advice::{self, Advice};
use super::{cells, number};
use crate::checkpoint::monitor_of;
use report::chart::Chart;
use report::document::{Cell, Document, Table};
use report::evaluation::{Direction, Metric};
use report::history::{History, Series};
use report::picture::{self, Format};
use serde::Serialize;
use serde_json::{Map, Value};
use std::path::Path;
use unix::run_dir::RunDir;
use unix::status::{self, Status};
use unix::{Error, Result};

/// Analysis of the log of a run. Quantities that the log does not contain are None.
#[derive(Debug, Serialize)]
pub struct Analysis {
    /// Run directory, as passed in.
    pub run: String,
    /// Task name.
    pub task: Option<String>,
    /// State of the run: running, stopped, finished or failed.
    pub state: Option<status::State>,
    /// The monitored validation metric.
    pub metric: Option<String>,
    /// Quantities shown in the table, by name.
    pub quantities: Map<String, Value>,
    /// Recommended configuration changes.
    pub advice: Vec<Advice>,
    /// The resolved configuration.
    #[serde(skip)]
    pub(super) config: Value,
    #[serde(skip)]
    pub(super) direction: Direction,
    #[serde(skip)]
    history: History,
    /// Training loss by update.
    #[serde(skip)]
    pub(super) loss: Series,
    /// Monitored metric by update.
    #[serde(skip)]
    pub(super) validation: Series,
}

impl Analysis {
    /// Reads and analyses a run. Errors: 66 if it has no log or configuration, 65 for a damaged configuration or
    /// status.
    pub fn read(path: &Path) -> Result<Self> {
        let run = RunDir::open(path)?;
        let history = History::read(&run.log())?;
        let damaged = history.bad_lines();
        if damaged > 0 {
            unix::warn!("{}: skipped {damaged} damaged lines", run.log().display());
        }
        let config = run.read_config()?;
        let status = status::read(&run.status())?.unwrap_or_default();
        let monitor = monitor_of(path).ok();
        Ok(Self::of(path.display().to_string(), history, config, &status, monitor))
    }

    /// Analyses this history.
    pub(super) fn of(
        run: String,
        history: History,
        config: Value,
        status: &Status,
        monitor: Option<(String, Direction)>,
    ) -> Self {
        let metric = monitor.as_ref().map(|(metric, _)| metric.clone());
        let validation = metric.iter().flat_map(|m| history.series("validation", m)).collect();
        let task = history.notes("start").next().map(|(_, task)| task.to_string());
        let mut analysis = Self {
            run,
            task,
            state: (!status.time.is_empty()).then_some(status.state),
            metric,
            quantities: Map::new(),
            advice: Vec::new(),
            config,
            direction: monitor.map_or(Direction::default(), |(_, direction)| direction),
            loss: history.metric("loss"),
            validation,
            history,
        };
        analysis.measure(3600.0 * status.cost.hours);
        analysis.advice = advice::of(&analysis);
        analysis
    }

    /// Returns a quantity from the table.
    pub(super) fn get(&self, name: &str) -> Option<f64> {
        number(self.quantities.get(name)?)
    }

    fn measure(&mut self, seconds: f64) {
        let history = &self.history;
        let count = |kind| Some(history.count(kind) as f64);
        let loss: Vec<f64> = self.loss.iter().map(|(_, loss)| *loss).collect();
        let norms = history.values("update", "gradient_norm");
        let best =
            self.validation.iter().copied().reduce(|best, now| {
                if self.direction.is_better(now.1, best.1) { now } else { best }
            });
        let clip = self.config["training"]["clip_grad_norm"].as_f64();
        let update_s = history.values("update", "seconds");
        let percent = |part: f64, whole: f64| (whole > 0.0).then(|| 100.0 * part / whole);
        let sum = |values: &[f64]| values.iter().sum::<f64>();
        let spent = |kind, field| percent(sum(&history.values(kind, field)), seconds);
        let waited = |field| percent(sum(&history.values("update", field)), sum(&update_s));
        let validated = self.metric.as_ref().and_then(|metric| history.last("validation", metric));
        let highest = |values: &[f64]| values.iter().copied().reduce(f64::max);
        let tail = &loss[loss.len() - loss.len().div_ceil(10)..];
        let tail_mean = (!tail.is_empty()).then(|| mean(tail));
        let rates = history.values("update", "learning_rate");
        let reduction =
            loss.first().zip(tail_mean).and_then(|(first, last)| percent(first - last, *first));
        let all = [
            ("updates", self.loss.last().map(|(update, _)| *update)),
            ("parameters", history.values("start", "parameters").first().copied()),
            ("loss, first", loss.first().copied()),
            ("loss, lowest", loss.iter().copied().reduce(f64::min)),
            ("loss, mean of last tenth", tail_mean),
            ("loss, reduction (%)", reduction),
            ("loss, change over last tenth (%)", change_over_last_tenth(&loss)),
            ("validation, best", best.map(|(_, value)| value)),
            ("validation, best at update", best.map(|(update, _)| update)),
            ("validation, last", validated),
            ("learning rate, largest", highest(&rates)),
            ("learning rate, last", rates.last().copied()),
            ("gradient norm, median", median(&norms)),
            ("gradient norm, largest", highest(&norms)),
            ("gradient norm, last", norms.last().copied()),
            (
                "clipped updates (%)",
                clip.and_then(|clip| {
                    percent(
                        norms.iter().filter(|norm| **norm > clip).count() as f64,
                        norms.len() as f64,
                    )
                }),
            ),
            ("time per update (ms)", median(&update_s).map(|s| 1000.0 * s)),
            ("waiting for data (%)", waited("data_wait_s")),
            (
                "waiting for other ranks (%)",
                waited("comm_wait_s")
                    .filter(|_| !history.values("update", "comm_wait_s").is_empty()),
            ),
            ("validating (%)", spent("validation", "seconds")),
            ("blocked by checkpoints (%)", spent("checkpoint", "blocked_s")),
            ("checkpoints", count("checkpoint")),
            ("checkpoint size (MB)", history.values("checkpoint", "bytes").last().map(|b| b / 1e6)),
            ("time to save a checkpoint (s)", median(&history.values("saved", "seconds"))),
            ("spikes", count("spike")),
            ("skipped updates", highest(&history.values("update", "skipped"))),
            ("rewinds", Some(highest(&history.values("rewind", "rewinds")).unwrap_or(0.0))),
            ("warnings", count("warning")),
            ("attempts", history.highest("attempt")),
            ("superseded records", Some(history.superseded() as f64)),
            ("wall-clock time (h)", (seconds > 0.0).then_some(seconds / 3600.0)),
        ];
        let number = |value: f64| match value.fract() == 0.0 && value.abs() < 9e15 {
            true => Value::from(value as i64),
            false => Value::from(value),
        };
        self.quantities =
            all.into_iter().filter_map(|(k, v)| Some((k.into(), number(v?)))).collect();
    }

    /// Creates the report of a single run.
    pub fn document(&self) -> Result<Document> {
        let mut document = Document::new(format!("Analysis of {}", self.run));
        let state = match self.state {
            Some(state) => serde_json::to_value(state).map_err(Error::bug)?,
            None => Value::from("new"),
        };
        let metric = self
            .metric
            .as_ref()
            .map_or(String::new(), |metric| format!("; validation metric: {metric}"));
        let task = self.task.as_deref().unwrap_or("unknown task");
        document.paragraph(format!(
            "{}: {task}, {}{metric}.",
            self.run,
            state.as_str().unwrap_or("")
        ));
        document.heading("Advice");
        if self.advice.is_empty() {
            document.paragraph("Nothing in the log suggests a change.");
        }
        document.list(self.advice.iter().map(|advice| advice.text.clone()).collect());
        document.heading("Quantities");
        document.table(table(&[self]));
        curves(&mut document, &[self])?;
        Ok(document)
    }
}

/// Adds the curves of runs to a report: loss, monitored metric, gradient norm and learning rate.
pub(super) fn curves(document: &mut Document, runs: &[&Analysis]) -> Result<()> {
    let histories: Vec<_> = runs.iter().map(|run| (run.run.clone(), &run.history)).collect();
    let metric = runs.iter().find_map(|run| run.metric.as_ref());
    let mut names = ["loss", "gradient_norm", "learning_rate"].map(str::to_string).to_vec();
    names.splice(1..1, metric.map(|metric| format!("validation.{metric}")));
    let charts = Chart::all(&names, &histories);
    if !charts.is_empty() {
        document.heading("Curves");
        let caption = "Loss, validation metric, gradient norm and learning rate by update.";
        document.picture(caption, picture::draw(&charts, Format::Png)?);
    }
    Ok(())
}

/// Tabulates the quantities of runs: one row per quantity, one column per run.
pub(super) fn table(runs: &[&Analysis]) -> Table {
    let names = runs.iter().map(|run| run.run.clone());
    let mut table = Table::new(std::iter::once("quantity".to_string()).chain(names));
    for name in super::names(runs.iter().flat_map(|run| run.quantities.keys())) {
        let values: Vec<Option<Metric>> =
            runs.iter().map(|run| run.get(&name).map(Metric::plain)).collect();
        let values: Vec<Option<&Metric>> = values.iter().map(Option::as_ref).collect();
        let direction = match name.as_str() {
            "validation, best" => Some(runs[0].direction),
            "time per update (ms)" => Some(Direction::Minimize),
            _ => None,
        };
        table.row(std::iter::once(Cell::text(name)).chain(cells(&values, direction)));
    }
    table
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    let pair = [sorted.get(middle.wrapping_sub(1)), sorted.get(middle)];
    match pair {
        [Some(a), Some(b)] if sorted.len().is_multiple_of(2) => Some(0.5 * (a + b)),
        [_, b] => b.copied(),
    }
}

/// Relative change in percent of the mean from the second-to-last tenth of the values to the last tenth; 0 if it is
/// less than twice its standard error, None if a tenth has fewer than five values or the mean is not positive.
fn change_over_last_tenth(values: &[f64]) -> Option<f64> {
    let count = values.len() / 10;
    if count < 5 {
        return None;
    }
    let (earlier, last) = values[values.len() - 2 * count..].split_at(count);
    let variance = |values: &[f64]| {
        let centre = mean(values);
        values.iter().map(|v| (v - centre).powi(2)).sum::<f64>() / (count - 1) as f64
    };
    let (was, is) = (mean(earlier), mean(last));
    let error = ((variance(earlier) + variance(last)) / count as f64).sqrt();
    let change = if (is - was).abs() < 2.0 * error { 0.0 } else { is - was };
    (was > 0.0).then(|| 100.0 * change / was)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_odd_and_even_numbers() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!((median(&[7.0]), median(&[])), (Some(7.0), None));
    }

    #[test]
    fn a_trend_is_distinguished_from_noise() {
        // A straight line from 2 to 1 over 100 values: mean 2 - 84.5/99 over the second-to-last tenth, 2 - 94.5/99 over
        // the last.
        let line: Vec<f64> = (0..100).map(|i| 2.0 - f64::from(i) / 99.0).collect();
        let (was, is) = (2.0 - 84.5 / 99.0, 2.0 - 94.5 / 99.0);
        let found = change_over_last_tenth(&line).unwrap();
        assert!((found - 100.0 * (is / was - 1.0)).abs() < 1e-9, "{found}");
        // The means of tenths of an alternating sequence differ by less than their standard error.
        let noise: Vec<f64> = (0..99).map(|i| 1.0 + f64::from(i % 2)).collect();
        assert_eq!(change_over_last_tenth(&noise), Some(0.0));
        assert_eq!(change_over_last_tenth(&line[..49]), None);
    }
}
