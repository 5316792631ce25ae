//! Claims a trial by taking the lease of its folder; only the holder writes the journal.

use crate::record::{EndRecord, Outcome, Record, StartRecord};
use crate::study::Study;
use serde::Serialize;
use serde_json::json;
use std::path::PathBuf;
use std::time::Duration;
use unix::lease::{self, Lease, Observation};
use unix::log::Log;
use unix::run_dir::RunDir;
use unix::{Error, Exit, Result};

/// A trial that this process holds.
#[derive(Debug)]
pub struct Claim {
    /// Number of the trial.
    pub number: u64,
    /// The journal when the trial was claimed; `None` if the trial has not been started.
    pub record: Option<Record>,
    folder: PathBuf,
    log: Log,
    // Dropped last: the journal is closed before the lease is released.
    _lease: Lease,
}

/// Whether a process is working on a trial: a worker, or a command that has outlived its worker.
pub fn is_at_work(study: &Study, number: u64) -> Result<bool> {
    any_lease(study, number, |seen| seen.is_at_work)
}

fn any_lease(study: &Study, number: u64, is: impl Fn(&Observation) -> bool) -> Result<bool> {
    let folder = study.trial_folder(number);
    for name in ["claim", "command", "lease"] {
        if lease::observe(&folder.join(name))?.is_some_and(|seen| is(&seen)) {
            return Ok(true);
        }
    }
    Ok(false)
}

impl Study {
    /// Reopens the trials `numbers`, each of which must have failed, diverged or run out of memory, or have been
    /// started by `hpo ask` and not have ended; returns their numbers. Without `numbers`, reopens all trials that
    /// failed, diverged or ran out of memory. Errors: 2 for any other trial; 75 if another process is working on a
    /// trial.
    pub fn retry(&self, numbers: &[u64]) -> Result<Vec<u64>> {
        let failed = |record: &Record| {
            [Outcome::Failed, Outcome::OutOfMemory, Outcome::Diverged]
                .iter()
                .any(|end| record.is(*end))
        };
        let may_retry = |record: &Record| failed(record) || record.waits_for_caller();
        let all = self.records().values().filter(|record| failed(record));
        let numbers = match numbers {
            [] => all.map(|record| record.number).collect(),
            given => given.to_vec(),
        };
        let mut retried = Vec::new();
        for number in numbers {
            if !self.records().get(&number).is_some_and(may_retry) {
                return Err(Error::usage(format!("trial {number} has not failed")));
            }
            // Recorded before the retry, so that no process trusts the end of the trial in a snapshot.
            self.mark_retried(number)?;
            let Some(mut claim) = Claim::take(self, number, &|| false)? else {
                let text = format!("another process is working on trial {number}");
                return Err(Error::new(Exit::Again, text));
            };
            let Some(record) = claim.record.as_ref().filter(|record| may_retry(record)) else {
                continue;
            };
            let log = claim.run_dir()?.log();
            if self.config().task().is_none() && log.exists() {
                // The next attempt must not read values of earlier ones; train-stage renames its log itself.
                let earlier = log.with_file_name(format!("log-{}.jsonl", record.attempts));
                std::fs::rename(&log, earlier).map_err(|cause| Error::io(&log, cause))?;
            }
            claim.write("retry", &json!({}))?;
            retried.push(number);
        }
        Ok(retried)
    }
}

impl Claim {
    /// Claims a trial; `None` if another process is working on it. Errors: 73, 74; 75 when `stop` returns true.
    pub fn take(study: &Study, number: u64, stop: &dyn Fn() -> bool) -> Result<Option<Self>> {
        // An age of 0 means that the clocks disagree; `Lease::take` then waits for the next heartbeat.
        let is_held = |seen: &Observation| seen.is_at_work && seen.age != Some(Duration::ZERO);
        if any_lease(study, number, is_held)? {
            return Ok(None);
        }
        let folder = study.trial_folder(number);
        let lease = match Lease::take(&folder.join("claim"), || Ok(1), stop) {
            Err(error) if error.exit == Exit::Again && !stop() => return Ok(None),
            lease => lease?,
        };
        let log = Log::open(&folder.join("trial.jsonl"), lease.attempt())?;
        let log = log.fenced(lease.fence().clone());
        // The previous writer has closed the journal.
        let record = study.read_now(number)?;
        let path = folder.join("trial.jsonl");
        if record.is_none() && path.metadata().is_ok_and(|found| found.len() > 0) {
            let text = "its first record is damaged; move the folder of the trial away to run the trial again";
            return Err(Error::data(format!("{}: {text}", path.display())));
        }
        Ok(Some(Self { number, record, folder, log, _lease: lease }))
    }

    /// Claims a trial that has not been started or whose record `is_free` accepts; `study` may not know it yet.
    pub fn take_free(
        study: &mut Study,
        number: u64,
        stop: &dyn Fn() -> bool,
        is_free: impl Fn(&Record) -> bool,
    ) -> Result<Option<Self>> {
        let Some(claim) = Self::take(study, number, stop)? else { return Ok(None) };
        match &claim.record {
            Some(record) if !is_free(record) => study.insert(record.clone()),
            _ => return Ok(Some(claim)),
        }
        Ok(None)
    }

    /// The folder of the trial, which is also its run directory.
    pub fn run_dir(&self) -> Result<RunDir> {
        RunDir::open(&self.folder)
    }

    /// Records the start of an attempt.
    pub fn start(&mut self, start: &StartRecord) -> Result<()> {
        self.write("start", start)
    }

    /// Records the value of the metric at a step.
    pub fn value(&mut self, step: u64, value: f64) -> Result<()> {
        self.write("value", &json!({ "step": step, "value": value }))
    }

    /// Records that the pruner keeps the trial after the value at this step.
    pub fn keep(&mut self, step: u64) -> Result<()> {
        // Not synced: if the record is lost, the pruner is asked again.
        self.log.write("kept", &json!({ "step": step }))
    }

    /// Records that the attempt stopped and can be resumed. `requested` means that the worker requested the stop, so
    /// the attempt does not count as fruitless.
    pub fn stop(&mut self, reason: &str, requested: bool) -> Result<()> {
        self.write("stop", &json!({ "reason": reason, "asked": requested }))
    }

    /// Records the end of the trial.
    pub fn end(&mut self, end: &EndRecord) -> Result<()> {
        self.write("end", end)
    }

    /// Appends a record durably.
    fn write(&mut self, kind: &str, fields: &impl Serialize) -> Result<()> {
        self.log.write(kind, fields)?;
        self.log.sync()
    }

    /// Rereads the journal. Errors: 66, 74.
    pub fn read(&self) -> Result<Option<Record>> {
        let path = self.folder.join("trial.jsonl");
        Ok(Record::read(&path, self.number, &|_| true)?.0)
    }
}
