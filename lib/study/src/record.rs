//! The journal of a trial, `trials/NNNNN/trial.jsonl`, and the state derived from it.
//!
//! Only the holder of the trial's lease appends to it ([`crate::claim`]). Kinds of records: `start` of an attempt,
//! `value` at a step, `kept` when the pruner keeps the trial after a value, `stop` of an attempt, `end` of the trial,
//! and `retry`, which reopens a trial that has ended or whose `hpo ask` caller is gone. After an `end`, every record
//! but `retry` is ignored.

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
pub enum Outcome {
    /// It has a final value.
    Complete,
    /// The pruner ended it.
    Pruned,
    /// Its loss was NaN or infinite.
    Diverged,
    /// It ran out of memory.
    OutOfMemory,
    /// It ended with another error.
    Failed,
}

impl Outcome {
    const ALL: [Self; 5] =
        [Self::Complete, Self::Pruned, Self::Diverged, Self::OutOfMemory, Self::Failed];

    /// Returns the outcome with this name, in upper or lower case.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|end| end.name().eq_ignore_ascii_case(name))
    }

    /// The name used in the journal.
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
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StartRecord {
    /// Name of the round.
    pub round: String,
    /// Parameters by name.
    pub params: BTreeMap<String, Value>,
    /// Seed of the trial.
    pub seed: u64,
    /// Whether `hpo ask` started this attempt, in which case the caller of `hpo ask` runs it, not a worker.
    #[serde(default)]
    pub asked: bool,
    /// Progress of earlier attempts: updates plus recorded values.
    #[serde(default)]
    pub progress: u64,
}

/// A record of kind `end`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EndRecord {
    /// How the trial ended.
    pub state: Outcome,
    /// The final value of a complete trial.
    #[serde(default)]
    pub value: Option<f64>,
    /// The error message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The batch size that ran out of memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch_size: Option<u64>,
}

/// The state of a trial according to its journal.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Number of the trial.
    pub number: u64,
    /// The first `start` record, which determines the parameters; `asked` comes from the last one.
    pub start: StartRecord,
    /// Values of the metric by step; NaN is null.
    pub values: BTreeMap<u64, Option<f64>>,
    /// Steps after which the pruner kept the trial.
    #[serde(default)]
    pub kept: BTreeSet<u64>,
    /// Time of the first start, UTC.
    pub started: String,
    /// Time of the end, UTC.
    pub ended: Option<String>,
    /// The `end` record, if the trial has ended.
    pub end: Option<EndRecord>,
    /// Number of attempts.
    pub attempts: u64,
    /// Number of consecutive attempts, including the last one, that started from the same progress.
    pub fruitless: u64,
    /// Why the last attempt stopped.
    pub stopped: Option<String>,
    /// Whether `hpo retry` has reopened the trial.
    pub retry: bool,
    /// Progress at the start of the last attempt.
    pub(crate) progress: u64,
}

impl Record {
    /// Reads the journal of trial `number`; `None` if the trial has not been started. Stops at the first record whose
    /// time `is_visible` rejects. Also returns the damaged lines. Errors: 66, 74.
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
            // A damaged file may contain the same line twice; it is still one attempt.
            let is_start = record.get("kind").and_then(Value::as_str) == Some("start");
            if !is_hidden && (!is_start || starts.insert(time.clone())) {
                apply(&mut found, number, time, record);
            }
        })?;
        Ok((found, damaged))
    }

    /// Whether the trial has ended.
    pub fn has_ended(&self) -> bool {
        self.end.is_some()
    }

    /// Whether the trial has ended this way.
    pub fn is(&self, end: Outcome) -> bool {
        self.end.as_ref().is_some_and(|own| own.state == end)
    }

    /// The final value, if the trial has one.
    pub fn value(&self) -> Option<f64> {
        self.end.as_ref().and_then(|end| end.value)
    }

    /// Whether `hpo retry` has reopened the trial and no attempt has started since.
    pub fn waits_for_retry(&self) -> bool {
        self.retry && self.fruitless == 0 && self.stopped.is_none() && !self.has_ended()
    }

    /// Whether `hpo ask` started the trial and its caller has not reported the end.
    pub fn waits_for_caller(&self) -> bool {
        self.start.asked && !self.has_ended()
    }

    /// Returns the best value and its step; `sign` is 1 if lower values are better, -1 otherwise.
    pub fn best(&self, sign: f64) -> Option<(u64, f64)> {
        let values = self.values.iter().filter_map(|(step, value)| Some((*step, (*value)?)));
        values.reduce(|a, b| if sign * b.1 < sign * a.1 { b } else { a })
    }

    /// Converts the record for samplers and pruners, with the trial's number within the round.
    pub fn trial(&self, space: &Space, first: u64, sign: f64) -> Trial {
        let number = |value: &Option<f64>| sign * value.unwrap_or(f64::NAN);
        Trial {
            number: self.number - first,
            state: self.end.as_ref().map_or(State::Open, |end| end.state.state()),
            point: space.point(&self.start.params),
            value: self.is(Outcome::Complete).then(|| number(&self.value())),
            intermediate: self.values.iter().map(|(step, value)| (*step, number(value))).collect(),
        }
    }
}

/// Applies a record of the journal; unknown kinds are ignored.
fn apply(found: &mut Option<Record>, number: u64, time: String, mut record: Map<String, Value>) {
    let kind = record.remove("kind");
    let kind = kind.as_ref().and_then(Value::as_str).unwrap_or_default();
    if let Some(own) = found
        && own.end.is_some()
        && kind != "retry"
    {
        return;
    }
    match (kind, found) {
        ("start", first @ None) => {
            let Ok(start) = serde_json::from_value::<StartRecord>(Value::Object(record)) else {
                return;
            };
            let progress = start.progress;
            *first = Some(Record {
                number,
                start,
                started: time,
                attempts: 1,
                fruitless: 1,
                progress,
                ..Record::default()
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
            own.stopped = record.get("reason").and_then(Value::as_str).map(String::from);
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
            // The next attempt rereads the values in the run's log.
            own.values.clear();
            own.kept.clear();
        }
        _ => {}
    }
}

impl EndRecord {
    /// Creates the end record of a trial without a value.
    pub fn of(state: Outcome) -> Self {
        Self { state, value: None, error: None, batch_size: None }
    }

    /// Creates the end record of a trial with this value: complete if the value is finite, otherwise diverged.
    pub fn with(value: f64) -> Self {
        match value.is_finite() {
            true => Self { value: Some(value), ..Self::of(Outcome::Complete) },
            false => Self::of(Outcome::Diverged),
        }
    }

    /// Creates the end record of a trial that failed with this error message.
    pub fn failed(error: String) -> Self {
        Self { error: Some(error), ..Self::of(Outcome::Failed) }
    }
}
