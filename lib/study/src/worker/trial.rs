//! One attempt at a trial: runs the command, records its validations and consults the pruner after each.

use super::command::{Running, check_program, words, write_params};
use crate::ask::prunes;
use crate::claim::Claim;
use crate::record::{EndRecord, Outcome, Record, StartRecord};
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

/// Minimum and maximum polling interval. The first polls are closer together, for commands that exit quickly.
const POLL: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(200)];

/// How an attempt ended.
pub enum AttemptOutcome {
    /// The trial has ended.
    Ended(EndRecord),
    /// The attempt stopped; the trial can be resumed.
    Stopped {
        /// The command stopped by itself, e.g. because its job nears the time limit, so the worker should stop, too.
        by_itself: bool,
    },
}

/// Why the command was asked to stop.
#[derive(Clone, Copy, PartialEq)]
enum StopReason {
    Pruned,
    Signal,
    Time,
}

struct Attempt<'a> {
    study: &'a mut Study,
    claim: &'a mut Claim,
    /// Steps already in the journal.
    known: BTreeSet<u64>,
    /// Steps after which the pruner kept the trial.
    kept: BTreeSet<u64>,
    /// Step and value of each validation; a value without a step is final.
    log: Follow<Option<(Option<u64>, f64)>>,
    run: RunDir,
}

/// Runs the command of a claimed trial until it exits, and records values and outcome. Asks the command to stop and
/// waits for it when a signal arrives, at the time `end`, or when the pruner ends the trial. Errors: 66 if the program
/// is missing; 73, 74; 75 if the lease of the trial was lost.
pub fn run(
    study: &mut Study,
    claim: &mut Claim,
    mut start: StartRecord,
    signals: Signals,
    end: Option<Instant>,
) -> Result<AttemptOutcome> {
    let run = claim.run_dir()?;
    let folder = run.path().to_path_buf();
    let record = claim.record.clone();
    let known: BTreeSet<u64> =
        record.iter().flat_map(|record| record.values.keys().copied()).collect();
    let kept = record.as_ref().map_or(BTreeSet::new(), |record| record.kept.clone());
    let updates = status::read(&run.status()).ok().flatten().map_or(0, |status| status.update);
    start.progress = updates + known.len() as u64;
    let fruitless = record.as_ref().filter(|record| record.progress == start.progress);
    let fruitless = fruitless.map_or(0, |record| record.fruitless);
    if fruitless >= study.config().attempts {
        let why = record.as_ref().and_then(|record| record.stopped.clone());
        let why = why.map_or(String::new(), |why| format!("; the last one stopped with: {why}"));
        let error = format!("{fruitless} consecutive attempts made no progress{why}");
        return finish(claim, EndRecord::failed(error));
    }
    let directory = study.config().directory.clone().unwrap_or(".".into());
    check_program(&study.config().command[0], &directory)?;
    let (number, round) = (claim.number, study.round_of(claim.number).unwrap_or(0));
    let fidelity = &study.rounds()[round].fidelity;
    let params = write_params(study.config(), fidelity, &start, &folder)?;
    claim.start(&start)?;
    let retry = record.as_ref().is_some_and(|record| record.retry);
    let words = words(study.config(), number, &start, fidelity, [&params, &folder], retry);
    // A second TERM ends train-stage at once, without a checkpoint; USR1 signals are not counted.
    let signal = if study.config().task().is_some() { "USR1" } else { "TERM" };
    let left = end.map(|end| end.saturating_duration_since(Instant::now()).as_secs());
    let mut variables = vec![
        ("HPO_STUDY", study.folder().display().to_string()),
        ("HPO_TRIAL", number.to_string()),
    ];
    variables.extend(left.map(|left| {
        // The command then stops by itself before that time, as it does under timekeep.
        (END_TIME_VARIABLE, unix::time::unix_seconds().saturating_add(left).to_string())
    }));
    let mut running = Running::start(&words, signal, &directory, &folder, &variables)?;
    let metric = study.config().metric.clone();
    let log = Follow::new(&run.log());
    let mut attempt = Attempt { study, claim, known, kept, log, run };
    let watched = attempt.watch(&mut running, &metric, signals, end);
    if watched.is_err() {
        // The worker can no longer record values, so the next attempt resumes the trial.
        running.stop();
        while running.ended()?.is_none() {
            std::thread::sleep(POLL[1]);
        }
    }
    let (status, asked) = watched?;
    attempt.conclude(status, asked, &running)
}

fn finish(claim: &mut Claim, ended: EndRecord) -> Result<AttemptOutcome> {
    claim.end(&ended)?;
    Ok(AttemptOutcome::Ended(ended))
}

