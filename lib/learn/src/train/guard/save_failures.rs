//! Ends a run whose saves keep failing: training must not continue when a disk has failed permanently.

use std::path::Path;
use std::time::{Duration, Instant};
use unix::space::is_read_only;
use unix::{Error, Exit};

/// Maximum age of the last good checkpoint for the run to survive a failed save.
const MAX_AGE: Duration = Duration::from_secs(3600);

/// Counts consecutive failed saves of this process.
#[derive(Debug)]
pub(in crate::train) struct SaveFailures {
    /// Maximum number of consecutive failures, `checkpoint.failed_saves`.
    limit: u64,
    in_a_row: u64,
    /// Time of the last good checkpoint, or of the start of this attempt.
    good: Instant,
    /// Reason to stop the run.
    verdict: Option<String>,
}

impl SaveFailures {
    pub fn new(limit: u64, now: Instant) -> Self {
        Self { limit, in_a_row: 0, good: now, verdict: None }
    }

    /// Records a successful save.
    pub fn saved(&mut self, now: Instant) {
        *self = Self::new(self.limit, now);
    }

    /// Records a failed save. A lost lease is ignored because it ends the run elsewhere.
    pub fn failed(&mut self, error: &Error, now: Instant) {
        if error.exit == Exit::Again {
            return;
        }
        self.in_a_row += 1;
        let (count, age) = (self.in_a_row, now.duration_since(self.good));
        let what = if count >= self.limit {
            format!("the last {count} saves failed (checkpoint.failed_saves)")
        } else if age > MAX_AGE {
            let age = unix::time::format_duration(age);
            format!("the last save failed, and none has succeeded for {age}")
        } else {
            return;
        };
        self.verdict = Some(format!("{what}: {error}"));
    }

    /// Returns the error that ends the run, if it must end now: 73 if the checkpoint directory `folder` is read-only,
    /// otherwise 74.
    pub fn error(&self, folder: &Path) -> Option<Error> {
        let why = self.verdict.as_ref()?;
        let exit = if is_read_only(folder) { Exit::CannotCreate } else { Exit::Io };
        let advice = "repair the disk or free space, then run the same command again";
        Some(Error::new(exit, format!("{why}; {advice}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk() -> Error {
        Error::io(Path::new("ckpt"), "No space left on device")
    }

    #[test]
    fn only_failures_in_a_row_count() {
        let now = Instant::now();
        let mut failures = SaveFailures::new(3, now);
        for _ in 0..3 {
            failures.failed(&disk(), now);
            failures.failed(&disk(), now);
            assert_eq!(failures.verdict, None);
            failures.saved(now);
        }
        for count in 1..=3 {
            failures.failed(&Error::new(Exit::Again, "lease lost"), now);
            failures.failed(&disk(), now);
            assert_eq!(failures.verdict.is_some(), count == 3);
        }
        let error = failures.error(Path::new("/no/such/folder")).unwrap();
        assert_eq!(error.exit, Exit::Io);
        for part in ["last 3 saves", "checkpoint.failed_saves", "No space left"] {
            assert!(error.to_string().contains(part), "{error}");
        }
    }

    #[test]
    fn an_hour_without_a_good_checkpoint_is_too_long_for_any_failure() {
        let now = Instant::now();
        let mut failures = SaveFailures::new(3, now);
        failures.failed(&disk(), now + MAX_AGE);
        assert_eq!(failures.verdict, None);
        failures.saved(now + MAX_AGE);
        failures.failed(&disk(), now + 2 * MAX_AGE);
        assert_eq!(failures.verdict, None);
        failures.failed(&disk(), now + 2 * MAX_AGE + Duration::from_secs(60));
        assert!(failures.verdict.unwrap().contains("none has succeeded for 01:01:00"));
    }
}
