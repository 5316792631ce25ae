//! One attempt at a trial: the command runs, its validations are followed, and the pruner is asked after each.

use super::command::{Running, check_program, words, write_params};
use crate::ask::prunes;
use crate::claim::Claim;
use crate::record::{End, Ended, Record, Start};
use crate::study::Study;
use serde_json::Value;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use unix::budget::END_TIME_VARIABLE;
use unix::lease::Lease;
use unix::log::Follow;
use unix::run_dir::RunDir;
use unix::signal::Signals;
use unix::status::{self, Cause, State, StatusWriter};
use unix::{Exit, Result};

/// How often the command is looked at; at first more often, for commands that take no time.
const POLL: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(200)];

/// How an attempt ended.
pub enum Outcome {
    /// The trial has ended.
    Ended(Ended),
    /// It can be resumed.
    Stopped {
        /// The command stopped by itself, e.g. because the time limit of its job is near: the worker should stop as well.
        by_itself: bool,
    },
}

/// Why the command was asked to stop.
#[derive(Clone, Copy, PartialEq)]
enum Asked {
    Pruned,
    Signal,
    Time,
}

struct Attempt<'a> {
    study: &'a mut Study,
    claim: &'a mut Claim,
    /// Steps that are in the journal already.
    known: BTreeSet<u64>,
    /// Those after which the pruner kept the trial.
    kept: BTreeSet<u64>,
    /// Step and value of the metric by validation; without a step, the final value.
    log: Follow<Option<(Option<u64>, f64)>>,
    run: RunDir,
}

/// Runs the command of a claimed trial until it ends, and records what happens. A stop is requested from the command when
/// a signal arrives, at `end`, and when the pruner says so; it is then waited for. Errors: 66 if its program is missing;
/// 73, 74, 75 when the lease of the
/// trial was lost.
pub fn run(
    study: &mut Study,
    claim: &mut Claim,
    mut start: Start,
    signals: Signals,
    end: Option<Instant>,
) -> Result<Outcome> {
    let run = claim.run()?;
    let folder = run.path().to_path_buf();
    let record = claim.record.clone();
    let known: BTreeSet<u64> =
        record.iter().flat_map(|record| record.values.keys().copied()).collect();
    let kept = record.as_ref().map_or(BTreeSet::new(), |record| record.kept.clone());
    let updates = status::read(&run.status()).ok().flatten().map_or(0, |status| status.update);
    start.progress = updates + known.len() as u64;
    let fruitless = record.as_ref().filter(|record| record.progress() == start.progress);
    let fruitless = fruitless.map_or(0, |record| record.fruitless);
    if fruitless >= study.config().attempts {
        let why = record.as_ref().and_then(|record| record.stopped.clone());
        let why = why.map_or(String::new(), |why| format!("; the last one: {why}"));
        let error = format!("{fruitless} attempts in a row made no progress{why}");
        return finish(claim, Ended::failed(error));
    }
    let directory = study.config().directory.clone().unwrap_or(".".into());
    check_program(&study.config().command[0], &directory)?;
    let (number, round) = (claim.number, study.round_of(claim.number).unwrap_or(0));
    let fidelity = &study.rounds()[round].fidelity;
    let params = write_params(study.config(), fidelity, &start, &folder)?;
    claim.start(&start)?;
    let retry = record.as_ref().is_some_and(|record| record.retry);
    let words = words(study.config(), number, &start, fidelity, [&params, &folder], retry);
    // A second TERM ends train-stage at once, without a checkpoint; USR1 does not count as one.
    let signal = if study.config().task().is_some() { "USR1" } else { "TERM" };
    let left = end.map(|end| end.saturating_duration_since(Instant::now()).as_secs());
    let mut variables = vec![
        ("HPO_STUDY", study.folder().display().to_string()),
        ("HPO_TRIAL", number.to_string()),
    ];
    variables.extend(left.map(|left| {
        // It then stops in time by itself, as under timekeep.
        (END_TIME_VARIABLE, unix::time::unix_seconds().saturating_add(left).to_string())
    }));
    let mut running = Running::start(&words, signal, &directory, &folder, &variables)?;
    let metric = study.config().metric.clone();
    let log = Follow::new(&run.log());
    let mut attempt = Attempt { study, claim, known, kept, log, run };
    let watched = attempt.watch(&mut running, &metric, signals, end);
    if watched.is_err() {
        // Nobody would read its values; the next attempt resumes it.
        running.stop();
        while running.ended()?.is_none() {
            std::thread::sleep(POLL[1]);
        }
    }
    let (status, asked) = watched?;
    attempt.settle(status, asked, &running)
}

fn finish(claim: &mut Claim, ended: Ended) -> Result<Outcome> {
    claim.end(&ended)?;
    Ok(Outcome::Ended(ended))
}

