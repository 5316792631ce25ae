//! A one-line summary of a study for `timekeep status`.

use crate::claim::is_at_work;
use crate::study::Study;
use serde::Serialize;
use std::ops::Range;
use std::path::Path;
use unix::Result;
use unix::timekeep::runs::RunState;

/// Progress of a study.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// Name of the study.
    pub study: String,
    /// Running if a process is working on a trial, finished if all trials have ended.
    pub state: RunState,
    /// Number of trials over all rounds.
    pub trials: u64,
    /// Number of trials that have ended.
    pub ended: u64,
    /// Value of the best trial in the last round with a complete trial.
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
    /// State, progress and best value. Errors: 65, 66, 74.
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
        let best = (0..self.rounds().len()).rev();
        let best = best.filter_map(|round| self.ranking(round).first().copied()).next();
        Ok(Summary {
            study: self.name().into(),
            state,
            trials: ended + left,
            ended,
            best: best.and_then(|record| record.end.as_ref()?.value),
            trial: best.map(|record| record.number),
        })
    }

    /// The number of trials in `rounds` that have not ended. Errors: 65, 66, 74.
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
