//! The time budget of a job: the earliest of the configured limit, the end of the SLURM job and the end time passed on
//! by `timekeep run`; and the decision whether training must stop because of it.
//!
//! Construct it once, on rank 0, and broadcast the decisions: construction may call `squeue` or `scontrol`.

use std::fmt;
use std::time::{Duration, Instant};

use crate::slurm::{QUESTION_TIMEOUT, Slurm};
use crate::time::{format_duration, process_start, unix_seconds};

/// Environment variable in which `timekeep run` passes the end of its time limit to the command, in seconds since 1970.
pub const END_TIME_VARIABLE: &str = "LONGHAUL_END_TIME";

/// Default of [`Budget::margin`]: SLURM checks time limits only twice a minute, so its signals may arrive up to this
/// early.
pub const DEFAULT_MARGIN: Duration = Duration::from_secs(60);

/// The end of the time budget, and the limit that sets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// Name of the limit: `time_limit`, `SLURM_JOB_END_TIME`, `squeue`, `scontrol` or `LONGHAUL_END_TIME`.
    pub source: &'static str,
    /// A point on the monotonic clock, so that corrections of the wall clock have no effect.
    pub at: Instant,
}

/// All known time limits of a job.
#[derive(Clone, Debug)]
pub struct Budget {
    ends: Vec<End>,
    /// Whether this is a SLURM job whose end could not be determined.
    pub is_unknown: bool,
    /// Messages to the user about limits that could not be determined.
    pub notes: Vec<String>,
    /// Time reserved in addition to the longest update and checkpoint.
    pub margin: Duration,
}

impl Budget {
    /// Creates a budget without any limit.
    pub fn unlimited() -> Self {
        Self { ends: Vec::new(), is_unknown: false, notes: Vec::new(), margin: DEFAULT_MARGIN }
    }

    /// Combines the configured limit (counted from the start of the process) with the environment. In a SLURM job with
    /// neither variable set, asks `squeue` once, then `scontrol` if that fails.
    pub fn from_environment(time_limit: Option<Duration>) -> Self {
        let slurm = Slurm::from_environment();
        Self::from_facts(time_limit, std::env::var(END_TIME_VARIABLE).ok(), slurm.as_ref())
    }

    fn from_facts(limit: Option<Duration>, word: Option<String>, slurm: Option<&Slurm>) -> Self {
        let mut budget = Self::unlimited();
        if let Some(limit) = limit {
            budget.add("time_limit", process_start().checked_add(limit));
        }
        let from_timekeep = word.as_deref().map(|word| word.trim().parse::<u64>());
        match (&from_timekeep, &word) {
            (Some(Ok(end)), _) => budget.add_unix(END_TIME_VARIABLE, *end),
            (Some(Err(_)), Some(word)) => {
                budget.notes.push(format!("{END_TIME_VARIABLE}={word:?} is not a number; ignored"));
            }
            _ => {}
        }
        let Some(slurm) = slurm else { return budget };
        budget.notes.extend(slurm.notes.iter().cloned());
        if let Some(end) = slurm.end_time {
            budget.add_unix("SLURM_JOB_END_TIME", end);
        } else if !matches!(from_timekeep, Some(Ok(_))) {
            // timekeep has already asked SLURM, and squeue may be missing inside a container
            match slurm.ask_time_left(QUESTION_TIMEOUT) {
                Ok((Some(left), source)) => budget.add(source, Instant::now().checked_add(left)),
                Ok((None, _)) => {}
                Err(note) => {
                    budget.is_unknown = true;
                    budget.notes.push(format!("end of the job unknown: {note}"));
                }
            }
        }
        budget
    }

    /// Adds an end. `None`, or a time beyond the range of the clock, adds no limit.
    pub fn add(&mut self, source: &'static str, at: Option<Instant>) {
        self.ends.extend(at.map(|at| End { source, at }));
    }

    /// Adds an end in seconds since 1970. An end in the past leaves no time.
    pub fn add_unix(&mut self, source: &'static str, end: u64) {
        let left = Duration::from_secs(end.saturating_sub(unix_seconds()));
        self.add(source, Instant::now().checked_add(left));
    }

    /// Asks SLURM again if its limit is the earliest, because an administrator may have changed it. If SLURM does not
    /// answer, the old limit is kept. Two answers may differ by a second.
    pub fn ask_again(&mut self) {
        const SLURMS: [&str; 3] = ["SLURM_JOB_END_TIME", "squeue", "scontrol"];
        let counts = self.end().is_some_and(|end| SLURMS.contains(&end.source));
        let Some(slurm) = Slurm::from_environment().filter(|_| counts) else { return };
        if let Ok((left, source)) = slurm.ask_time_left(QUESTION_TIMEOUT) {
            self.ends.retain(|end| !SLURMS.contains(&end.source));
            self.add(source, left.and_then(|left| Instant::now().checked_add(left)));
        }
    }

