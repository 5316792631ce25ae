//! `log.jsonl`: one JSON object per line, append-only; the authoritative record of a run.
//!
//! Every record carries `time`, `attempt`, `kind` and a checksum; readers skip damaged lines. A kill or a full disk may
//! leave an incomplete last line, which is not a record: the next write or attempt truncates it. A resume supersedes
//! the records of older attempts beyond the update resumed from, and a `rewind` those of its own attempt beyond its
//! target; readers drop superseded records.

mod follow;
mod line;
mod read;
mod shared;
mod superseded;

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::disk::is_still_at;
use crate::lease::Fence;
use crate::time::now_utc;
use crate::{Error, Result, fail, text, warn};
pub use follow::Follow;
pub use read::{Damaged, Records, each, read};
pub use shared::append_once;

/// Maximum length of a line in bytes; typical records have a few hundred.
const MAX_LINE: u64 = 1 << 20;

/// The writer of a log. Only one process at a time writes a log, which the lease of the run directory ensures.
#[derive(Debug)]
pub struct Log {
    path: PathBuf,
    file: File,
    attempt: u64,
    /// Whether the last write failed and may have left an incomplete line.
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
    /// Opens a log for appending, creating it if absent, and truncates an incomplete last line. Errors: 73, including
    /// for a pipe or a device; 74.
    pub fn open(path: &Path, attempt: u64) -> Result<Self> {
        let file = append_to(path)?;
        Ok(Self { path: path.to_path_buf(), file, attempt, is_torn: false, fence: None })
    }

    /// Makes every write first check that this process still holds the lease.
    pub fn fenced(mut self, fence: Fence) -> Self {
        self.fence = Some(fence);
        self
    }

    /// Appends a record in a single write. `fields` is a struct or map; readers order and supersede records by the
    /// field `update`. Non-finite numbers become `null`. A failed write damages only its own record, not the next one.
    /// Errors: 73, 74; 75 when the lease was lost.
    pub fn write(&mut self, kind: &str, fields: &impl Serialize) -> Result<()> {
        if !is_still_at(&self.file, &self.path) {
            self.reopen()?;
        }
        self.append(kind, fields)
    }

    /// Continues at the same path after the log was moved, removed or replaced.
    fn reopen(&mut self) -> Result<()> {
        // If the whole run directory was replaced, the path refers to another run's file.
        self.fence.as_ref().map_or(Ok(()), Fence::check_now)?;
        self.file = append_to(&self.path)?;
        self.is_torn = false;
        let text = "the log was moved, removed or replaced; earlier records are in the old file";
        warn!("{}: {text}", self.path.display());
        self.append("warning", &serde_json::json!({ "text": text }))
    }

    fn append(&mut self, kind: &str, fields: &impl Serialize) -> Result<()> {
        let record = Record { time: now_utc(), attempt: self.attempt, kind, fields };
        let line = line::seal(text::json(&record)?.into_bytes());
        // As late as possible: a process that is suspended after the check writes this record after it has lost the
        // lease. Readers place or drop such a record by its attempt and update.
        self.fence.as_ref().map_or(Ok(()), Fence::check)?;
        let mended = if self.is_torn { mend(&mut self.file) } else { Ok(()) };
        let written = mended
            .and_then(|()| fail::point("log.write"))
            .and_then(|()| self.file.write_all(&line));
        self.is_torn = written.is_err();
        written.map_err(|cause| Error::io(&self.path, cause))
    }

    /// Makes the records durable; called before a checkpoint is published and at the end of an attempt.
    pub fn sync(&self) -> Result<()> {
        self.file.sync_data().map_err(|cause| Error::io(&self.path, cause))
    }
}

/// Opens a log for its writer and repairs an incomplete last line.
fn append_to(path: &Path) -> Result<File> {
    let mut file = open_to_append(path)?;
    mend(&mut file).map_err(|cause| Error::io(path, cause))?;
    Ok(file)
}

/// Opens a regular file for appending. Rejects a pipe, which would block, and a link, which may refer to any file.
fn open_to_append(path: &Path) -> Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).append(true).create(true).custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW);
    let file = options.open(path).map_err(|cause| match cause.raw_os_error() {
        Some(libc::ELOOP) => Error::create(path, "it is a link; move it away"),
        _ => Error::create(path, cause),
    })?;
    let found = file.metadata().map_err(|cause| Error::io(path, cause))?;
    if !found.is_file() {
        return Err(Error::create(path, "it is not a regular file; move it away"));
    }
    Ok(file)
}

