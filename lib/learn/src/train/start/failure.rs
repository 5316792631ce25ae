//! An attempt that fails before training starts: `status.json` records why, so that people see it and `timekeep cron`
//! does not start the run again.

use super::resume;
use std::path::Path;
use unix::lease::Fence;
use unix::run_dir::RunDir;
use unix::signal::Signals;
use unix::status::{self, State, Status, StatusWriter};
use unix::{Error, Exit};

/// Records the error of an attempt of task `stage` that failed before [`super::super::train`], as when its configuration
/// is wrong. Does nothing if there is no run directory, or another process holds the run.
pub fn startup_failed(folder: &Path, stage: &str, error: &Error) {
    // No directory is created for a failure.
    let Ok(run) = RunDir::open(folder) else { return };
    let Ok(signals) = Signals::install() else { return };
    if let Ok(lease) = resume::lease(&run, signals) {
        record(&run, stage, lease.fence(), error);
    }
}

/// Records that an attempt has failed; the status of a finished or blocked run stays. The program reports the error
/// itself, so a status that cannot be written is ignored.
pub(in crate::train) fn record(run: &RunDir, stage: &str, fence: &Fence, error: &Error) {
    let Ok(before) = status::read(&run.status()) else { return };
    let before = before.unwrap_or_default();
    let stays = before.state == State::Finished || before.held;
    if stays || matches!(error.exit, Exit::Again | Exit::Done) {
        return;
    }
    let now = Status {
        stage: stage.into(),
        state: State::Failed,
        attempt: fence.attempt(),
        reason: Some(error.to_string()),
        ..before
    };
    let _ = StatusWriter::new(run.status()).fenced(fence.clone()).write(&now);
}
