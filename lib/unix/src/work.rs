//! Work that is no training and stands in its folder as runs do: `status.json` and a lease, by which
//! `timekeep` knows whether it is under way, done, or failed.
//!
//! What it says is told only where the folder is: a command that fails for a slip of the pen leaves none
//! behind. It never keeps the work itself from being done; where another process tells of the same folder,
//! this one works in silence.

use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::lease::Lease;
use crate::run_dir::RunDir;
use crate::signal::Signals;
use crate::status::{self, Cost, State, Status, StatusWriter};
use crate::{Error, Exit, Result, warn};

/// Work under way.
#[derive(Debug)]
pub struct Work {
    folder: PathBuf,
    status: Status,
    /// What earlier attempts took.
    before: Cost,
    began: Instant,
    writer: StatusWriter,
    /// None where there was no folder at the start.
    lease: Option<Lease>,
    is_told_by_another: bool,
}

/// Does `body` in `folder`, and tells there how it stands and how it ended; `stage` is the kind of work.
/// Errors: those of `body`; 75 when a signal asked to stop before it began, 73.
pub fn tell<T>(
    folder: &Path,
    stage: &str,
    signals: Signals,
    body: impl FnOnce(&mut Work) -> Result<T>,
) -> Result<T> {
    let mut work = Work::begin(folder, stage, signals)?;
    let outcome = body(&mut work);
    work.end(outcome.as_ref().err());
    outcome
}

impl Work {
    fn begin(folder: &Path, stage: &str, signals: Signals) -> Result<Self> {
        let mut writer = StatusWriter::new(folder.join("status.json"));
        let (mut lease, mut is_told_by_another, mut before) = (None, false, Cost::default());
        if let Ok(run) = RunDir::open(folder) {
            let stop = || signals.stop_requested().is_some();
            match Lease::take(&run.lease(), || Ok(1), &stop) {
                Ok(taken) => {
                    writer = writer.fenced(taken.fence().clone());
                    lease = Some(taken);
                }
                Err(error) if error.exit == Exit::Again && !stop() => is_told_by_another = true,
                Err(error) => return Err(error),
            }
            // A damaged one is replaced by a good one.
            before = status::read(&run.status()).ok().flatten().map_or(before, |found| found.cost);
        }
        let attempt = lease.as_ref().map_or(0, Lease::attempt);
        let status = Status { stage: stage.into(), attempt, ..Status::default() };
        let (folder, began) = (folder.to_path_buf(), Instant::now());
        let mut work = Self { folder, status, before, began, writer, lease, is_told_by_another };
        if work.lease.is_some() {
            work.write();
        }
        Ok(work)
    }

    /// So much is done, of all, where that is known.
    pub fn progress(&mut self, done: u64, all: Option<u64>) {
        self.status.update = done;
        self.status.updates = all;
        if self.lease.is_some() {
            self.write();
        }
    }

    fn end(&mut self, error: Option<&Error>) {
        let (state, reason) = match error {
            None => (State::Finished, None),
            Some(error) => {
                let stopped = matches!(error.exit, Exit::Again | Exit::Done);
                let state = if stopped { State::Stopped } else { State::Failed };
                (state, Some(error.to_string()))
            }
        };
        if state == State::Finished {
            self.status.updates = Some(self.status.update);
        }
        (self.status.state, self.status.reason) = (state, reason);
        self.write();
    }

    fn write(&mut self) {
        if self.is_told_by_another || !self.folder.is_dir() {
            return;
        }
        let hours = self.began.elapsed().as_secs_f64() / 3600.0;
        self.status.cost = Cost {
            hours: self.before.hours + hours,
            device_hours: self.before.device_hours + hours,
        };
        if let Err(error) = self.writer.update(&self.status) {
            warn!("{error}");
            self.is_told_by_another |= error.exit == Exit::Again;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(folder: &Path) -> Option<Status> {
        status::read(&folder.join("status.json")).unwrap()
    }

    #[test]
    fn how_it_ended_stands_in_its_folder() {
        let folder = tempfile::tempdir().unwrap();
        let (path, signals) = (folder.path(), Signals::install().unwrap());
        let failed: Result<()> = tell(path, "evaluation", signals, |work| {
            work.progress(1, Some(4));
            assert_eq!(told(path).unwrap().state, State::Running);
            Err(Error::data("no good"))
        });
        assert_eq!(failed.unwrap_err().exit, Exit::Data);
        let status = told(path).unwrap();
        assert_eq!((status.state, status.update, status.attempt), (State::Failed, 1, 1));
        assert_eq!((status.reason.as_deref(), status.updates), (Some("no good"), Some(4)));
        let stopped: Result<()> =
            tell(path, "evaluation", signals, |_| Err(Error::new(Exit::Again, "stopped by TERM")));
        assert!(stopped.is_err() && told(path).unwrap().state == State::Stopped);
        tell(path, "evaluation", signals, |work| {
            work.progress(4, None);
            Ok(())
        })
        .unwrap();
        let status = told(path).unwrap();
        assert_eq!((status.state, status.updates, status.attempt), (State::Finished, Some(4), 3));
        assert_eq!(status.reason, None);
    }

    #[test]
    fn nothing_is_made_for_what_fails_and_another_is_not_disturbed() {
        let folder = tempfile::tempdir().unwrap();
        let (path, signals) = (folder.path().join("absent"), Signals::install().unwrap());
        assert!(
            tell(&path, "latents", signals, |_| -> Result<()> { Err(Error::data("")) }).is_err()
        );
        assert!(!path.exists());
        tell(&path, "latents", signals, |_| crate::publish::create_folder(&path)).unwrap();
        assert_eq!(told(&path).unwrap().state, State::Finished);
        tell(&path, "latents", signals, |_| {
            let second: Result<()> = tell(&path, "latents", signals, |_| Err(Error::data("")));
            assert!(second.is_err() && told(&path).unwrap().state == State::Running);
            Ok(())
        })
        .unwrap();
        assert_eq!(told(&path).unwrap().state, State::Finished);
    }
}
