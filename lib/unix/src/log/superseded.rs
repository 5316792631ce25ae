//! Determines which records of a log are superseded.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// The part of a log that a record belongs to: the attempt, and the number of rewinds so far in that attempt.
pub(super) type LogPart = (u64, u64);

/// The parts of a log. A `start` record contains the update resumed from, so every record of an earlier attempt beyond
/// that update is superseded even before the update is repeated. A `rewind` record has the same effect on the records
/// of its own attempt.
#[derive(Debug, Default)]
pub(super) struct Parts {
    rewinds: BTreeMap<u64, u64>,
    /// The first update of each part.
    first: BTreeMap<LogPart, u64>,
}

/// Returns the update of a record.
pub(super) fn update_of(record: &Map<String, Value>) -> Option<u64> {
    record.get("update")?.as_u64()
}

impl Parts {
    /// Adds the next record in file order and returns its part; `None` for a record without an attempt.
    pub fn add(&mut self, record: &Map<String, Value>) -> Option<LogPart> {
        let attempt = record.get("attempt")?.as_u64()?;
        let kind = record.get("kind").and_then(Value::as_str);
        let count = self.rewinds.entry(attempt).or_insert(0);
        *count += u64::from(kind == Some("rewind"));
        let part = (attempt, *count);
        if let Some(update) = update_of(record) {
            // A stop or checkpoint record right after the start refers to an update of an earlier attempt.
            let first = self.first.entry(part).or_insert(u64::MAX);
            match kind {
                Some("start" | "rewind") => *first = (*first).min(update.saturating_add(1)),
                Some("update") => *first = (*first).min(update),
                _ => {}
            }
        }
        Some(part)
    }

    /// Returns, for each part, the first update that a later part repeats. Further records can only lower it, so a
    /// superseded record stays superseded.
    pub fn limits(&self) -> BTreeMap<LogPart, u64> {
        let mut limits = BTreeMap::new();
        let mut void_from = u64::MAX;
        for (part, first) in self.first.iter().rev() {
            limits.insert(*part, void_from);
            void_from = void_from.min(*first);
        }
        limits
    }
}
