//! Lets work other than training report its state like a training run, with `status.json` and a lease in a directory,
//! so that `timekeep` knows whether it is running, finished or failed.
//!
//! The directory is created only once the inputs are known to be valid, so a command that fails because of a misspelt
//! name leaves none behind. If another process already reports in the same directory, this process does not.
//!
//! Work that is interrupted every time before it has stored anything would be restarted forever. It therefore fails
//! (with status 1 instead of 75) after [`MAX_FRUITLESS_ATTEMPTS`] consecutive attempts that were stopped or killed
//! without storing anything. The count then restarts, because a user who starts the work again has presumably changed
//! something.

use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::lease::Lease;
use crate::publish::create_folder;
use crate::run_dir::RunDir;
use crate::signal::Signals;
use crate::status::{self, Cost, State, Status, StatusWriter};
use crate::{Error, Exit, Result, warn};

/// Maximum number of consecutive attempts that are interrupted before they store anything.
pub const MAX_FRUITLESS_ATTEMPTS: u64 = 3;

/// A task and the directory in which it reports.
#[derive(Clone, Copy, Debug)]
pub struct Task<'a> {
    /// The directory of the task.
    pub folder: &'a Path,
    /// The kind of work, for the field `task` of the status.
    pub task: &'static str,
    /// Advice to the user if every attempt is interrupted before it stores anything.
    pub advice: &'static str,
}

/// Work in progress.
#[derive(Debug)]
pub struct Work {
    folder: PathBuf,
    advice: &'static str,
    signals: Signals,
    status: Status,
    /// The cost of earlier attempts.
    before: Cost,
    began: Instant,
    writer: StatusWriter,
    /// `None` until the directory exists.
    lease: Option<Lease>,
    reported_by_other: bool,
}

/// Runs `body` and reports its progress and outcome. Errors: those of `body`; 1 after [`MAX_FRUITLESS_ATTEMPTS`]
/// attempts that stored nothing; 73; 75 when a signal arrived before the work began.
pub fn run<T>(
    task: Task,
    signals: Signals,
    body: impl FnOnce(&mut Work) -> Result<T>,
) -> Result<T> {
    let mut work = Work::begin(task, signals)?;
    let outcome = body(&mut work);
    work.end(outcome)
}

impl Work {
    fn begin(task: Task, signals: Signals) -> Result<Self> {
        let Task { folder, task, advice } = task;
        let mut work = Self {
            folder: folder.to_path_buf(),
            advice,
            signals,
            status: Status { task: task.into(), fruitless_attempts: 1, ..Status::default() },
            before: Cost::default(),
            began: Instant::now(),
            writer: StatusWriter::new(folder.join("status.json")),
            lease: None,
            reported_by_other: false,
        };
        if folder.is_dir() {
            work.enter()?;
        }
        Ok(work)
    }

    /// Takes the lease of the directory and continues the attempt count.
    fn enter(&mut self) -> Result<()> {
        let (run, signals) = (RunDir::open(&self.folder)?, self.signals);
        let stop = || signals.stop_requested().is_some();
        let lease = match Lease::take(&run.lease(), || Ok(1), &stop) {
            Err(error) if error.exit == Exit::Again && !stop() => {
                self.reported_by_other = true;
                return Ok(());
            }
            lease => lease?,
        };
        run.remove_leftovers();
        // A damaged status counts as none and is replaced.
        let before = status::read(&run.status()).ok().flatten().unwrap_or_default();
        self.before = before.cost;
        self.status.attempt = lease.attempt();
        self.writer = StatusWriter::new(run.status()).fenced(lease.fence().clone());
        self.lease = Some(lease);
        // An attempt that was killed still has the state "running".
        if matches!(before.state, State::Stopped | State::Running) {
            self.status.fruitless_attempts = before.fruitless_attempts + 1;
        }
        if self.status.fruitless_attempts > MAX_FRUITLESS_ATTEMPTS {
            return self.end(Err(self.fruitless_attempts(before.fruitless_attempts, "")));
        }
        self.write();
        Ok(())
    }

    /// Reports that `done` steps, of `all` if the total is known, are complete. The first call means that the inputs
    /// are valid; it creates the directory. Errors: 73, 75.
    pub fn progress(&mut self, done: u64, all: Option<u64>) -> Result<()> {
        if self.lease.is_none() && !self.reported_by_other {
            create_folder(&self.folder)?;
            self.enter()?;
        }
        self.status.update = done;
        self.status.updates = all;
        self.write();
        Ok(())
    }

    /// Records that this attempt has stored something that later attempts need not repeat, and so has made progress.
    pub fn stored(&mut self) {
        if std::mem::take(&mut self.status.fruitless_attempts) > 0 {
            // Write it at once, because this attempt may be killed.
            self.write_with(StatusWriter::write);
        }
    }

    fn fruitless_attempts(&self, attempts: u64, cause: &str) -> Error {
        let (task, folder, advice) = (&self.status.task, self.folder.display(), self.advice);
        let text = format!(
            "{cause}{task} in {folder}: {attempts} attempts in a row were interrupted before anything was \
             stored; {advice}"
        );
        Error::new(Exit::Failure, text)
    }

