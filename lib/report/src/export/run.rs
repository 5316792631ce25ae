//! A run as exporters use it: one curve, read from the run's log.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::UNIX_EPOCH;

use serde_json::{Map, Value};
use unix::run_dir::RunDir;
use unix::status::{self, State};
use unix::{Error, Result, log, small, text, time};

use super::{Evaluation, Labels};

/// Maximum size of config.yaml in bytes.
const MAX_BYTES: u64 = 16 << 20;
/// Kinds of records that hold values of an update, and the prefix of the names of these values.
const SERIES: [(&str, &str); 3] =
    [("update", "train"), ("validation", "eval"), ("system", "system")];
/// Fields of records that are not values.
const NOT_VALUES: [&str; 2] = ["update", "attempt"];

/// The recorded values of one update.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordedUpdate {
    /// Number of completed updates.
    pub update: u64,
    /// Time of the record, in seconds since 1970.
    pub time: f64,
    /// Values by name, such as `train/loss` or `eval/nrmse`; all finite.
    pub values: Vec<(String, f64)>,
}

/// A run, with secrets redacted.
#[derive(Clone, Debug)]
pub struct Run {
    /// Name of the run directory; characters that Weights & Biases or MLflow refuse are replaced with `-`.
    pub id: String,
    /// Name of the run in the newest record of an attempt that has one.
    pub name: Option<String>,
    /// When the first attempt started, in seconds since 1970.
    pub started: f64,
    /// When the last record was written, in seconds since 1970.
    pub last: f64,
    /// State of the run, if known.
    pub state: Option<State>,
    /// Task, version, host and device of the first attempt.
    pub facts: Map<String, Value>,
    /// The resolved configuration: an object.
    pub config: Map<String, Value>,
    /// One entry for each recorded update, in order.
    pub steps: Vec<RecordedUpdate>,
    /// Evaluations of its checkpoints.
    pub evaluations: Vec<Evaluation>,
}

impl Run {
    /// Reads a run directory. Superseded records are dropped, and all values of an update are in one step.
    ///
    /// With `settled`, the newest update of a run that has not ended is left out, because more values of it may follow.
    /// Errors: 66 if the run has no log or configuration, 65 for a damaged configuration or status or a log without
    /// records.
    pub fn read(path: &Path, settled: bool) -> Result<Self> {
        let run = RunDir::open(path)?;
        // Before the log: the log of a run that has ended is complete.
        let state = status::read(&run.status())?.map(|status| status.state);
        let found = log::read(&run.log())?;
        if found.bad_lines > 0 {
            unix::warn!("{}: skipped {} damaged lines", run.log().display(), found.bad_lines);
        }
        let content = small::read(&run.config(), MAX_BYTES)?;
        let config: Value = serde_yaml::from_slice(&content)
            .map_err(|cause| Error::data(format!("{}: {cause}", run.config().display())))?;
        let first = run.starts()?.into_iter().next();
        let mut run = Self::of(id(path)?, &found.records, redacted(config)?, state, first)
            .ok_or_else(|| {
                Error::data(format!(
                    "{} has no records yet; export the run once it has started",
                    run.log().display()
                ))
            })?;
        if settled && !run.has_ended() {
            run.steps.pop();
        }
        Ok(run)
    }

    /// Builds the run from these records; None if no record has a time.
    fn of(
        id: String,
        records: &[Map<String, Value>],
        config: Value,
        state: Option<State>,
        first_attempt: Option<Value>,
    ) -> Option<Self> {
        let mut steps: BTreeMap<u64, RecordedUpdate> = BTreeMap::new();
        for record in records {
            let kind = record.get("kind").and_then(Value::as_str);
            let prefix =
                SERIES.iter().find(|(own, _)| Some(*own) == kind).map(|(_, prefix)| prefix);
            let update = record.get("update").and_then(Value::as_u64);
            if let (Some(prefix), Some(update), Some(time)) = (prefix, update, time_of(record)) {
                let step = steps.entry(update);
                let step =
                    step.or_insert_with(|| RecordedUpdate { update, time, values: Vec::new() });
                let values = record.iter().filter(|(name, _)| !NOT_VALUES.contains(&&***name));
                values.for_each(|(name, value)| step.add(&format!("{prefix}/{name}"), value));
            }
        }
        let mut facts = Map::new();
        let starts =
            || records.iter().filter(|r| r.get("kind").is_some_and(|kind| kind == "start"));
        let start = starts().next();
        let name = starts().rev().find_map(|record| record.get("name")?.as_str());
        let take = |from: Option<&Map<String, Value>>, names: &[&str], facts: &mut Map<_, _>| {
            for name in names {
                if let Some(value) = from.and_then(|from| from.get(*name)) {
                    facts.insert((*name).to_string(), value.clone());
                }
            }
        };
        take(start, &["task", "parameters", "device", "ranks", "threads"], &mut facts);
        let first_attempt = first_attempt.as_ref().and_then(Value::as_object);
        take(first_attempt, &["version", "commit", "host", "cpu"], &mut facts);
        Some(Self {
            id,
            name: name.map(str::to_string),
            started: records.iter().find_map(time_of)?,
            last: records.iter().rev().find_map(time_of)?,
            state,
            facts,
            config: config.as_object().cloned().unwrap_or_default(),
            steps: steps.into_values().collect(),
            evaluations: Vec::new(),
        })
    }

