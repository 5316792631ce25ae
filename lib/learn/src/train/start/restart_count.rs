//! Counts the most recent attempts of a run that made no progress, from its log.

use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use unix::Result;

/// Fields read from a log record.
#[derive(Deserialize)]
struct Record {
    attempt: u64,
    kind: String,
    update: Option<u64>,
    /// Samples skipped by rewinds so far; in start and rewind records.
    skipped_samples: Option<u64>,
    /// Whether the attempt was started with `--retry` or an accepted change; in start records.
    #[serde(default)]
    restart: bool,
}

/// Position in training: samples skipped by rewinds, then the update number. After a rewind, updates are new although
/// their numbers repeat.
pub(in crate::train) type Position = (u64, u64);

/// State of one attempt.
#[derive(Default)]
struct Attempt {
    /// Position where the attempt resumed; None if it was refused before it started.
    from: Option<Position>,
    /// Whether it was refused because of its input files, which implies nothing about the run itself.
    refused: bool,
    restart: bool,
    skipped_samples: u64,
    /// Furthest position that the attempt completed.
    furthest: Position,
}

/// Counts the attempts at the end of the log that resumed at `now`, like this attempt, and got no further than earlier
/// attempts that resumed there. Counting begins at the last restart (`--retry` or an accepted change). Attempts that
/// resumed elsewhere are not counted, because the run may have been restored from an older copy. Returns 0 without a
/// log. Errors: 66, 74.
pub(in crate::train) fn without_progress(log: &Path, now: Position) -> Result<u64> {
    if log.symlink_metadata().is_err() {
        return Ok(0);
    }
    let mut attempts = Attempts::default();
    let damaged = unix::log::each(log, |record| {
        // Records with different fields are ignored.
        if let Ok(record) = serde_json::from_value(Value::Object(record)) {
            attempts.note(&record);
        }
    })?;
    damaged.tell(log);
    Ok(attempts.without_progress(now))
}

/// Attempts by attempt number.
#[derive(Default)]
struct Attempts(BTreeMap<u64, Attempt>);

impl Attempts {
    fn note(&mut self, record: &Record) {
        let attempt = self.0.entry(record.attempt).or_default();
        attempt.refused |= record.kind == "refused";
        attempt.restart |= record.restart;
        attempt.skipped_samples = record.skipped_samples.unwrap_or(attempt.skipped_samples);
        let place = (attempt.skipped_samples, record.update.unwrap_or(0));
        attempt.furthest = attempt.furthest.max(place);
        if record.kind == "start" {
            attempt.from = Some(place);
        }
    }

