//! End of a run: what is saved and reported, and the exit status.

use super::run_writer::RunWriter;
use super::session::Session;
use super::sync::{Cause, Stop};
use crate::checkpoint;
use std::path::Path;
use unix::run_dir::RunDir;
use unix::status;
use unix::{Error, Exit, Result};

/// Reason for the end of the loop.
pub(super) enum End {
    Finished(&'static str),
    Stopped(String),
    /// Another attempt would fail in the same way.
    Failed(status::Cause, String),
    /// The hardware computes wrong results.
    Machine(String),
    /// Checkpoints can no longer be saved.
    Unsaved(String),
    /// An input file does not match its record.
    Refused(Exit, String),
    /// The run must stop before its input files have been verified.
    Unverified,
    /// Another process holds the run, or its directory is gone: nothing is written to the run directory.
    Lost(Exit, String),
}

/// Reason for leaving the loop early: an end of the run, or an error.
pub(super) enum Halt {
    End(End),
    Error(Error),
}

impl From<End> for Halt {
    fn from(end: End) -> Self {
        Self::End(end)
    }
}

impl From<Error> for Halt {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

impl From<Stop> for Halt {
    /// Converts a stop that all ranks agreed on.
    fn from(Stop { cause, why }: Stop) -> Self {
        Self::End(match cause {
            Cause::Asked => End::Stopped(why),
            Cause::Unsaved => End::Unsaved(why),
            Cause::Machine => End::Machine(why),
            Cause::Changed(exit) => End::Refused(Exit::of(exit), why),
            Cause::Lost(exit) => End::Lost(Exit::of(exit), why),
        })
    }
}

/// Whether the run has a checkpoint to resume from.
pub(super) fn has_checkpoint(run: &Path) -> Result<bool> {
    let folder = RunDir::open(run)?.checkpoints();
    Ok(checkpoint::list(&folder)?.iter().any(checkpoint::Entry::is_good))
}

/// Exit status of a run that loses a rank, for [`dist::open`]: 75 if it has a checkpoint to resume from, else 1.
pub fn lost_a_rank(run: &Path) -> Exit {
    match has_checkpoint(run) {
        Ok(true) => Exit::Again,
        _ => Exit::Failure,
    }
}

impl Session<'_> {
    /// Ends the run: verifies the preconditions of a final checkpoint, saves it, and reports. Returns the exit status.
    pub fn conclude(&mut self, halt: Halt) -> Result<Exit> {
        let end = match halt {
            Halt::End(end) => self.verified(end),
            error => Err(error),
        };
        let end = match end {
            Ok(end) | Err(Halt::End(end)) => end,
            // Like `End::Lost`, but detected in the middle of an update.
            Err(Halt::Error(error)) if error.exit == Exit::Again => {
                return Err(self.lost_run(error));
            }
            Err(Halt::Error(error)) => {
                self.reporter.failed(&self.progress, &error.to_string(), error.cause);
                return Err(error);
            }
        };
        let exit = self.save_and_report(end).map_err(|error| self.lost_run(error));
        let ranks = self.job.ranks;
        if ranks.size() == 1 {
            return exit;
        }
        // All ranks exit with the status of rank 0, which writes the run's files.
        let own = exit.unwrap_or_else(|error| {
            unix::diagnostics::say_error(&error);
            error.exit
        });
        let status = ranks.broadcast(vec![own as u8])?;
        Ok(status.first().map_or(own, |number| Exit::of(*number)))
    }

    /// Revises the end: no checkpoint is written when parameters differ between ranks or an input file has changed. A
    /// changed file may also explain why a run diverged.
    fn verified(&mut self, end: End) -> Result<End, Halt> {
        let (saves, stopping) = match &end {
            End::Finished(_) => (true, false),
            End::Stopped(_) if !self.is_saved() => (true, true),
            End::Failed(..) => (false, false),
            _ => return Ok(end),
        };
        if saves {
            self.compare_ranks()?;
        }
        self.verify_inputs(stopping)?;
        Ok(end)
    }

    fn save_and_report(&mut self, end: End) -> Result<Exit> {
        match end {
            End::Finished(why) => {
                self.progress.finished = true;
                if let Err(error) = self.save_and_wait() {
                    return Err(self.not_saved(error));
                }
                self.reporter.finished(&self.progress, why);
                Ok(Exit::Done)
            }
            End::Stopped(why) => {
                if let Err(error) = self.save_and_wait() {
                    let is_lost = error.exit == Exit::Again || self.check_lease().is_err();
                    if is_lost || !has_checkpoint(&self.job.run)? {
                        return Err(self.not_saved(error));
                    }
                    // The run can resume from an older checkpoint, as status 75 promises.
                    self.reporter.unsaved(&self.progress, &error);
                }
                self.reporter.stopped(&self.progress, &why);
                Ok(Exit::Again)
            }
            End::Machine(why) => {
                // Updates since the last checkpoint may be wrong. A scheduler that sees status 75 can resume from that
                // checkpoint on another machine.
                self.await_save()?;
                self.reporter.say(&why);
                if has_checkpoint(&self.job.run)? {
                    self.reporter.stopped(&self.progress, &why);
                    return Ok(Exit::Again);
                }
                self.reporter.failed(&self.progress, &why, None);
                Ok(Exit::Failure)
            }
            End::Unsaved(why) => {
                self.await_save()?;
                if let Some(error) = self.writer.as_ref().and_then(RunWriter::cannot_save) {
                    self.reporter.failed(&self.progress, &error.to_string(), None);
                    return Err(error);
                }
                // The save that was in progress succeeded.
                self.reporter.stopped(&self.progress, &why);
                Ok(Exit::Again)
            }
            End::Refused(exit, why) => {
                self.await_save()?;
                self.reporter.refused(&self.progress, &why);
                Ok(exit)
            }
            End::Unverified => {
                self.await_save()?;
                let why = "stopped before all input files were verified (hashed), so no checkpoint was written; the \
                           next attempt verifies those that are left, and needs a longer time limit if one of them \
                           takes longer to hash than this attempt lasted";
                self.reporter.say(why);
                self.reporter.stopped(&self.progress, why);
                Ok(Exit::Again)
            }
            // Rank 0 reports the reason.
            End::Lost(exit, _) if self.writer.is_none() => Ok(exit),
            End::Lost(exit, why) => Err(Error::new(exit, why)),
            End::Failed(cause, why) => {
                // The current state is not saved because the last checkpoint is more trustworthy.
                self.await_save()?;
                self.reporter.blocked(&self.progress, &why, cause);
                self.reporter.say(&why);
                Ok(Exit::Failure)
            }
        }
    }

    /// Reports the end of a run whose final state was not saved; the program reports the error itself.
    fn not_saved(&mut self, error: Error) -> Error {
        if error.exit != Exit::Again {
            let why = format!("checkpoint not saved: {error}");
            self.reporter.failed(&self.progress, &why, error.cause);
        }
        error
    }

    /// Waits for the save in progress, for an end that does not depend on its result. Errors: 75 when another process
    /// holds the run.
    fn await_save(&mut self) -> Result<()> {
        match self.finish_save() {
            Err(error) if error.exit == Exit::Again => Err(error),
            Err(error) => {
                self.reporter.unsaved(&self.progress, &error);
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }
}
