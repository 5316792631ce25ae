//! The view of runs in `timekeep watch`, which uses only the files in their directories.

mod page;

use crate::history::History;
use serde::Serialize;
use std::path::PathBuf;
use unix::run_dir::RunDir;
use unix::timekeep::price::rate_per_hour;
use unix::timekeep::runs::{self, Run, RunState};
use unix::{Error, Exit, Result};

/// Number of logged updates and of seconds over which the pace is measured, whichever is longer.
const RECENT: (usize, f64) = (20, 60.0);
/// Number of warnings to show.
const WARNINGS: usize = 3;

/// Runs whose files are reread at every refresh.
pub struct Watch {
    runs: Vec<WatchedRun>,
}

struct WatchedRun {
    path: PathBuf,
    name: String,
    history: History,
    /// The newest attempt, and the price per hour that was read for it.
    rate: Option<(u64, Option<f64>)>,
    found: Result<WatchReport>,
}

/// The state of a run: a record of `timekeep watch --json`.
#[derive(Clone, Debug, Serialize)]
pub struct WatchReport {
    /// The report of `timekeep status`; for a running run, `eta` is based on the current pace.
    #[serde(flatten)]
    pub run: Run,
    /// Wall-clock seconds per update at present, including validations and checkpoints.
    pub seconds_per_update: Option<f64>,
    /// Estimated wall-clock hours of the complete run.
    pub estimated_hours: Option<f64>,
    /// Cost so far.
    pub cost: Option<f64>,
    /// Estimated cost of the complete run.
    pub estimated_cost: Option<f64>,
    /// The last logged loss.
    pub loss: Option<f64>,
    /// Name, value and update of the monitored metric in the last validation.
    pub validation: Option<Validation>,
    /// The last warnings, oldest first.
    pub warnings: Vec<String>,
}

/// The result of a validation.
#[derive(Clone, Debug, Serialize)]
pub struct Validation {
    /// The metric.
    pub metric: String,
    /// Its value.
    pub value: f64,
    /// The update at which it was validated.
    pub update: u64,
}

impl Watch {
    /// Watches these run directories, which may not exist yet.
    pub fn new(paths: &[PathBuf]) -> Self {
        let runs = paths.iter().map(|path| WatchedRun {
            path: path.clone(),
            name: path.display().to_string(),
            history: history_in(path),
            rate: None,
            found: Err(Error::open(path, "not read yet")),
        });
        Self { runs: runs.collect() }
    }

    /// Reads the files that have changed.
    pub fn refresh(&mut self) {
        for run in &mut self.runs {
            run.found = run.read();
            if run.found.is_err() {
                run.history = history_in(&run.path);
                run.rate = None;
            }
        }
    }

    /// Returns the reports, or the errors that prevent them: 66 for a directory that does not exist or is not a run, 65
    /// for a damaged status.
    pub fn reports(&self) -> impl Iterator<Item = &Result<WatchReport>> {
        self.runs.iter().map(|run| &run.found)
    }
}

fn history_in(run: &std::path::Path) -> History {
    History::new(&run.join("log.jsonl"))
}

impl WatchedRun {
    fn read(&mut self) -> Result<WatchReport> {
        let mut run = runs::look(&self.path)?;
        match self.history.refresh() {
            // The log is written after the lease.
            Err(error) if error.exit == Exit::NoInput => self.history = history_in(&self.path),
            other => other?,
        }
        let attempt = run.restarts;
        if self.rate.is_none_or(|(own, _)| own != attempt) {
            self.rate = Some((attempt, rate_per_hour(&RunDir::open(&self.path)?)));
        }
        let history = &self.history;
        let loss = history.metric("loss").last().copied();
        let is_running = run.state == RunState::Running;
        let pace = history.pace(RECENT.0, RECENT.1).filter(|_| is_running);
        if is_running {
            // The status may be a few seconds older than the log.
            run.update = run.update.max(loss.map_or(0, |(update, _)| update as u64));
            let left = |all: u64| all.saturating_sub(run.update) as f64;
            run.eta = pace.and_then(|pace| Some(pace * left(run.updates?))).or(run.eta);
        }
        let hours = match run.state {
            RunState::Finished => Some(run.hours),
            _ => run.eta.map(|eta| run.hours + eta / 3600.0),
        };
        let rate = self.rate.and_then(|(_, rate)| rate);
        let warnings = history.notes("warning").rev().take(WARNINGS);
        let mut warnings: Vec<String> = warnings.map(|(_, text)| text.to_string()).collect();
        warnings.reverse();
        Ok(WatchReport {
            seconds_per_update: pace,
            estimated_hours: hours,
            cost: rate.map(|rate| rate * run.hours),
            estimated_cost: rate.zip(hours).map(|(rate, hours)| rate * hours),
            loss: loss.map(|(_, loss)| loss),
            validation: self.validation(&run),
            warnings,
            run,
        })
    }

    /// Returns the metric of the best checkpoint or, before the first one, the first validation metric.
    fn metric(&self, run: &Run) -> Option<String> {
        let best = run.best.as_ref().and_then(|best| best.get("metric")?.as_str());
        let first = || {
            let names = self.history.metrics();
            names.iter().find_map(|name| Some(name.strip_prefix("validation.")?.to_string()))
        };
        best.map(str::to_string).or_else(first)
    }

    fn validation(&self, run: &Run) -> Option<Validation> {
        let metric = self.metric(run)?;
        let (update, value) = self.history.series("validation", &metric).last().copied()?;
        Some(Validation { metric, value, update: update as u64 })
    }
}
