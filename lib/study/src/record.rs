//! The journal of a trial, `trials/NNNNN/trial.jsonl`, and what it says.
//!
//! Only the holder of the trial's lease writes it ([`crate::claim`]). Records: `start` of an attempt, `value` at a step,
//! `kept` by the pruner after one, `stop` of an attempt, `end` of the trial, `retry` after an end or after the caller of `hpo ask` has died. What comes
//! after an `end` counts only if it is a `retry`.

use crate::space::Space;
use crate::trial::{State, Trial};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use unix::log::Damaged;
use unix::{Result, log};

/// How a trial ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// It has a final value.
    Complete,
    /// The pruner ended it.
    Pruned,
    /// Its loss was NaN or infinite.
    Diverged,
    /// It did not fit into memory.
    OutOfMemory,
    /// It ended with an error.
    Failed,
}

impl End {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::Pruned => "pruned",
            Self::Diverged => "diverged",
            Self::OutOfMemory => "out_of_memory",
            Self::Failed => "failed",
        }
    }

    pub(crate) fn state(self) -> State {
        match self {
            Self::Complete => State::Complete,
            Self::Pruned => State::Pruned,
            Self::Diverged | Self::OutOfMemory => State::Infeasible,
            Self::Failed => State::Failed,
        }
    }
}

/// A record of kind `start`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Start {
    /// Name of the round.
    pub round: String,
    /// The parameters by name.
    pub params: BTreeMap<String, Value>,
    /// Seed of the trial.
    pub seed: u64,
    /// Whether `hpo ask` started this attempt: the caller runs it, not a worker.
    #[serde(default)]
    pub asked: bool,
    /// What earlier attempts have done: updates and values.
    #[serde(default)]
    pub progress: u64,
}

/// A record of kind `end`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ended {
    /// How it ended.
    pub state: End,
    /// The final value, of a complete trial.
    #[serde(default)]
    pub value: Option<f64>,
    /// What went wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The batch size that did not fit into memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch_size: Option<u64>,
}

/// What the journal of a trial says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Number of the trial.
    pub number: u64,
    /// Its first start; the parameters are those of this one. `asked` is that of the last one.
    pub start: Start,
    /// Values of the metric by step; NaN is null.
    pub values: BTreeMap<u64, Option<f64>>,
    /// Steps after whose values the pruner kept it.
    #[serde(default)]
    pub kept: BTreeSet<u64>,
    /// When it was started first, UTC.
    pub started: String,
    /// When it ended, UTC.
    pub ended: Option<String>,
    /// How it ended.
    pub end: Option<Ended>,
    /// Number of attempts.
    pub attempts: u64,
    /// Number of attempts in a row that began with the same progress as the last one.
    pub fruitless: u64,
    /// Why the last attempt stopped.
    pub stopped: Option<String>,
    /// Whether it is tried again after a failure.
    pub retry: bool,
    /// Progress at the start of the last attempt.
    progress: u64,
}

impl Record {
    /// Reads the journal of trial `number`; `None` if it has not been started. Records that `is_visible` refuses, given
    /// their time, and those after them are left out. Also returns the damaged lines. Errors: 66, 74.
    pub fn read(
        path: &Path,
        number: u64,
        is_visible: &dyn Fn(&str) -> bool,
    ) -> Result<(Option<Self>, Damaged)> {
        if path.symlink_metadata().is_err() {
            return Ok((None, Damaged::default()));
        }
        let mut found: Option<Self> = None;
        let mut is_hidden = false;
        let mut starts = BTreeSet::new();
        let damaged = log::each(path, |record| {
            let time = record.get("time").and_then(Value::as_str).unwrap_or_default().to_string();
            is_hidden |= !is_visible(&time);
            // A line that a damaged file has twice is one attempt.
            let is_start = record.get("kind").and_then(Value::as_str) == Some("start");
            if !is_hidden && (!is_start || starts.insert(time.clone())) {
                add(&mut found, number, time, record);
            }
        })?;
        Ok((found, damaged))
    }

    /// Whether no worker need touch it any more.
    pub fn has_ended(&self) -> bool {
        self.end.is_some()
    }

    /// Whether `hpo retry` opened it again and nobody has started it since.
    pub fn waits_for_retry(&self) -> bool {
        self.retry && self.fruitless == 0 && self.stopped.is_none() && !self.has_ended()
    }