    /// Whether no other attempt will follow.
    pub fn has_ended(&self) -> bool {
        matches!(self.state, Some(State::Finished | State::Failed))
    }

    /// The number of the last recorded update; 0 if there is none.
    pub fn last_update(&self) -> u64 {
        self.steps.last().map_or(0, |step| step.update)
    }

    /// Returns the name to show: that of the user, that of the run, or that of its directory.
    pub(super) fn shown_name<'a>(&'a self, labels: &'a Labels) -> &'a str {
        labels.name.as_ref().or(self.name.as_ref()).unwrap_or(&self.id)
    }

    /// Returns the configuration as keys such as `training.updates` with their values; lists are JSON.
    pub(super) fn hyperparameters(&self) -> Vec<(String, Value)> {
        let mut all = Vec::new();
        self.config.iter().for_each(|(key, value)| flatten(key, value, &mut all));
        all
    }

    /// Returns the update of an evaluation: that of its checkpoint if known, otherwise the last one of the run.
    pub(super) fn update_of(&self, evaluation: &Evaluation) -> u64 {
        evaluation.update.unwrap_or(self.last_update())
    }

    /// Returns the start time of the run as text, which distinguishes it from other runs with the same name.
    pub(super) fn started_text(&self) -> String {
        utc(self.started)
    }
}

impl RecordedUpdate {
    /// Adds a value, or the values of an object. If a value was recorded twice, the later one counts.
    fn add(&mut self, name: &str, value: &Value) {
        match value {
            Value::Object(fields) => {
                fields.iter().for_each(|(key, value)| self.add(&format!("{name}/{key}"), value));
            }
            value => {
                if let Some(value) = parse_number(value) {
                    self.values.retain(|(own, _)| own != name);
                    self.values.push((name.to_string(), value));
                }
            }
        }
    }
}

/// Reads a number from JSON, where null stands for a number that is not finite.
pub(super) fn parse_number(value: &Value) -> Option<f64> {
    if value.is_null() { Some(f64::NAN) } else { value.as_f64() }
}

/// Encodes a number for MLflow and Weights & Biases, which read numbers that are not finite as JSON strings.
pub(super) fn json_number(value: f64) -> Value {
    match value {
        value if value.is_nan() => "NaN".into(),
        f64::INFINITY => "Infinity".into(),
        f64::NEG_INFINITY => "-Infinity".into(),
        value => value.into(),
    }
}

fn flatten(key: &str, value: &Value, all: &mut Vec<(String, Value)>) {
    match value {
        Value::Object(fields) => {
            fields.iter().for_each(|(name, value)| flatten(&format!("{key}.{name}"), value, all));
        }
        Value::Array(items) => {
            all.push((key.into(), Value::Array(items.clone()).to_string().into()))
        }
        other => all.push((key.into(), other.clone())),
    }
}

/// Formats a JSON value as text for files and web pages: strings without quotes.
pub(super) fn value_text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_string)
}

/// Formats a time in seconds since 1970 as UTC with milliseconds.
pub(super) fn utc(seconds: f64) -> String {
    let since = std::time::Duration::try_from_secs_f64(seconds).unwrap_or_default();
    // A whole number of milliseconds may be slightly too small in f64, and formatting truncates.
    time::format_utc(UNIX_EPOCH + since + std::time::Duration::from_micros(1))
}

fn time_of(record: &Map<String, Value>) -> Option<f64> {
    time::parse_utc(record.get("time")?.as_str()?)
}

/// Returns the name of a run directory, as in [`Run::id`]. Errors: 66.
pub fn id(path: &Path) -> Result<String> {
    let whole = path.canonicalize().map_err(|cause| Error::open(path, cause))?;
    let name = whole.file_name().map(|name| name.to_string_lossy().into_owned());
    let name = name.ok_or_else(|| Error::usage(format!("{}: not a run", path.display())))?;
    let is_refused = |c: char| ":;,#?/'\"\\`".contains(c) || c.is_control();
    Ok(text::quote(name.trim()).replace(is_refused, "-"))
}

/// Returns the value with registered secrets redacted.
pub(super) fn redacted(value: Value) -> Result<Value> {
    serde_json::from_str(&text::json(&value)?).map_err(Error::bug)
}
