//! `log.jsonl`: one JSON object a line, only ever appended to; the source of truth of a run.
//!
//! Every record carries `time`, `attempt` and `kind`. A kill or a full disk may leave a torn last line, which
//! is no record: the next write or start cuts it off, so that every line is JSON. After a resume, records of older attempts
//! beyond the update that was resumed from are superseded; readers drop them. So are records of the same
//! attempt behind a `rewind`.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::{Map, Value};

use crate::lease::Fence;
use crate::time::now_utc;
use crate::{Error, Result, fail, small, text};

/// Longest line that is read, in bytes; records have a few hundred.
const MAX_LINE: u64 = 1 << 20;

/// The writing end of a log. One process writes a log; see the run directory's lease.
#[derive(Debug)]
pub struct Log {
    path: PathBuf,
    file: File,
    attempt: u64,
    /// The last write failed, and may have left a part of its line.
    is_torn: bool,
    fence: Option<Fence>,
}

#[derive(Serialize)]
struct Record<'a, T> {
    time: String,
    attempt: u64,
    kind: &'a str,
    #[serde(flatten)]
    fields: &'a T,
}

impl Log {
    /// Opens a log to append to, creating it if absent, and cuts off a torn last line.
    pub fn open(path: &Path, attempt: u64) -> Result<Self> {
        let opened = OpenOptions::new().read(true).append(true).create(true).open(path);
        let mut file = opened.map_err(|cause| Error::create(path, cause))?;
        mend(&mut file).map_err(|cause| Error::io(path, cause))?;
        Ok(Self { path: path.to_path_buf(), file, attempt, is_torn: false, fence: None })
    }

    /// From now on a record is written only while the lease is ours.
    pub fn fenced(mut self, fence: Fence) -> Self {
        self.fence = Some(fence);
        self
    }

    /// Appends a record in one write. `fields` is a struct or map; a field `update` is what
    /// readers order and supersede by. Numbers that are not finite become `null`. What a failed write
    /// left of its line spoils that record alone, not the next one.
    /// Errors: 74; 75 when the lease was lost.
    pub fn write(&mut self, kind: &str, fields: &impl Serialize) -> Result<()> {
        self.fence.as_ref().map_or(Ok(()), Fence::check)?;
        let record = Record { time: now_utc(), attempt: self.attempt, kind, fields };
        let line = text::json(&record)? + "\n";
        let mended = if self.is_torn { mend(&mut self.file) } else { Ok(()) };
        let written = mended
            .and_then(|()| fail::point("log.write"))
            .and_then(|()| self.file.write_all(line.as_bytes()));
        self.is_torn = written.is_err();
        written.map_err(|cause| Error::io(&self.path, cause))
    }

    /// Makes what was written durable: before a checkpoint is published and at the end.
    pub fn sync(&self) -> Result<()> {
        self.file.sync_data().map_err(|cause| Error::io(&self.path, cause))
    }
}

/// Cuts off a torn last line, or ends it where it is whole but for that, so that the next record begins
/// on a line of its own.
fn mend(file: &mut File) -> std::io::Result<()> {
    let size = file.seek(SeekFrom::End(0))?;
    let from = file.seek(SeekFrom::Start(size.saturating_sub(MAX_LINE)))?;
    let mut tail = Vec::new();
    Read::by_ref(file).take(MAX_LINE).read_to_end(&mut tail)?;
    let line = tail.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    match &tail[line..] {
        [] => Ok(()),
        // Longer than any record of ours: not to be thrown away unseen.
        _ if line == 0 && from > 0 => file.write_all(b"\n"),
        last if serde_json::from_slice::<Map<String, Value>>(last).is_ok() => file.write_all(b"\n"),
        _ => file.set_len(from + line as u64),
    }
}

/// What a log says at present.
#[derive(Debug, Default)]
pub struct Records {
    /// The records that stand, in the order of the file.
    pub records: Vec<Map<String, Value>>,
    /// Lines that are no JSON object (torn by a kill, damaged).
    pub bad_lines: usize,
    /// Records of earlier attempts that a resume has gone back behind.
    pub superseded: usize,
}

