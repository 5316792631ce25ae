//! Reports write errors of the log and the status file once instead of at every update.

use unix::{Exit, Result};

/// Tracks consecutive failed writes, e.g. because the disk is full.
#[derive(Debug, Default)]
pub(in crate::train) struct LogErrors {
    failed: u64,
}

impl LogErrors {
    /// Warns about the first failure, and reports when writing succeeds again.
    pub fn note(&mut self, result: &Result<()>) {
        match result {
            // A lost lease is reported when it ends the run.
            Err(error) if error.exit == Exit::Again => {}
            Err(error) => {
                if self.failed == 0 {
                    unix::warn!("{error}; the run continues, and later failures are not reported");
                }
                self.failed += 1;
            }
            Ok(()) if self.failed > 0 => {
                unix::note!("log and status can be written again; failed writes: {}", self.failed);
                self.failed = 0;
            }
            Ok(()) => {}
        }
    }
}
