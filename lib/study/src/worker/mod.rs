//! A worker: runs the trials of a study one after the other, until none is left or its time is up.
//!
//! It first resumes trials that nobody works on any more, then starts new ones. Several workers need no coordinator: who
//! gets the lease of a trial runs it ([`crate::claim`]), and what they know of each other's trials may be old.

pub mod command;
pub mod supervise;
mod trial;

use crate::claim::Claim;
use crate::import::imported;
use crate::record::{End, Record, Start};
use crate::space::Space;
use crate::study::Study;
use std::time::{Duration, Instant};
use trial::Outcome;
use unix::signal::Signals;
use unix::{Error, Result, note};

/// How often a worker without a trial looks again.
const PAUSE: Duration = Duration::from_secs(2);
/// A worker gives up if this many trials fail before any trial of the study has succeeded: the cause is then probably not
/// the parameters.
const FAILURES: usize = 3;

/// What a worker may do.
pub struct Limits {
    /// Largest number of trials to end.
    pub trials: Option<u64>,
    /// When to stop.
    pub end: Option<Instant>,
    /// Only the trials of this round.
    pub round: Option<usize>,
    /// Whether to wait for trials that other workers run: they may have to be resumed, or another round may follow.
    pub wait: bool,
}

/// A worker of a study.
pub struct Worker {
    study: Study,
    signals: Signals,
    limits: Limits,
    ended: u64,
    /// Whether [`Worker::tell_of_callers`] has said it.
    has_told: bool,
}

/// What there is to do.
enum Next {
    Run(Box<Claim>, usize, Space),
    /// Other workers run what is left.
    Wait,
    Finished,
}

impl Worker {
    /// A worker; handles signals from here on. Errors: those of [`Signals::install`].
    pub fn new(study: Study, limits: Limits) -> Result<Self> {
        Ok(Self { study, signals: Signals::install()?, limits, ended: 0, has_told: false })
    }

    /// Number of trials that have ended under this worker.
    pub fn ended(&self) -> u64 {
        self.ended
    }

    /// The signals that it has received.
    pub fn signals(&self) -> Signals {
        self.signals
    }