    /// Returns the earliest end; `None` without a limit.
    pub fn end(&self) -> Option<End> {
        self.ends.iter().copied().min_by_key(|end| end.at)
    }

    /// Returns the time until the earliest end, 0 if it has passed; `None` without a limit.
    pub fn left(&self) -> Option<Duration> {
        self.end().map(|end| end.at.saturating_duration_since(Instant::now()))
    }

    /// Whether the next update might not leave time for a checkpoint: left < longest update + longest checkpoint +
    /// margin.
    pub fn must_stop(&self, longest_update: Duration, longest_checkpoint: Duration) -> bool {
        let needed = longest_update.saturating_add(longest_checkpoint).saturating_add(self.margin);
        self.left().is_some_and(|left| left < needed)
    }
}

/// Rounds to the nearest second, so that a limit of one hour is shown as one hour.
pub(crate) fn round(duration: Duration) -> Duration {
    Duration::from_secs(duration.saturating_add(Duration::from_millis(500)).as_secs())
}

/// Formats the budget as `23:59:59 left by time_limit (SLURM_JOB_END_TIME: 1-00:00:00)`, `unlimited`, or `unknown`.
impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(first) = self.end() else {
            return f.write_str(if self.is_unknown { "unknown" } else { "unlimited" });
        };
        let now = Instant::now();
        let left = |end: &End| format_duration(round(end.at.saturating_duration_since(now)));
        write!(f, "{} left by {}", left(&first), first.source)?;
        let others: Vec<String> = (self.ends.iter())
            .filter(|end| **end != first)
            .map(|end| format!("{}: {}", end.source, left(end)))
            .collect();
        if others.is_empty() { Ok(()) } else { write!(f, " ({})", others.join(", ")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn job(end: Option<u64>) -> Slurm {
        Slurm { job_id: "no-id".into(), end_time: end, ..Slurm::default() }
    }

    #[test]
    fn the_smallest_limit_wins_and_says_its_name() {
        let now = unix_seconds();
        let slurm = job(Some(now + 1800));
        let budget = Budget::from_facts(Some(HOUR), Some((now + 7200).to_string()), Some(&slurm));
        assert_eq!(budget.end().unwrap().source, "SLURM_JOB_END_TIME");
        let left = budget.left().unwrap().as_secs();
        assert!((1500..=1800).contains(&left), "{left}");
        let text = budget.to_string();
        assert!(text.contains("left by SLURM_JOB_END_TIME (time_limit: "), "{text}");
        assert!(text.contains("LONGHAUL_END_TIME: 0"), "{text}");
    }

    #[test]
    fn no_limit_never_stops() {
        let budget = Budget::from_facts(None, None, None);
        assert_eq!((budget.left(), budget.to_string().as_str()), (None, "unlimited"));
        assert!(!budget.must_stop(Duration::MAX, Duration::MAX));
    }

    #[test]
    fn an_end_in_the_past_leaves_nothing() {
        let budget = Budget::from_facts(None, Some("1".into()), None);
        assert_eq!(budget.left(), Some(Duration::ZERO));
        assert!(budget.must_stop(Duration::ZERO, Duration::ZERO));
    }

    #[test]
    fn stops_in_time_for_update_checkpoint_and_margin() {
        let mut budget = Budget::unlimited();
        budget.add("time_limit", Instant::now().checked_add(Duration::from_secs(100)));
        let seconds = Duration::from_secs;
        assert!(!budget.must_stop(seconds(10), seconds(20)));
        assert!(budget.must_stop(seconds(20), seconds(21)));
        budget.margin = Duration::ZERO;
        assert!(!budget.must_stop(seconds(20), seconds(21)));
    }

    #[test]
    fn what_cannot_be_known_is_told() {
        let budget = Budget::from_facts(None, Some("noon".into()), Some(&job(None)));
        assert_eq!((budget.left(), budget.to_string().as_str()), (None, "unknown"));
        assert_eq!(budget.notes.len(), 2, "{:?}", budget.notes);
        assert!(budget.notes[0].contains("noon") && budget.notes[1].contains("no-id"));
    }

    #[test]
    fn far_ends_do_not_overflow() {
        let budget = Budget::from_facts(Some(Duration::MAX), Some(u64::MAX.to_string()), None);
        assert!(budget.left().is_none_or(|left| left > HOUR));
    }
}