    /// Whether `hpo ask` started it and its caller has not told its end.
    pub fn waits_for_caller(&self) -> bool {
        self.start.asked && !self.has_ended()
    }

    /// The best value and its step; `sign` is 1 if lower values are better, else -1.
    pub fn best(&self, sign: f64) -> Option<(u64, f64)> {
        let values = self.values.iter().filter_map(|(step, value)| Some((*step, (*value)?)));
        values.reduce(|a, b| if sign * b.1 < sign * a.1 { b } else { a })
    }

    /// The trial as samplers and pruners see it, with its number within the round.
    pub fn trial(&self, space: &Space, first: u64, sign: f64) -> Trial {
        let number = |value: &Option<f64>| sign * value.unwrap_or(f64::NAN);
        Trial {
            number: self.number - first,
            state: self.end.as_ref().map_or(State::Open, |end| end.state.state()),
            point: space.point(&self.start.params),
            value: self
                .end
                .as_ref()
                .filter(|end| end.state == End::Complete)
                .map(|end| number(&end.value)),
            intermediate: self.values.iter().map(|(step, value)| (*step, number(value))).collect(),
        }
    }
}

/// Adds a record of the journal; those of unknown kinds are left out.
fn add(found: &mut Option<Record>, number: u64, time: String, mut record: Map<String, Value>) {
    let kind = record.remove("kind");
    let kind = kind.as_ref().and_then(Value::as_str).unwrap_or_default();
    let text = |record: &Map<String, Value>, key: &str| {
        record.get(key).and_then(Value::as_str).map(String::from)
    };
    if let Some(own) = found
        && own.end.is_some()
        && kind != "retry"
    {
        return;
    }
    match (kind, found) {
        ("start", first @ None) => {
            let Ok(start) = serde_json::from_value::<Start>(Value::Object(record)) else { return };
            let progress = start.progress;
            *first = Some(Record {
                number,
                start,
                values: BTreeMap::new(),
                kept: BTreeSet::new(),
                started: time,
                ended: None,
                end: None,
                attempts: 1,
                fruitless: 1,
                stopped: None,
                retry: false,
                progress,
            });
        }
        ("start", Some(own)) => {
            let progress = record.get("progress").and_then(Value::as_u64).unwrap_or(0);
            own.attempts += 1;
            own.fruitless = if progress == own.progress { own.fruitless + 1 } else { 1 };
            own.progress = progress;
            own.stopped = None;
            own.start.asked = record.get("asked").and_then(Value::as_bool) == Some(true);
        }
        ("value", Some(own)) => {
            if let Some(step) = record.get("step").and_then(Value::as_u64) {
                own.values.insert(step, record.get("value").and_then(Value::as_f64));
            }
        }
        ("kept", Some(own)) => own.kept.extend(record.get("step").and_then(Value::as_u64)),
        ("stop", Some(own)) => {
            own.stopped = text(&record, "reason");
            if record.get("asked").and_then(Value::as_bool) == Some(true) {
                own.fruitless = 0;
            }
        }
        ("end", Some(own)) => {
            own.end = serde_json::from_value(Value::Object(record)).ok();
            own.ended = Some(time);
        }
        ("retry", Some(own)) => {
            (own.end, own.ended, own.fruitless, own.retry) = (None, None, 0, true);
            (own.stopped, own.start.asked) = (None, false);
            // Those of its log are read again.
            own.values.clear();
            own.kept.clear();
        }
        _ => {}
    }
}

impl Record {
    /// Progress at the start of the last attempt.
    pub(crate) fn progress(&self) -> u64 {
        self.progress
    }
}

impl Ended {
    /// An end without a value.
    pub fn of(state: End) -> Self {
        Self { state, value: None, error: None, batch_size: None }
    }

    /// An end with a value: complete, or diverged if it is not finite.
    pub fn with(value: f64) -> Self {
        match value.is_finite() {
            true => Self { value: Some(value), ..Self::of(End::Complete) },
            false => Self::of(End::Diverged),
        }
    }

    /// An end with an error.
    pub fn failed(error: String) -> Self {
        Self { error: Some(error), ..Self::of(End::Failed) }
    }
}