impl Attempt<'_> {
    /// Follows the command to its end; returns its exit status, and why it was asked to stop, if it was.
    fn watch(
        &mut self,
        running: &mut Running,
        metric: &str,
        signals: Signals,
        end: Option<Instant>,
    ) -> Result<(u8, Option<Asked>)> {
        let mut asked = None;
        let mut pause = POLL[0];
        loop {
            let status = running.ended()?;
            let is_worse = self.follow(metric)?;
            if let Some(status) = status {
                return Ok((status, asked));
            }
            let why = match () {
                () if signals.stop_requested().is_some() => Some(Asked::Signal),
                () if end.is_some_and(|end| Instant::now() >= end) => Some(Asked::Time),
                () if is_worse => Some(Asked::Pruned),
                () => None,
            };
            if asked.is_none() && why.is_some() {
                running.stop();
                asked = why;
            }
            std::thread::sleep(pause);
            pause = (2 * pause).min(POLL[1]);
        }
    }

    /// Records new validations; returns whether the pruner ends the trial after one of them.
    fn follow(&mut self, metric: &str) -> Result<bool> {
        if self.run.log().symlink_metadata().is_err() {
            return Ok(false);
        }
        self.log.read(|record| {
            let kind = record.get("kind").and_then(Value::as_str)?;
            let value = record.get(metric).filter(|_| ["validation", "final"].contains(&kind))?;
            // What is not finite is null.
            let value = value.as_f64().or(value.is_null().then_some(f64::NAN))?;
            let step = || record.get("update").and_then(Value::as_u64).unwrap_or(0);
            Some(((kind == "validation").then(step), value))
        })?;
        // A value may have been recorded by an attempt that was killed before the pruner was asked.
        let last = self.known.last().copied();
        let new = |(step, value): &(Option<u64>, f64)| {
            let is_new = |step: &u64| !self.known.contains(step);
            let is_open = |step: &u64| Some(*step) == last && !self.kept.contains(step);
            Some(((*step).filter(|step| is_new(step) || is_open(step))?, *value))
        };
        let new: Vec<(u64, f64)> = self.log.iter().flatten().filter_map(new).collect();
        let mut is_worse = false;
        for (step, value) in new {
            if self.known.insert(step) {
                self.claim.value(step, value)?;
            } else if !self.kept.insert(step) {
                continue;
            }
            match prunes(self.study, self.claim)? {
                Some(true) => is_worse = true,
                Some(false) => self.claim.keep(step)?,
                None => {}
            }
            self.kept.insert(step);
        }
        Ok(is_worse)
    }

    /// Records how the attempt ended.
    fn settle(&mut self, status: u8, asked: Option<Asked>, running: &Running) -> Result<Outcome> {
        let sign = self.study.config().direction.sign();
        let best = self.claim.read()?.as_ref().and_then(|record| Record::best(record, sign));
        let last = self.log.iter().flatten().rev().find(|(step, _)| step.is_none());
        let told = last.map(|(_, value)| *value);
        let value = told.or(best.map(|(_, value)| value));
        let found = status::read(&self.run.status()).ok().flatten();
        // Of another program, 0 after a request to stop does not say that it is done.
        let is_done = status == 0 && (asked.is_none() || self.study.config().task().is_some());
        if asked == Some(Asked::Pruned) && !is_done {
            self.block()?;
            return finish(self.claim, Ended::of(End::Pruned));
        }
        // TERM, KILL, INT, HUP and, before train-stage has installed its handlers, USR1.
        let is_stop = [Exit::Again as u8, 143, 137, 130, 129, 138].contains(&status);
        if let Some(value) = told.filter(|_| is_stop || asked.is_some()) {
            return finish(self.claim, Ended::with(value));
        }
        if is_done {
            let metric = &self.study.config().metric;
            let end = match value {
                Some(value) => Ended::with(value),
                None if !self.known.is_empty() => Ended::of(End::Diverged),
                None => Ended::failed(format!("the command ended without a value of {metric}")),
            };
            return finish(self.claim, end);
        }
        let how = match status.checked_sub(128).filter(|signal| (1..=64).contains(signal)) {
            Some(signal) => format!("signal {signal}"),
            None => format!("exit status {status}"),
        };
        let says = |line: Option<String>| line.map_or(how.clone(), |line| format!("{how}: {line}"));
        // What could not be written is written by the next attempt, unless the disk stays full.
        let is_unwritten = [Exit::CannotCreate as u8, Exit::Io as u8].contains(&status);
        if is_stop || is_unwritten || asked.is_some() {
            let reason = match asked {
                Some(Asked::Signal) => "the worker was asked to stop".to_string(),
                Some(_) => "time limit of the worker".to_string(),
                None => says(running.last_line().filter(|_| is_unwritten)),
            };
            self.claim.stop(&reason, asked.is_some())?;
            let by_itself = asked.is_none() && status == Exit::Again as u8;
            return Ok(Outcome::Stopped { by_itself });
        }
        let reason = found.filter(|found| found.state == State::Failed);
        let cause = reason.as_ref().and_then(|found| found.cause);
        let reason = reason.and_then(|found| found.reason).or_else(|| running.last_line());
        let error = says(reason);
        // Other programs have no status.json.
        let small = error.to_lowercase();
        let says = |words: &[&str]| words.iter().any(|word| small.contains(word));
        let mut end = Ended::failed(error);
        if cause == Some(Cause::OutOfMemory)
            || cause.is_none() && says(&["out of memory", "cannot allocate", "memoryerror"])
        {
            end.state = End::OutOfMemory;
            let config = self.run.read_config().ok();
            end.batch_size = config.and_then(|c| c["training"]["batch_size"].as_u64());
        } else if cause == Some(Cause::Diverged) {
            end.state = End::Diverged;
        }
        finish(self.claim, end)
    }

    /// Marks the run of a pruned trial such that nobody resumes it by accident, cron least of all.
    fn block(&self) -> Result<()> {
        let Some(mut status) = status::read(&self.run.status())? else { return Ok(()) };
        let lease = Lease::take(&self.run.lease(), || Ok(self.run.last_attempt()? + 1), &|| false)?;
        (status.state, status.blocked) = (State::Failed, true);
        status.reason = Some("pruned: other trials of the study were better at this step".into());
        StatusWriter::new(self.run.status()).fenced(lease.fence().clone()).write(&status)
    }
}
