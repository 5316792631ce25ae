//! Verification of the input files by rank 0 on behalf of all ranks.
//!
//! A new run waits for the verification before its first update. A resumed run, whose files were verified before,
//! trains concurrently with it. No result that depends on the data is kept until the files are known to match their
//! manifests: validations, checkpoints and the end of a run wait for the verifier, which then compares the metadata of
//! every file once more.

use crate::train::end::{End, Halt, has_checkpoint};
use crate::train::run_writer::RunWriter;
use crate::train::session::Session;
use crate::train::sync::broadcast;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};
use unix::progress::Progress;
use unix::{Error, Exit, Result};

/// Maximum time that a run stopped by TERM, INT or HUP waits for its inputs to be verified before it exits without a
/// checkpoint: schedulers send KILL 30 s after the signal. Before a time limit, the run waits at least this long, and
/// then until the remaining time has fallen to this value or the duration of the longest save.
const WHEN_STOPPING: Duration = Duration::from_secs(10);
/// Like [`WHEN_STOPPING`], for a run that has not completed an update yet and so has no progress to lose.
const WHEN_STARTING: Duration = Duration::from_secs(2);
/// Maximum time that the other ranks wait for rank 0, which may have to read a whole data set.
const PATIENCE: Duration = Duration::from_secs(24 * 3600);

/// Interval between progress reports.
const EVERY: Duration = Duration::from_secs(60);

/// Verification result of the input files on rank 0.
#[derive(Serialize, Deserialize)]
enum Verdict {
    Verified,
    /// A file does not match its record: exit status and reason.
    Changed(u8, String),
    /// The run must stop before all files are verified.
    Unfinished,
}

impl Session<'_> {
    /// Returns the exit status and the reason if the verifier has already found a changed file. Rank 0 only.
    pub fn changed_input(&mut self) -> Option<(u8, String)> {
        let verifier = &mut self.writer.as_mut()?.verifier;
        match verifier.poll() {
            Ok(finished) => {
                if finished {
                    let summary = verifier.summary();
                    self.reporter.inputs(&self.progress, summary);
                }
                None
            }
            Err(error) => Some(self.refusal(error)),
        }
    }

    /// Waits until all inputs are verified. Halts when a file does not match, or when the run must stop first.
    /// `stopping`: the run is about to stop anyway.
    pub fn verify_inputs(&mut self, stopping: bool) -> Result<(), Halt> {
        let ranks = self.job.ranks;
        let own = {
            let _busy = ranks.busy(PATIENCE);
            self.verdict(stopping)
        };
        match broadcast(ranks, own)? {
            Verdict::Verified => Ok(()),
            Verdict::Changed(exit, why) => Err(End::Refused(Exit::of(exit), why).into()),
            Verdict::Unfinished => Err(End::Unverified.into()),
        }
    }

    /// Waits for the verifier on rank 0; other ranks always return `Verified`.
    fn verdict(&mut self, stopping: bool) -> Verdict {
        let (signals, longest) = (self.signals, self.longest_update);
        let grace = if self.progress.update == 0 { WHEN_STARTING } else { WHEN_STOPPING };
        let Some(writer) = &mut self.writer else { return Verdict::Verified };
        let RunWriter { verifier, budget, longest_save, .. } = writer;
        let reserve = WHEN_STOPPING.max(*longest_save);
        let began = Instant::now();
        let (mut shown, mut requested, mut urgent) = (None, None, None);
        let settled = verifier.wait_and_recheck(|bytes| {
            let [done, all] = bytes.map(|bytes| bytes >> 20);
            if began.elapsed() > Duration::from_secs(1) {
                let show = || {
                    unix::note!("waiting until the input files are verified ({all} MiB)");
                    Progress::with("MiB of input files", all, false, EVERY)
                };
                shown.get_or_insert_with(show).set(done);
            }
            let must_stop = stopping
                || signals.stop_requested().is_some()
                || budget.must_stop(longest, reserve);
            let since = |flag: bool, at: &mut Option<Instant>| {
                flag.then(|| at.get_or_insert_with(Instant::now).elapsed())
            };
            keeps_waiting(
                since(must_stop, &mut requested),
                since(signals.is_urgent(), &mut urgent),
                budget.left(),
                [grace, reserve],
            )
        });
        match settled {
            Ok(true) => {
                self.reporter.inputs(&self.progress, verifier.summary());
                Verdict::Verified
            }
            Ok(false) => {
                verifier.save();
                Verdict::Unfinished
            }
            Err(error) => {
                let (exit, why) = self.refusal(error);
                Verdict::Changed(exit, why)
            }
        }
    }

    /// Exit status and message for a changed input: 78 if the run has a checkpoint, which was trained on different
    /// data; otherwise the status of the error.
    fn refusal(&self, error: Error) -> (u8, String) {
        let run = &self.job.run;
        let depends = self.resumed_from.is_some() || has_checkpoint(run).unwrap_or(false);
        let error = if depends { not_of_checkpoint(run, error) } else { error };
        (error.exit as u8, error.to_string())
    }
}

/// Whether a run keeps waiting for its inputs: for `grace` after a stop request, and until `reserve` is left before its
/// limit. `requested`: time since the stop request; `urgent`: time since TERM, INT or HUP; `left`: time until the
/// limit.
fn keeps_waiting(
    requested: Option<Duration>,
    urgent: Option<Duration>,
    left: Option<Duration>,
    [grace, reserve]: [Duration; 2],
) -> bool {
    match (urgent, requested, left) {
        (Some(since), ..) | (None, Some(since), None) => since < grace,
        (None, Some(since), Some(left)) => since < grace || left > reserve,
        (None, None, _) => true,
    }
}

/// Changes status 65 to 78 if the run has a checkpoint: the data differs from the checkpoint's training data.
pub(in crate::train) fn not_of_checkpoint(run: &std::path::Path, error: Error) -> Error {
    match error.exit {
        Exit::Data => Error::config(format!(
            "{}: the input data is not what its checkpoints were trained on: {error}",
            run.display()
        )),
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_has_time_left_waits_for_its_inputs() {
        let [now, soon, long] = [0, 11, 3600].map(Duration::from_secs);
        let waits =
            |requested, urgent, left| keeps_waiting(requested, urgent, left, [WHEN_STOPPING; 2]);
        assert!(waits(None, None, None) && waits(None, None, Some(now)));
        // After USR1 or near the limit, it waits at least as long as after TERM.
        assert!(waits(Some(long), None, Some(soon)) && waits(Some(now), None, Some(now)));
        assert!(!waits(Some(soon), None, Some(now)));
        assert!(waits(Some(now), None, None) && !waits(Some(soon), None, None));
        // TERM, alone or after USR1.
        assert!(waits(Some(long), Some(now), Some(long)));
        assert!(!waits(Some(soon), Some(soon), Some(long)) && !waits(None, Some(soon), None));
    }
}
