//! A start that fails before anything was trained: `status.json` tells why, so that whoever looks at the run
//! sees it, and `timekeep cron` does not start it again.

use super::restart;
use std::path::Path;
use unix::lease::Fence;
use unix::run_dir::RunDir;
use unix::signal::Signals;
use unix::status::{self, State, Status, StatusWriter};
use unix::{Error, Exit};

/// Tells of the error of a start that never came to its run, as when its configuration is wrong. Nothing where
/// the directory is not there, or another process has the run.
pub fn failed_start(folder: &Path, stage: &str, error: &Error) {
    // A directory is not made for a failure alone.
    let Ok(run) = RunDir::open(folder) else { return };
    let Ok(signals) = Signals::install() else { return };
    if let Ok(lease) = restart::lease(&run, signals) {
        tell(&run, stage, lease.fence(), error);
    }
}

/// Writes down that a start has failed. What another start would repeat, and what is finished, stays.
/// The error itself is told by its end: a status that cannot be written changes nothing.
pub(super) fn tell(run: &RunDir, stage: &str, fence: &Fence, error: &Error) {
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
