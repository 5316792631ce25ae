//! Records attempts that fail before training starts: `status.json` stores the reason, so that users see it and
//! `timekeep cron` does not start the run again.

use super::resume;
use std::path::Path;
use unix::lease::Fence;
use unix::run_dir::RunDir;
use unix::signal::Signals;
use unix::status::{self, State, Status, StatusWriter};
use unix::{Error, Exit};

/// Records the error of an attempt at task `task` that failed before [`super::super::train`], e.g. because its
/// configuration is invalid. Does nothing if there is no run directory or another process holds the run.
pub fn startup_failed(folder: &Path, task: &str, error: &Error) {
    // A startup failure must not create a run directory.
    let Ok(run) = RunDir::open(folder) else { return };
    let Ok(signals) = Signals::install() else { return };
    if let Ok(lease) = resume::lease(&run, signals) {
        record(&run, task, lease.fence(), error);
    }
}

/// Records that an attempt has failed. The status of a finished or blocked run is kept. Failures to write the status
/// are ignored, because the program reports the error itself.
pub(in crate::train) fn record(run: &RunDir, task: &str, fence: &Fence, error: &Error) {
    let Ok(before) = status::read(&run.status()) else { return };
    let before = before.unwrap_or_default();
    let stays = before.state == State::Finished || before.blocked;
    if stays || matches!(error.exit, Exit::Again | Exit::Done) {
        return;
    }
    let now = Status {
        task: task.into(),
        state: State::Failed,
        attempt: fence.attempt(),
        reason: Some(error.to_string()),
        cause: error.cause,
        ..before
    };
    let _ = StatusWriter::new(run.status()).fenced(fence.clone()).write(&now);
}