/// Reads a log. Errors: 66 when it cannot be opened, 74; bad lines are only counted.
pub fn read(path: &Path) -> Result<Records> {
    small::require_file(path)?;
    let file = File::open(path).map_err(|cause| Error::open(path, cause))?;
    let mut found = Records::default();
    let mut reader = BufReader::new(file);
    let mut line = Vec::new();
    loop {
        line.clear();
        let io = |cause| Error::io(path, cause);
        let mut limited = Read::take(&mut reader, MAX_LINE);
        if limited.read_until(b'\n', &mut line).map_err(io)? == 0 {
            break;
        }
        if line.len() as u64 == MAX_LINE && line.last() != Some(&b'\n') {
            reader.skip_until(b'\n').map_err(io)?;
            found.bad_lines += 1;
            continue;
        }
        match serde_json::from_slice(&line) {
            Ok(Value::Object(record)) => found.records.push(record),
            _ if line.trim_ascii().is_empty() => {}
            _ => found.bad_lines += 1,
        }
    }
    drop_superseded(&mut found);
    Ok(found)
}

/// Drops records with an update that a later attempt did again, or will: a `start` record tells
/// the update resumed from, so that what comes after it is void even before it is done again. A
/// `rewind` record does the same for what the attempt itself did before it.
fn drop_superseded(found: &mut Records) {
    let number = |record: &Map<String, Value>, key: &str| record.get(key).and_then(Value::as_u64);
    // (attempt, rewinds in it so far) of each record that has an attempt.
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
            // A stop or a checkpoint right after the start tells of an update that an earlier attempt did.
            let first = first_of.entry(part).or_insert(u64::MAX);
            match record.get("kind").and_then(Value::as_str) {
                Some("start" | "rewind") => *first = (*first).min(update.saturating_add(1)),
                Some("update") => *first = (*first).min(update),
                _ => {}
            }
        }
    }
    // In place of each part's own first update, the smallest of all later parts.
    let mut void_from = u64::MAX;
    for first in first_of.values_mut().rev() {
        let own = std::mem::replace(first, void_from);
        void_from = void_from.min(own);
    }
    let before = found.records.len();
    let mut parts = parts.into_iter();
    found.records.retain(|record| {
        let limit = parts.next().flatten().and_then(|part| first_of.get(&part));
        // Without a limit it tells of no update.
        let limit = limit.copied().unwrap_or(u64::MAX);
        number(record, "update").is_none_or(|update| update < limit)
    });
    found.superseded = before - found.records.len();
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn updates(found: &Records) -> Vec<(u64, u64)> {
        let number = |r: &Map<String, Value>, key: &str| r[key].as_u64().unwrap();
        let updates = found.records.iter().filter(|record| record["kind"] == "update");
        updates.map(|r| (number(r, "attempt"), number(r, "update"))).collect()
    }

    #[test]
    fn a_torn_tail_costs_one_record() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log.jsonl");
        Log::open(&path, 1).unwrap().write("update", &json!({"update": 1, "loss": 2.5})).unwrap();
        let whole = std::fs::read(&path).unwrap();
        for cut in 1..whole.len() {
            std::fs::write(&path, [&whole[..], &whole[..cut]].concat()).unwrap();
            let mut log = Log::open(&path, 2).unwrap();
            log.write("start", &json!({"update": 1})).unwrap();
            log.write("update", &json!({"update": 2})).unwrap();
            log.sync().unwrap();
            let found = read(&path).unwrap();
            assert_eq!(found.bad_lines, 0, "cut at {cut}");
            // Cut just before the newline, the record is whole, and there twice.
            let kept = 2 + usize::from(cut == whole.len() - 1);
            assert_eq!(updates(&found).len(), kept, "cut at {cut}");
            assert_eq!(*updates(&found).last().unwrap(), (2, 2));
        }
    }

    #[test]
    fn a_write_that_failed_half_way_leaves_no_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log.jsonl");
        let mut log = Log::open(&path, 1).unwrap();
        log.write("update", &json!({"update": 1})).unwrap();
        // As the kernel leaves it when the disk is full after some bytes.
        log.file.write_all(b"{\"time\":\"2026-01-01T00:00:00Z\",\"waited\":0.").unwrap();
        log.is_torn = true;
        log.write("update", &json!({"update": 2})).unwrap();
        log.write("update", &json!({"update": 3})).unwrap();
        let found = read(&path).unwrap();
        assert_eq!((found.bad_lines, updates(&found)), (0, vec![(1, 1), (1, 2), (1, 3)]));
    }

    #[test]
    fn a_line_without_an_end_is_not_thrown_away() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log.jsonl");
        std::fs::write(&path, vec![b'x'; MAX_LINE as usize + 5]).unwrap();
        Log::open(&path, 1).unwrap().write("update", &json!({"update": 1})).unwrap();
        assert!(std::fs::metadata(&path).unwrap().len() > MAX_LINE + 5);
        assert_eq!(updates(&read(&path).unwrap()), [(1, 1)]);
    }

    #[test]
    fn an_attempt_that_stops_before_its_first_update_supersedes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log.jsonl");
        let mut log = Log::open(&path, 1).unwrap();
        for update in 1..=3 {
            log.write("update", &json!({"update": update})).unwrap();
        }
        let mut log = Log::open(&path, 2).unwrap();
        for kind in ["start", "checkpoint", "stop"] {
            log.write(kind, &json!({"update": 3})).unwrap();
        }
        assert_eq!(updates(&read(&path).unwrap()), [(1, 1), (1, 2), (1, 3)]);
    }

    #[test]
    fn records_behind_a_resume_are_superseded() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log.jsonl");
        // attempt 1 does 1..=5, 2 resumes at 3 and does 4, 5, 6; 3 resumes at 5 and dies at once.
        for (attempt, resumed, last) in [(1, 0, 5), (2, 3, 6), (3, 5, 5)] {
            let mut log = Log::open(&path, attempt).unwrap();
            log.write("start", &json!({"update": resumed})).unwrap();
            for update in resumed + 1..=last {
                log.write("update", &json!({"update": update})).unwrap();
            }
            log.write("stop", &json!({"reason": "test"})).unwrap();
        }
        let found = read(&path).unwrap();
        assert_eq!(updates(&found), [(1, 1), (1, 2), (1, 3), (2, 4), (2, 5)]);
        assert_eq!(found.superseded, 3);
        let kept = |kind: &str| found.records.iter().filter(|r| r["kind"] == kind).count();
        assert_eq!((kept("start"), kept("stop")), (3, 3));
    }

    #[test]
    fn records_behind_a_rewind_are_superseded() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log.jsonl");
        let mut log = Log::open(&path, 1).unwrap();
        let steps = |log: &mut Log, updates: std::ops::RangeInclusive<u64>| {
            updates.for_each(|update| log.write("update", &json!({"update": update})).unwrap());
        };
        log.write("start", &json!({"update": 0})).unwrap();
        steps(&mut log, 1..=6);
        log.write("rewind", &json!({"update": 3})).unwrap();
        steps(&mut log, 4..=5);
        log.write("rewind", &json!({"update": 1})).unwrap();
        assert_eq!(updates(&read(&path).unwrap()), [(1, 1)]);
        steps(&mut log, 2..=4);
        let found = read(&path).unwrap();
        assert_eq!(updates(&found), [(1, 1), (1, 2), (1, 3), (1, 4)]);
        let mut log = Log::open(&path, 2).unwrap();
        log.write("start", &json!({"update": 2})).unwrap();
        steps(&mut log, 3..=3);
        assert_eq!(updates(&read(&path).unwrap()), [(1, 1), (1, 2), (2, 3)]);
    }

    #[test]
    fn records_carry_attempt_and_time_first() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log.jsonl");
        Log::open(&path, 7).unwrap().write("validation", &json!({"update": 3})).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.starts_with("{\"time\":\"2"), "{text}");
        assert!(text.ends_with("\"attempt\":7,\"kind\":\"validation\",\"update\":3}\n"), "{text}");
    }

    #[test]
    fn garbage_is_counted_not_fatal() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log.jsonl");
        let bytes = b"\n\xff\xfe\n[1]\n{\"update\":-1,\"attempt\":\"x\"}\n{\"a\":\n\0\0\0";
        std::fs::write(&path, bytes).unwrap();
        let found = read(&path).unwrap();
        assert_eq!((found.records.len(), found.bad_lines), (1, 4));
    }
}