    fn without_progress(&self, now: Position) -> u64 {
        let (mut place, mut furthest, mut fruitless) = (None, (0, 0), 0);
        for attempt in self.0.values() {
            let Some(from) = attempt.from.filter(|_| !attempt.refused) else { continue };
            if attempt.restart || place != Some(from) {
                (place, furthest, fruitless) = (Some(from), from, 0);
            }
            fruitless = if attempt.furthest > furthest { 0 } else { fruitless + 1 };
            furthest = furthest.max(attempt.furthest);
        }
        if place == Some(now) { fruitless } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(records: &[(u64, &str, u64)]) -> String {
        let line = |(attempt, kind, update): &(u64, &str, u64)| {
            let (kind, restart) =
                kind.strip_suffix('!').map_or((*kind, false), |kind| (kind, true));
            format!(
                "{{\"attempt\":{attempt},\"kind\":\"{kind}\",\"update\":{update},\"restart\":{restart}}}\n"
            )
        };
        records.iter().map(line).collect()
    }

    fn count(log: &str, now: Position) -> u64 {
        let mut attempts = Attempts::default();
        log.lines().for_each(|line| attempts.note(&serde_json::from_str(line).unwrap()));
        attempts.without_progress(now)
    }

    /// Returns the count before an attempt that resumes at `now`.
    fn at(now: u64, records: &[(u64, &str, u64)]) -> u64 {
        count(&log(records), (0, now))
    }

    #[test]
    fn an_attempt_that_gets_no_further_than_the_one_before_makes_no_progress() {
        assert_eq!(at(0, &[]), 0);
        assert_eq!(at(0, &[(1, "start", 0)]), 1);
        assert_eq!(at(0, &[(1, "start", 0), (1, "update", 10)]), 0);
        // The second attempt dies where the first one did; the third completes one more update.
        let two = [(1, "start", 0), (1, "update", 10), (2, "start", 0), (2, "update", 10)];
        assert_eq!(at(0, &two), 1);
        assert_eq!(at(0, &[&two[..], &[(3, "start", 0), (3, "update", 9)]].concat()), 2);
        assert_eq!(at(0, &[&two[..], &[(3, "start", 0), (3, "checkpoint", 11)]].concat()), 0);
    }

    #[test]
    fn a_start_further_on_is_progress_of_the_attempt_before() {
        let lost = [(1, "start", 0), (1, "saved", 100), (1, "update", 1000), (2, "start", 100)];
        assert_eq!(at(100, &lost), 1);
        // A checkpoint counts even if its log record was lost.
        assert_eq!(at(101, &lost), 0);
        let again =
            [&lost[..], &[(2, "update", 310), (3, "start", 100), (3, "update", 310)]].concat();
        assert_eq!((at(100, &again), at(300, &again)), (1, 0));
    }

    #[test]
    fn progress_is_counted_from_where_an_attempt_resumed() {
        // The log contains update 1000, but a copy of the run at update 100 was restored.
        let far = [(1, "start", 0), (1, "saved", 1000), (1, "update", 1000)];
        assert_eq!(at(100, &far), 0);
        let restored =
            [&far[..], &[(2, "start", 100), (2, "update", 130), (2, "saved", 130)]].concat();
        assert_eq!((at(100, &restored), at(130, &restored)), (0, 0));
        let third = [&restored[..], &[(3, "start", 130), (3, "update", 160)]].concat();
        assert_eq!((at(130, &third), at(160, &third)), (0, 0));
        // Only an attempt that repeats the same updates counts.
        assert_eq!(at(130, &[&third[..], &[(4, "start", 130), (4, "update", 160)]].concat()), 1);
    }

    #[test]
    fn told_to_try_restart_it_counts_restart() {
        let before = [(1, "start", 0), (2, "start", 0), (3, "start", 0)];
        assert_eq!(at(0, &before), 3);
        assert_eq!(at(0, &[&before[..], &[(4, "start!", 0)]].concat()), 1);
        // A refused attempt has only a stop record.
        assert_eq!(at(0, &[&before[..], &[(4, "stop", 0)]].concat()), 3);
    }

    #[test]
    fn updates_after_a_rewind_are_new() {
        let mut log = String::new();
        let mut after = |attempt: u64,
                         kind: &str,
                         update: u64,
                         skipped_samples: Option<u64>,
                         now| {
            let of = serde_json::json!({
                "attempt": attempt, "kind": kind, "update": update, "skipped_samples": skipped_samples,
            });
            log += &format!("{of}\n");
            count(&log, now)
        };
        let start = (0, 20);
        after(1, "start", 20, Some(0), start);
        after(1, "update", 30, None, start);
        after(1, "rewind", 20, Some(64), start);
        assert_eq!(after(1, "update", 22, None, start), 0);
        // The attempt reaches the spike again, rewinds, and gets no further than before; then one update further.
        after(2, "start", 20, Some(0), start);
        after(2, "update", 30, None, start);
        after(2, "rewind", 20, Some(64), start);
        assert_eq!(after(2, "update", 22, None, start), 1);
        assert_eq!(after(2, "update", 23, None, start), 0);
        // With a checkpoint at that position, the next attempt resumes at a different position.
        assert_eq!(after(3, "start", 22, Some(64), (64, 22)), 1);
        assert_eq!(after(3, "update", 23, None, (64, 22)), 0);
    }
}
