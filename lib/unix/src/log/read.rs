//! The reader of a log: finds its valid records and drops the superseded ones.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use serde_json::{Map, Value};

use super::{MAX_LINE, line};
use crate::{Error, Result, small, warn};

/// The current content of a log.
#[derive(Debug, Default)]
pub struct Records {
    /// The records that are not superseded, in file order.
    pub records: Vec<Map<String, Value>>,
    /// Number of damaged lines.
    pub bad_lines: usize,
    /// Number of superseded records: undone by a later resume or rewind.
    pub superseded: usize,
}

/// Lines of a log that were skipped: damaged, or not written by longhaul.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Damaged {
    /// How many.
    pub count: usize,
    /// Line numbers of the first few, from 1.
    pub first: Vec<u64>,
}

impl Damaged {
    fn add(&mut self, number: u64) {
        self.count += 1;
        if self.first.len() < 5 {
            self.first.push(number);
        }
    }

    /// Prints a warning about them, if there are any.
    pub fn tell(&self, path: &Path) {
        if self.count > 0 {
            let first: Vec<String> = self.first.iter().map(u64::to_string).collect();
            let more = if self.count > first.len() { ", ..." } else { "" };
            let (path, first) = (path.display(), first.join(", "));
            warn!("{path}: skipped {} damaged lines: {first}{more}", self.count);
        }
    }
}

/// Reads a log. Errors: 66 when it cannot be opened or is not a regular file, 74; damaged lines are only counted.
pub fn read(path: &Path) -> Result<Records> {
    let mut found = Records::default();
    found.bad_lines = each(path, |record| found.records.push(record))?.count;
    drop_superseded(&mut found);
    Ok(found)
}

/// Calls `what` with every record of a log in file order, superseded ones included. An incomplete last line, which may
/// still be being written, is neither a record nor damaged. Errors: those of [`read`].
pub fn each(path: &Path, mut what: impl FnMut(Map<String, Value>)) -> Result<Damaged> {
    let mut reader = BufReader::new(small::open(path)?);
    let (mut damaged, mut line) = (Damaged::default(), Vec::new());
    for number in 1.. {
        line.clear();
        let io = |cause| Error::io(path, cause);
        let mut limited = Read::take(&mut reader, MAX_LINE);
        if limited.read_until(b'\n', &mut line).map_err(io)? == 0 {
            break;
        }
        let is_whole = line.last() == Some(&b'\n');
        if line.len() as u64 == MAX_LINE && !is_whole {
            reader.skip_until(b'\n').map_err(io)?;
            damaged.add(number);
            continue;
        }
        match line::open(&line) {
            Some(record) => what(record),
            None if is_whole && !line.trim_ascii().is_empty() => damaged.add(number),
            None => {}
        }
    }
    Ok(damaged)
}

/// Drops records of updates that a later attempt repeated, or will repeat: a `start` record contains the update resumed
/// from, so every earlier record beyond it is superseded even before it is repeated. A `rewind` record does the same to
/// the records of its own attempt.
fn drop_superseded(found: &mut Records) {
    let number = |record: &Map<String, Value>, key: &str| record.get(key).and_then(Value::as_u64);
    // (attempt, number of rewinds so far) of each record that has an attempt.
    let mut rewinds: BTreeMap<u64, u64> = BTreeMap::new();
    let parts: Vec<Option<(u64, u64)>> = found
        .records
        .iter()
        .map(|record| {
            let attempt = number(record, "attempt")?;
            let count = rewinds.entry(attempt).or_insert(0);
            *count += u64::from(record.get("kind").is_some_and(|kind| kind == "rewind"));
            Some((attempt, *count))
        })
        .collect();
    let mut first_of: BTreeMap<(u64, u64), u64> = BTreeMap::new(); // part -> first update it does
    for (record, part) in found.records.iter().zip(&parts) {
        if let (Some(part), Some(update)) = (*part, number(record, "update")) {
            // A stop or checkpoint right after the start refers to an update of an earlier attempt.
            let first = first_of.entry(part).or_insert(u64::MAX);
            match record.get("kind").and_then(Value::as_str) {
                Some("start" | "rewind") => *first = (*first).min(update.saturating_add(1)),
                Some("update") => *first = (*first).min(update),
                _ => {}
            }
        }
    }
    // Replace each part's own first update with the smallest of all later parts.
    let mut void_from = u64::MAX;
    for first in first_of.values_mut().rev() {
        let own = std::mem::replace(first, void_from);
        void_from = void_from.min(own);
    }
    let before = found.records.len();
    let mut parts = parts.into_iter();
    found.records.retain(|record| {
        let limit = parts.next().flatten().and_then(|part| first_of.get(&part));
        // Parts without a limit are not superseded.
        let limit = limit.copied().unwrap_or(u64::MAX);
        number(record, "update").is_none_or(|update| update < limit)
    });
    found.superseded = before - found.records.len();
}
