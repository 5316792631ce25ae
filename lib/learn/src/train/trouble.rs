//! A fault that lasts is told once.

use unix::{Exit, Result};

/// Writes that fail one after the other: a full disk would else be told of at every update.
#[derive(Debug, Default)]
pub(super) struct Trouble {
    failed: u64,
}

impl Trouble {
    /// Warns of the first failure, and says when it is over.
    pub fn tell(&mut self, result: &Result<()>) {
        match result {
            // A lost lease ends the run, and is told there.
            Err(error) if error.exit == Exit::Again => {}
            Err(error) => {
                if self.failed == 0 {
                    unix::warn!("{error}; this is said once, and is no reason to stop");
                }
                self.failed += 1;
            }
            Ok(()) if self.failed > 0 => {
                unix::note!(
                    "writing works again; {} writes of the log or the status had failed",
                    self.failed
                );
                self.failed = 0;
            }
            Ok(()) => {}
        }
    }
}