    fn end<T>(&mut self, outcome: Result<T>) -> Result<T> {
        let is_stop = |error: &Error| matches!(error.exit, Exit::Again | Exit::Done);
        let count = self.status.fruitless_attempts;
        let outcome = outcome.map_err(|error| match error.exit {
            Exit::Again if count >= MAX_FRUITLESS_ATTEMPTS => {
                self.fruitless_attempts(count, &format!("{error}; "))
            }
            _ => error,
        });
        self.status.reason = outcome.as_ref().err().map(ToString::to_string);
        self.status.state = match &outcome {
            Ok(_) => State::Finished,
            Err(error) if is_stop(error) => State::Stopped,
            Err(_) => State::Failed,
        };
        if self.status.state == State::Finished {
            (self.status.updates, self.status.fruitless_attempts) = (Some(self.status.update), 0);
        }
        self.write();
        outcome
    }

    /// Writes the status if its state changed or the last write was several seconds ago.
    fn write(&mut self) {
        self.write_with(StatusWriter::update);
    }

    fn write_with(&mut self, write: impl Fn(&mut StatusWriter, &Status) -> Result<()>) {
        if self.reported_by_other || !self.folder.is_dir() {
            return;
        }
        let hours = self.began.elapsed().as_secs_f64() / 3600.0;
        self.status.cost = Cost {
            hours: self.before.hours + hours,
            device_hours: self.before.device_hours + hours,
        };
        if let Err(error) = write(&mut self.writer, &self.status) {
            warn!("{error}");
            self.reported_by_other |= error.exit == Exit::Again;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(folder: &Path) -> Task<'_> {
        Task { folder, task: "evaluation", advice: "raise the limit" }
    }

    fn status_in(folder: &Path) -> Option<Status> {
        status::read(&folder.join("status.json")).unwrap()
    }

    #[test]
    fn the_outcome_is_recorded_in_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        let (path, signals) = (folder.path(), Signals::install().unwrap());
        let failed: Result<()> = run(task(path), signals, |work| {
            work.progress(1, Some(4))?;
            assert_eq!(status_in(path).unwrap().state, State::Running);
            Err(Error::data("no good"))
        });
        assert_eq!(failed.unwrap_err().exit, Exit::Data);
        let status = status_in(path).unwrap();
        assert_eq!((status.state, status.update, status.attempt), (State::Failed, 1, 1));
        assert_eq!((status.reason.as_deref(), status.updates), (Some("no good"), Some(4)));
        let stopped: Result<()> =
            run(task(path), signals, |_| Err(Error::new(Exit::Again, "stopped by TERM")));
        assert!(stopped.is_err() && status_in(path).unwrap().state == State::Stopped);
        run(task(path), signals, |work| {
            work.progress(4, None)?;
            Ok(())
        })
        .unwrap();
        let status = status_in(path).unwrap();
        assert_eq!((status.state, status.updates, status.attempt), (State::Finished, Some(4), 3));
        assert_eq!(status.reason, None);
    }

    #[test]
    fn failed_work_creates_no_folder_and_another_process_keeps_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let (path, signals) = (folder.path().join("absent"), Signals::install().unwrap());
        assert!(run(task(&path), signals, |_| -> Result<()> { Err(Error::data("")) }).is_err());
        assert!(!path.exists());
        run(task(&path), signals, |_| crate::publish::create_folder(&path)).unwrap();
        assert_eq!(status_in(&path).unwrap().state, State::Finished);
        run(task(&path), signals, |_| {
            let second: Result<()> = run(task(&path), signals, |_| Err(Error::data("")));
            assert!(second.is_err() && status_in(&path).unwrap().state == State::Running);
            Ok(())
        })
        .unwrap();
        assert_eq!(status_in(&path).unwrap().state, State::Finished);
    }

    #[test]
    fn work_that_is_always_interrupted_eventually_fails() {
        let folder = tempfile::tempdir().unwrap();
        let (path, signals) = (folder.path().join("new"), Signals::install().unwrap());
        let stopped = |stores: bool| {
            let outcome: Result<()> = run(task(&path), signals, |work| {
                work.progress(1, Some(4))?;
                if stores {
                    work.stored();
                }
                Err(Error::new(Exit::Again, "stopped by TERM"))
            });
            outcome.unwrap_err()
        };
        let exits = [false, false, true, false, false, false].map(|stores| stopped(stores).exit);
        assert_eq!(exits[..5], [Exit::Again; 5]);
        assert_eq!(exits[5], Exit::Failure, "after three in a row");
        let status = status_in(&path).unwrap();
        assert_eq!(status.state, State::Failed);
        let reason = status.reason.unwrap();
        assert!(reason.contains("3 attempts in a row") && reason.contains("raise the limit"));
        // The count has restarted. The next two attempts are killed, so they write no final status.
        assert_eq!(stopped(false).exit, Exit::Again);
        for fruitless_attempts in [2, 3] {
            let killed = Work::begin(task(&path), signals).unwrap();
            assert_eq!(killed.status.fruitless_attempts, fruitless_attempts);
            drop(killed);
        }
        let refused = Work::begin(task(&path), signals).unwrap_err();
        assert_eq!(refused.exit, Exit::Failure, "{refused}");
        assert_eq!(status_in(&path).unwrap().state, State::Failed);
        assert_eq!(stopped(false).exit, Exit::Again);
    }
}