/// Truncates an incomplete last line, or adds the newline if only that is missing, so that the next record starts on
/// its own line.
fn mend(file: &mut File) -> std::io::Result<()> {
    let size = file.seek(SeekFrom::End(0))?;
    let from = file.seek(SeekFrom::Start(size.saturating_sub(MAX_LINE)))?;
    let mut tail = Vec::new();
    Read::by_ref(file).take(MAX_LINE).read_to_end(&mut tail)?;
    let line = tail.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    match &tail[line..] {
        [] => Ok(()),
        // This is longer than any record: do not discard it silently.
        _ if line == 0 && from > 0 => file.write_all(b"\n"),
        last if line::open(last).is_some() => file.write_all(b"\n"),
        _ => file.set_len(from + line as u64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Map, Value, json};

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
            // After a cut just before the newline, the record is complete and therefore exists twice.
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
        // Simulates a disk that fills up in the middle of a write.
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
        // Attempt 1 completes updates 1 to 5, 2 resumes at 3 and completes 4 to 6, and 3 resumes at 5 and dies.
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
        let fields = "\"attempt\":7,\"kind\":\"validation\",\"update\":3,\"crc\":\"";
        assert!(text.contains(fields) && text.ends_with("\"}\n"), "{text}");
    }

    #[test]
    fn damaged_lines_are_skipped_and_numbered() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log.jsonl");
        let mut log = Log::open(&path, 1).unwrap();
        (1..=9).for_each(|update| log.write("update", &json!({"update": update})).unwrap());
        let mut bytes = std::fs::read(&path).unwrap();
        let lines = bytes.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::len);
        let starts: Vec<usize> =
            lines.scan(0, |at, len| Some(std::mem::replace(at, *at + len))).collect();
        bytes[starts[2] + 5] ^= 1;
        bytes[starts[7] - 2] ^= 1; // the closing brace of the line before
        bytes.extend(b"[1]\n\n{\"update\":1}\n\xff\n\0\0");
        std::fs::write(&path, bytes).unwrap();
        let mut seen = Vec::new();
        let damaged = each(&path, |record| seen.push(record["update"].as_u64().unwrap())).unwrap();
        assert_eq!(seen, [1, 2, 4, 5, 6, 8, 9]);
        assert_eq!(damaged, Damaged { count: 5, first: vec![3, 7, 10, 12, 13] });
        assert_eq!(read(&path).unwrap().bad_lines, 5);
    }

    #[test]
    fn a_log_that_is_moved_removed_or_replaced_goes_on_at_its_path() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log.jsonl");
        let mut log = Log::open(&path, 1).unwrap();
        let mut updates = 0..;
        let mut write = || log.write("update", &json!({"update": updates.next()}));
        write().unwrap();
        std::fs::rename(&path, folder.path().join("old")).unwrap();
        (0..2).for_each(|_| write().unwrap());
        let found = read(&path).unwrap();
        assert_eq!((found.records.len(), &found.records[0]["kind"]), (3, &json!("warning")));
        std::fs::copy(&path, folder.path().join("new")).unwrap();
        std::fs::rename(folder.path().join("new"), &path).unwrap();
        write().unwrap();
        std::fs::remove_file(&path).unwrap();
        write().unwrap();
        assert_eq!(read(&path).unwrap().records.len(), 2);
        assert_eq!(read(&folder.path().join("old")).unwrap().records.len(), 1);
        // A pipe in place of the log must not block.
        std::fs::remove_file(&path).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        let error = write().unwrap_err();
        assert!(error.to_string().contains("not a regular file"), "{error}");
        assert!(read(&path).is_err());
        std::fs::remove_file(&path).unwrap();
        // A link must not redirect writes to another file.
        let other = folder.path().join("other");
        std::fs::write(&other, "text").unwrap();
        std::os::unix::fs::symlink(&other, &path).unwrap();
        let error = write().unwrap_err();
        assert!(error.to_string().contains("it is a link"), "{error}");
        assert_eq!(std::fs::read_to_string(&other).unwrap(), "text");
        std::fs::remove_file(&path).unwrap();
        write().unwrap();
        assert_eq!(read(&path).unwrap().records.len(), 2);
    }

    #[test]
    fn holes_of_gibibytes_cost_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log.jsonl");
        let mut log = Log::open(&path, 1).unwrap();
        for update in 1..=3 {
            log.write("update", &json!({"update": update})).unwrap();
            let size = std::fs::metadata(&path).unwrap().len();
            log.file.set_len(size + (64 << 30)).unwrap();
        }
        Log::open(&path, 2).unwrap().write("update", &json!({"update": 4})).unwrap();
        let found = read(&path).unwrap();
        assert_eq!((found.bad_lines, updates(&found)), (3, vec![(1, 1), (2, 4)]));
    }
}