impl Attempt<'_> {
    /// Follows the command until it exits. Returns its exit status and, if it was asked to stop, the reason.
    fn watch(
        &mut self,
        running: &mut Running,
        metric: &str,
        signals: Signals,
        end: Option<Instant>,
    ) -> Result<(u8, Option<StopReason>)> {
        let mut asked = None;
        let mut pause = POLL[0];
        loop {
            let status = running.ended()?;
            let is_worse = self.follow(metric)?;
            if let Some(status) = status {
                return Ok((status, asked));
            }
            let why = match () {
                () if signals.stop_requested().is_some() => Some(StopReason::Signal),
                () if end.is_some_and(|end| Instant::now() >= end) => Some(StopReason::Time),
                () if is_worse => Some(StopReason::Pruned),
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

    /// Records new validations and returns whether the pruner ends the trial.
    fn follow(&mut self, metric: &str) -> Result<bool> {
        if self.run.log().symlink_metadata().is_err() {
            return Ok(false);
        }
        self.log.read(|record| {
            let kind = record.get("kind").and_then(Value::as_str)?;
            let value = record.get(metric).filter(|_| ["validation", "final"].contains(&kind))?;
            // Values that are not finite are logged as null.
            let value = value.as_f64().or(value.is_null().then_some(f64::NAN))?;
            let step = || record.get("update").and_then(Value::as_u64).unwrap_or(0);
            Some(((kind == "validation").then(step), value))
        })?;
        // The last recorded value may come from an attempt that was killed before the pruner was consulted.
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
    fn conclude(
        &mut self,
        status: u8,
        asked: Option<StopReason>,
        running: &Running,
    ) -> Result<AttemptOutcome> {
        let sign = self.study.config().direction.sign();
        let best = self.claim.read()?.as_ref().and_then(|record| Record::best(record, sign));
        let last = self.log.iter().flatten().rev().find(|(step, _)| step.is_none());
        let reported = last.map(|(_, value)| *value);
        let value = reported.or(best.map(|(_, value)| value));
        let found = status::read(&self.run.status()).ok().flatten();
        // Other programs may exit 0 when asked to stop, which does not mean that the trial is complete.
        let is_done = status == 0 && (asked.is_none() || self.study.config().task().is_some());
        if asked == Some(StopReason::Pruned) && !is_done {
            self.block()?;
            return finish(self.claim, EndRecord::of(Outcome::Pruned));
        }
        // TERM, KILL, INT and HUP, and USR1 if train-stage has not installed its handlers yet.
        let is_stop = [Exit::Again as u8, 143, 137, 130, 129, 138].contains(&status);
        if let Some(value) = reported.filter(|_| is_stop || asked.is_some()) {
            return finish(self.claim, EndRecord::with(value));
        }
        if is_done {
            let metric = &self.study.config().metric;
            let end = match value {
                Some(value) => EndRecord::with(value),
                None if !self.known.is_empty() => EndRecord::of(Outcome::Diverged),
                None => EndRecord::failed(format!("the command exited without reporting {metric}")),
            };
            return finish(self.claim, end);
        }
        let how = match status.checked_sub(128).filter(|signal| (1..=64).contains(signal)) {
            Some(signal) => format!("signal {signal}"),
            None => format!("exit status {status}"),
        };
        let explained =
            |line: Option<String>| line.map_or(how.clone(), |line| format!("{how}: {line}"));
        // After a write error, another attempt may succeed unless the disk stays full.
        let is_unwritten = [Exit::CannotCreate as u8, Exit::Io as u8].contains(&status);
        if is_stop || is_unwritten || asked.is_some() {
            let reason = match asked {
                Some(StopReason::Signal) => "the worker was asked to stop".to_string(),
                Some(_) => "time limit of the worker".to_string(),
                None => explained(running.last_line().filter(|_| is_unwritten)),
            };
            self.claim.stop(&reason, asked.is_some())?;
            let by_itself = asked.is_none() && status == Exit::Again as u8;
            return Ok(AttemptOutcome::Stopped { by_itself });
        }
        let reason = found.filter(|found| found.state == State::Failed);
        let cause = reason.as_ref().and_then(|found| found.cause);
        let reason = reason.and_then(|found| found.reason).or_else(|| running.last_line());
        let error = explained(reason);
        // Programs without status.json report the cause only in their output.
        let small = error.to_lowercase();
        let mentions = |words: &[&str]| words.iter().any(|word| small.contains(word));
        let mut end = EndRecord::failed(error);
        if cause == Some(Cause::OutOfMemory)
            || cause.is_none() && mentions(&["out of memory", "cannot allocate", "memoryerror"])
        {
            end.state = Outcome::OutOfMemory;
            let config = self.run.read_config().ok();
            end.batch_size = config.and_then(|c| c["training"]["batch_size"].as_u64());
        } else if cause == Some(Cause::Diverged) {
            end.state = Outcome::Diverged;
        }
        finish(self.claim, end)
    }

    /// Marks the run of a pruned trial as failed, so that nothing resumes it, in particular `timekeep cron`.
    fn block(&self) -> Result<()> {
        let Some(mut status) = status::read(&self.run.status())? else { return Ok(()) };
        let lease = Lease::take(&self.run.lease(), || Ok(self.run.last_attempt()? + 1), &|| false)?;
        (status.state, status.blocked) = (State::Failed, true);
        status.reason = Some("pruned: other trials of the study were better at this step".into());
        StatusWriter::new(self.run.status()).fenced(lease.fence().clone()).write(&status)
    }
}
