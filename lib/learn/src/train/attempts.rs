//! How many of the last attempts of a run were in vain, as its log tells.

use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind};
use std::path::Path;
use unix::{Error, Result};

/// What counts of a record.
#[derive(Deserialize)]
struct Record {
    attempt: u64,
    kind: String,
    update: Option<u64>,
    /// Of a start or a rewind: samples passed over by rewinds so far.
    passed_over: Option<u64>,
    /// Of a start: it was told to try anew, or given another configuration.
    #[serde(default)]
    anew: bool,
}

/// What an attempt did.
#[derive(Default)]
struct Attempt {
    started: bool,
    /// Its input files were not what was recorded, which says nothing about the run.
    refused: bool,
    anew: bool,
    passed_over: u64,
    /// Samples passed over, and the last update: after a rewind updates are new that have old numbers.
    furthest: (u64, u64),
    /// The same of its last checkpoint that was on the disk.
    saved: (u64, u64),
}

/// Attempts at the end of the log that made no update, and stored no checkpoint, which no attempt before
/// had made or stored; counted from the last start that was to try anew. 0 without a log. Errors: 66, 74.
pub(super) fn without_progress(log: &Path) -> Result<u64> {
    let file = match File::open(log) {
        Ok(file) => file,
        Err(cause) if cause.kind() == ErrorKind::NotFound => return Ok(0),
        Err(cause) => return Err(Error::open(log, cause)),
    };
    count(BufReader::new(file)).map_err(|cause| Error::io(log, cause))
}

fn count(mut log: impl BufRead) -> std::io::Result<u64> {
    let mut attempts: BTreeMap<u64, Attempt> = BTreeMap::new();
    let mut line = Vec::new();
    while log.read_until(b'\n', &mut line)? > 0 {
        // A torn line costs a record.
        if let Ok(record) = serde_json::from_slice::<Record>(&line) {
            let attempt = attempts.entry(record.attempt).or_default();
            attempt.started |= record.kind == "start";
            attempt.refused |= record.kind == "refused";
            attempt.anew |= record.anew;
            attempt.passed_over = record.passed_over.unwrap_or(attempt.passed_over);
            let place = (attempt.passed_over, record.update.unwrap_or(0));
            attempt.furthest = attempt.furthest.max(place);
            if record.kind == "saved" {
                attempt.saved = attempt.saved.max(place);
            }
        }
        line.clear();
    }
    let (mut furthest, mut saved, mut in_vain) = ((0, 0), (0, 0), 0);
    for attempt in attempts.values().filter(|attempt| attempt.started && !attempt.refused) {
        if attempt.anew {
            in_vain = 0;
        }
        let further = attempt.furthest > furthest || attempt.saved > saved;
        in_vain = if further { 0 } else { in_vain + 1 };
        furthest = furthest.max(attempt.furthest);
        saved = saved.max(attempt.saved);
    }
    Ok(in_vain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(records: &[(u64, &str, u64)]) -> u64 {
        let line = |(attempt, kind, update): &(u64, &str, u64)| {
            let (kind, anew) = kind.strip_suffix('!').map_or((*kind, false), |kind| (kind, true));
            format!(
                "{{\"attempt\":{attempt},\"kind\":\"{kind}\",\"update\":{update},\"anew\":{anew}}}\n"
            )
        };
        count(records.iter().map(line).collect::<String>().as_bytes()).unwrap()
    }

    #[test]
    fn an_attempt_that_goes_no_further_is_in_vain() {
        assert_eq!(of(&[]), 0);
        assert_eq!(of(&[(1, "start", 0)]), 1);
        assert_eq!(of(&[(1, "start", 0), (1, "update", 10)]), 0);
        // The second dies where the first did; the third goes one update further.
        let two = [(1, "start", 0), (1, "update", 10), (2, "start", 0), (2, "update", 10)];
        assert_eq!(of(&two), 1);
        assert_eq!(of(&[&two[..], &[(3, "start", 0), (3, "update", 9)]].concat()), 2);
        assert_eq!(of(&[&two[..], &[(3, "start", 0), (3, "checkpoint", 11)]].concat()), 0);
    }

    #[test]
    fn a_checkpoint_further_on_is_progress_where_updates_are_not_new() {
        let lost = [(1, "start", 0), (1, "saved", 100), (1, "update", 1000), (2, "start", 100)];
        assert_eq!(of(&lost), 1);
        assert_eq!(of(&[&lost[..], &[(2, "saved", 300), (2, "update", 310)]].concat()), 0);
    }

    #[test]
    fn told_to_try_anew_it_counts_anew() {
        let before = [(1, "start", 0), (2, "start", 0), (3, "start", 0)];
        assert_eq!(of(&before), 3);
        assert_eq!(of(&[&before[..], &[(4, "start!", 0)]].concat()), 1);
        // A start that was refused has only a stop.
        assert_eq!(of(&[&before[..], &[(4, "stop", 0)]].concat()), 3);
    }

    #[test]
    fn updates_after_a_rewind_are_new() {
        let mut log = String::new();
        let mut after = |attempt: u64, kind: &str, update: u64, passed_over: Option<u64>| {
            let of = serde_json::json!({
                "attempt": attempt, "kind": kind, "update": update, "passed_over": passed_over,
            });
            log += &format!("{of}\n");
            count(log.as_bytes()).unwrap()
        };
        after(1, "start", 0, Some(0));
        after(1, "update", 30, None);
        after(1, "rewind", 20, Some(64));
        assert_eq!(after(1, "update", 22, None), 0);
        // Again to the spike, back, and no further than before; then one further.
        after(2, "start", 20, Some(0));
        after(2, "update", 30, None);
        after(2, "rewind", 20, Some(64));
        assert_eq!(after(2, "update", 22, None), 1);
        assert_eq!(after(3, "start", 22, Some(64)), 2);
        assert_eq!(after(3, "update", 23, None), 0);
    }

    #[test]
    fn lines_that_are_no_records_are_passed_over() {
        let text = b"{\"attempt\":1,\"kind\":\"start\",\"update\":0}\n{\"att\n\xff\n[]\n";
        assert_eq!(count(&text[..]).unwrap(), 1);
    }
}
