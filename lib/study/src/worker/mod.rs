//! A worker runs the trials of a study one after another, until none remain or its time is up.
//!
//! It first resumes trials that no process is working on, then starts new ones. Workers need no coordinator: the worker
//! that takes a trial's lease runs it ([`crate::claim`]); its view of other trials may be stale.

pub mod command;
pub mod supervise;
mod trial;

use crate::claim::Claim;
use crate::import::imported;
use crate::record::{Outcome, Record, StartRecord};
use crate::space::Space;
use crate::study::Study;
use std::time::{Duration, Instant};
use trial::AttemptOutcome;
use unix::signal::Signals;
use unix::{Error, Result, note};

/// Interval at which an idle worker looks for a trial.
const PAUSE: Duration = Duration::from_secs(2);
/// A worker gives up if the first trials of the study, at least this many, all fail, because the cause is then probably
/// not the parameters.
const FAILURES: usize = 3;

/// Limits of a worker.
pub struct Limits {
    /// Stop after this many trials have ended.
    pub trials: Option<u64>,
    /// Stop at this time.
    pub end: Option<Instant>,
    /// Run only trials of this round.
    pub round: Option<usize>,
    /// Whether to wait for trials of other workers, which may have to be resumed or may be followed by another round.
    pub wait: bool,
}

/// A worker of a study.
pub struct Worker {
    study: Study,
    signals: Signals,
    limits: Limits,
    ended: u64,
    /// Whether the note about open trials of `hpo ask` was printed.
    has_noted: bool,
}

/// The next action.
enum Next {
    Run(Box<Claim>, usize, Space),
    /// The remaining trials are being run elsewhere, or another round has to end first.
    Wait,
    Finished,
}

impl Worker {
    /// Creates a worker and installs its signal handlers. Errors: those of [`Signals::install`].
    pub fn new(study: Study, limits: Limits) -> Result<Self> {
        Ok(Self { study, signals: Signals::install()?, limits, ended: 0, has_noted: false })
    }

    /// Number of trials that this worker has ended.
    pub fn ended(&self) -> u64 {
        self.ended
    }

    /// The signals received so far.
    pub fn signals(&self) -> Signals {
        self.signals
    }

    /// Runs trials and returns how many remain. Errors: 1 if the first trials all fail; 73, 74.
    pub fn run(&mut self) -> Result<u64> {
        loop {
            if let Some(why) = self.stop_reason() {
                return self.remaining(&why);
            }
            self.study.refresh()?;
            match self.next()? {
                Next::Run(claim, round, space) => {
                    if self.work_on(*claim, round, &space)? {
                        return self.remaining("the command stopped by itself");
                    }
                }
                Next::Finished => return Ok(0),
                Next::Wait => {
                    self.note_callers();
                    if !self.limits.wait {
                        return self.remaining("the remaining trials are running elsewhere");
                    }
                    self.pause();
                }
            }
        }
    }

    fn stop_reason(&self) -> Option<String> {
        let limits = &self.limits;
        match self.signals.stop_requested() {
            Some(signal) => Some(format!("signal {signal}")),
            _ if limits.end.is_some_and(|end| Instant::now() >= end) => Some("time limit".into()),
            _ if limits.trials.is_some_and(|most| self.ended >= most) => {
                Some("limit of --trials".into())
            }
            _ => None,
        }
    }

    /// Notes once that only trials of `hpo ask` remain, whose callers may be gone.
    fn note_callers(&mut self) {
        let open = self.study.records().values().filter(|record| !record.has_ended());
        let open: Vec<&Record> = open.collect();
        if self.has_noted || open.is_empty() || !open.iter().all(|own| own.waits_for_caller()) {
            return;
        }
        self.has_noted = true;
        let numbers: Vec<String> = open.iter().map(|record| record.number.to_string()).collect();
        note!(
            "waiting for values of trials that `hpo ask` started: {}; if their callers are gone, let workers run them: \
             hpo retry {} {}",
            numbers.join(", "),
            self.study.folder().display(),
            numbers.join(" ")
        );
    }

