//! The state of a study in one line, and the states of its rounds and trials.

use crate::claim::is_at_work;
use crate::record::Record;
use crate::study::Study;
use serde::Serialize;
use serde_json::{Value, json};
use std::ops::Range;
use std::path::Path;
use unix::Result;
use unix::timekeep::runs::RunState;

/// The states of a trial, see longhaul-study(5), each with its meaning.
pub const STATES: [(&str, &str); 8] = [
    ("running", "A process is working on it"),
    ("stopped", "Interrupted; the next free worker resumes it"),
    ("asked", "Started by ask; the caller runs it"),
    ("complete", "Has a final value"),
    ("pruned", "Ended by the pruner"),
    ("diverged", "The loss was NaN or infinite"),
    ("out_of_memory", "Ran out of memory"),
    ("failed", "Failed with an error unrelated to the parameters"),
];

/// Progress of a study.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// Name of the study.
    pub study: String,
    /// `Running` if a process is working on a trial, `Finished` if all trials have ended.
    pub state: RunState,
    /// Number of trials over all rounds.
    pub trials: u64,
    /// Number of trials that have ended.
    pub ended: u64,
    /// Value of the best trial in the last round that has a complete trial.
    pub best: Option<f64>,
    /// Number of the best trial.
    pub trial: Option<u64>,
}

/// Whether a folder belongs to a trial of a study.
pub fn is_trial(folder: &Path) -> bool {
    let whole = folder.canonicalize().unwrap_or_default();
    let trials = whole.parent().filter(|parent| parent.ends_with("trials"));
    trials.and_then(Path::parent).is_some_and(Study::is_at)
}

impl Study {
    /// Summarises state, progress and best value. Errors: 65, 66, 74.
    pub fn summary(&self) -> Result<Summary> {
        let left = self.left(0..self.rounds().len())?;
        let ended = self.records().values().filter(|record| record.has_ended()).count() as u64;
        let mut is_running = false;
        for record in self.records().values().filter(|record| !record.has_ended()) {
            is_running = is_running || is_at_work(self, record.number)?;
        }
        let state = match () {
            () if left == 0 => RunState::Finished,
            () if is_running => RunState::Running,
            () if self.records().is_empty() => RunState::New,
            () => RunState::Stopped,
        };
        let best = self.ranking(self.last_complete()).first().copied();
        Ok(Summary {
            study: self.name().into(),
            state,
            trials: ended + left,
            ended,
            best: best.and_then(Record::value),
            trial: best.map(|record| record.number),
        })
    }

    /// Returns the state of a trial, one of [`STATES`]. Errors: 74.
    pub fn state(&self, record: &Record) -> Result<&'static str> {
        Ok(match &record.end {
            Some(end) => end.state.name(),
            None if record.start.asked => "asked",
            None if is_at_work(self, record.number)? => "running",
            None => "stopped",
        })
    }

    /// Returns the progress of a round: the number of its trials, in total, in each state and not yet ended, and the
    /// value and number of the best trial. Errors: 65, 66, 74.
    pub fn progress(&self, round: usize) -> Result<Value> {
        let states = self.of_round(round).map(|record| self.state(record));
        let states = states.collect::<Result<Vec<_>>>()?;
        let ended = self.of_round(round).filter(|record| record.has_ended()).count() as u64;
        let left = self.left(round..round + 1)?;
        let name = &self.rounds()[round].name;
        let mut row = json!({"study": self.name(), "round": name, "trials": left + ended});
        for (name, _) in STATES {
            row[name] = states.iter().filter(|state| **state == name).count().into();
        }
        let best = self.ranking(round).first().copied();
        row["left"] = left.into();
        row["best"] = best.and_then(Record::value).into();
        row["trial"] = best.map(|record| record.number).into();
        Ok(row)
    }

    /// Returns the last round with a complete trial, or the first round.
    pub fn last_complete(&self) -> usize {
        self.last_round(|round| !self.ranking(round).is_empty())
    }

    /// Returns the last round that `is` accepts, or the first one.
    pub fn last_round(&self, is: impl Fn(usize) -> bool) -> usize {
        (0..self.rounds().len()).rev().find(|round| is(*round)).unwrap_or(0)
    }

    /// Counts the trials in `rounds` that have not ended. Errors: 65, 66, 74.
    pub fn left(&self, rounds: Range<usize>) -> Result<u64> {
        let mut left = 0;
        for round in rounds {
            let Some(space) = self.space_of(round)? else {
                left += self.rounds()[round].trials;
                continue;
            };
            let numbers = self.numbers_of(round, &space);
            let known = self.records().range(numbers.clone());
            let ended = known.filter(|(_, record)| record.has_ended()).count() as u64;
            left += numbers.end - numbers.start - ended;
        }
        Ok(left)
    }
}