    /// Runs trials; returns how many are left. Errors: 1 if the first trials all fail; 73, 74.
    pub fn run(&mut self) -> Result<u64> {
        loop {
            if let Some(why) = self.must_stop() {
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
                    self.tell_of_callers();
                    if !self.limits.wait {
                        return self.remaining("the trials that are left run elsewhere");
                    }
                    self.pause();
                }
            }
        }
    }

    fn must_stop(&self) -> Option<String> {
        let limits = &self.limits;
        match self.signals.stop_requested() {
            Some(signal) => Some(format!("signal {signal}")),
            _ if limits.end.is_some_and(|end| Instant::now() >= end) => Some("time limit".into()),
            _ if limits.trials.is_some_and(|most| self.ended >= most) => Some("--trials".into()),
            _ => None,
        }
    }

    /// Says once that all trials that are left wait for callers of `hpo ask`: nobody knows whether those are alive.
    fn tell_of_callers(&mut self) {
        let mut open =
            self.study.records().values().filter(|record| !record.has_ended()).peekable();
        if self.has_told || open.peek().is_none() || !open.all(Record::waits_for_caller) {
            return;
        }
        self.has_told = true;
        let open = self.study.records().values().filter(|record| record.waits_for_caller());
        let numbers: Vec<String> = open.map(|record| record.number.to_string()).collect();
        note!(
            "waiting for values of trials that `hpo ask` started: {}; if their callers are gone, let workers run them: hpo \
             retry {} {}",
            numbers.join(", "),
            self.study.folder().display(),
            numbers.join(" ")
        );
    }

    fn pause(&self) {
        let began = Instant::now();
        while began.elapsed() < PAUSE && self.must_stop().is_none() {
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The number of trials that have not ended.
    fn remaining(&mut self, why: &str) -> Result<u64> {
        self.study.refresh()?;
        let open = self.study.left(self.rounds())?;
        crate::results::write_ended(&self.study)?;
        if open > 0 {
            note!("stopped: {why}; the same command resumes");
        }
        Ok(open)
    }

    fn rounds(&self) -> std::ops::Range<usize> {
        match self.limits.round {
            Some(round) => round..round + 1,
            None => 0..self.study.rounds().len(),
        }
    }

    /// The next trial to run, claimed.
    fn next(&mut self) -> Result<Next> {
        for round in self.rounds() {
            let Some(space) = self.study.begin_round(round)? else { return Ok(Next::Wait) };
            let numbers = self.study.numbers_of(round, &space);
            // Open trials first, then new ones, each in the order of their numbers.
            let is_open = |record: &&Record| !record.has_ended() && !record.start.asked;
            let open = self.study.records().range(numbers.clone()).map(|(_, record)| record);
            let open: Vec<u64> = open.filter(is_open).map(|record| record.number).collect();
            let new = numbers.map(|number| (number, true));
            for (number, is_new) in open.into_iter().map(|number| (number, false)).chain(new) {
                if is_new && self.study.records().contains_key(&number) {
                    continue;
                }
                if let Some(claim) = self.claim(number)? {
                    return Ok(Next::Run(Box::new(claim), round, space));
                }
                if self.must_stop().is_some() {
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

    /// Claims a trial that can be run.
    fn claim(&mut self, number: u64) -> Result<Option<Claim>> {
        let stop = || self.signals.stop_requested().is_some();
        let Some(claim) = Claim::take(&self.study, number, &stop)? else { return Ok(None) };
        match &claim.record {
            // It ended, or was asked for, and this process does not see it yet.
            Some(record) if record.has_ended() || record.start.asked => {
                self.study.insert(record.clone());
                Ok(None)
            }
            _ => Ok(Some(claim)),
        }
    }

    /// Runs a trial, or what is left of it; returns whether its command stopped by itself.
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
            Outcome::Ended(end) => end,
            Outcome::Stopped { by_itself } => return Ok(by_itself),
        };
        self.ended += 1;
        self.study.save_snapshot();
        let value = end.value.map_or(String::new(), |value| format!(", {value}"));
        let error = end.error.as_ref().map_or(String::new(), |error| format!(": {error}"));
        note!("trial {number}: {}{value}{error}", end.state.name());
        self.check_failures(end.error.as_deref()).map(|()| false)
    }

    /// Errors: 1 if all trials so far have failed.
    fn check_failures(&self, last: Option<&str>) -> Result<()> {
        let mut failed = 0;
        for record in self.study.records().values() {
            match &record.end {
                Some(end) if end.state == End::Failed => failed += 1,
                Some(_) => return Ok(()),
                None => {}
            }
        }
        if failed < FAILURES {
            return Ok(());
        }
        Err(Error::failure(format!(
            "the first {failed} trials failed, the last with: {}; fix the cause, then run `hpo retry` and the worker again",
            last.unwrap_or("no message")
        )))
    }
}

impl Study {
    /// The start of a new trial: its parameters follow from its number and the trials that are known now.
    pub fn start_of(&self, number: u64, round: usize, space: &Space) -> Result<Start> {
        let config = self.config();
        let own = &self.rounds()[round];
        let first = self.first_of(round);
        // Rounds with the same sampler must not draw the same numbers.
        let seed = config.seed.wrapping_add((round as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut trials = imported(self, round, space)?;
        trials.extend(self.trials(round, space));
        let point = config.sampler(own).suggest(space, &trials, number - first, seed);
        Ok(Start {
            round: own.name.clone(),
            params: space.values(&point.unwrap_or_default()),
            seed: config.seed.wrapping_add(number),
            asked: false,
            progress: 0,
        })
    }
}