    fn pause(&self) {
        let began = Instant::now();
        while began.elapsed() < PAUSE && self.stop_reason().is_none() {
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Notes why the worker stops; returns the number of trials that have not ended.
    fn remaining(&mut self, why: &str) -> Result<u64> {
        self.study.refresh()?;
        let open = self.study.left(self.rounds())?;
        crate::results::write_ended(&self.study)?;
        if open > 0 {
            note!("stopped: {why}; run the same command again to resume");
        }
        Ok(open)
    }

    fn rounds(&self) -> std::ops::Range<usize> {
        match self.limits.round {
            Some(round) => round..round + 1,
            None => 0..self.study.rounds().len(),
        }
    }

    /// Claims the next trial to run.
    fn next(&mut self) -> Result<Next> {
        for round in self.rounds() {
            let Some(space) = self.study.begin_round(round)? else { return Ok(Next::Wait) };
            let numbers = self.study.numbers_of(round, &space);
            // Open trials come before new ones, both in order of their numbers.
            let is_open = |record: &Record| !record.has_ended() && !record.start.asked;
            let open = self.study.of_round(round).filter(|record| is_open(record));
            let open: Vec<u64> = open.map(|record| record.number).collect();
            let signals = self.signals;
            let stop = || signals.stop_requested().is_some();
            let new = numbers.map(|number| (number, true));
            for (number, is_new) in open.into_iter().map(|number| (number, false)).chain(new) {
                if is_new && self.study.records().contains_key(&number) {
                    continue;
                }
                if let Some(claim) = Claim::take_free(&mut self.study, number, &stop, is_open)? {
                    return Ok(Next::Run(Box::new(claim), round, space));
                }
                if self.stop_reason().is_some() {
                    return Ok(Next::Wait);
                }
            }
            if !self.study.has_ended(round, &space) {
                return Ok(Next::Wait);
            }
            crate::results::write(&self.study, round, &space)?;
        }
        self.study.save_snapshot();
        Ok(Next::Finished)
    }

    /// Runs or resumes a trial; returns whether its command stopped by itself.
    fn work_on(&mut self, mut claim: Claim, round: usize, space: &Space) -> Result<bool> {
        let number = claim.number;
        let start = match &claim.record {
            Some(record) => record.start.clone(),
            None => self.study.start_of(number, round, space)?,
        };
        let end = self.limits.end;
        let outcome = trial::run(&mut self.study, &mut claim, start, self.signals, end)?;
        if let Some(record) = claim.read()? {
            self.study.insert(record);
        }
        drop(claim);
        let end = match outcome {
            AttemptOutcome::Ended(end) => end,
            AttemptOutcome::Stopped { by_itself } => return Ok(by_itself),
        };
        self.ended += 1;
        self.study.save_snapshot();
        let value = end.value.map_or(String::new(), |value| format!(", {value}"));
        let error = end.error.as_ref().map_or(String::new(), |error| format!(": {error}"));
        note!("trial {number}: {}{value}{error}", end.state.name());
        self.check_failures(end.error.as_deref()).map(|()| false)
    }

    /// Gives up if all trials so far have failed. Errors: 1.
    fn check_failures(&self, last: Option<&str>) -> Result<()> {
        let mut failed = 0;
        for record in self.study.records().values() {
            match &record.end {
                Some(end) if end.state == Outcome::Failed => failed += 1,
                Some(_) => return Ok(()),
                None => {}
            }
        }
        if failed < FAILURES {
            return Ok(());
        }
        Err(Error::failure(format!(
            "the first {failed} trials failed, the last with: {}; fix the cause, then run `hpo retry` and the worker \
             again",
            last.unwrap_or("no message")
        )))
    }
}

impl Study {
    /// Creates the start record of a new trial, with parameters suggested from the trials known so far.
    pub fn start_of(&self, number: u64, round: usize, space: &Space) -> Result<StartRecord> {
        let config = self.config();
        let own = &self.rounds()[round];
        let first = self.first_of(round);
        // Rounds with the same sampler must not repeat each other's random numbers.
        let seed = config.seed.wrapping_add((round as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut trials = imported(self, round, space)?;
        trials.extend(self.trials(round, space));
        let point = config.sampler(own).suggest(space, &trials, number - first, seed);
        Ok(StartRecord {
            round: own.name.clone(),
            params: space.values(&point.unwrap_or_default()),
            seed: config.seed.wrapping_add(number),
            asked: false,
            progress: 0,
        })
    }
}
