//! Appends to a file of records to which many processes on many machines may append at the same time.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;

use serde::Serialize;
use serde_json::{Map, Value};

use super::{MAX_LINE, each, line, open_to_append};
use crate::publish::REAL;
use crate::space::parent;
use crate::{Error, Result, text};

/// Maximum number of attempts to append a record that other processes overwrite or damage each time.
const ATTEMPTS: u32 = 20;

/// Appends a record durably unless the file has a record for which `is_same` returns true; returns whether it was
/// appended. The file is created if it is absent.
///
/// There is no lock. The record is written with O_APPEND in one write, on a line of its own even if a process died in
/// the middle of its line, and then read back. Over NFS, where appends of two clients may end up at the same offset, it
/// is written again if it is not found. Errors: 65 for a record that could not be found again because it is too long or
/// contains a secret, which is not stored; 66 when the file cannot be read; 73, 74.
pub fn append_once(
    path: &Path,
    record: &impl Serialize,
    is_same: impl Fn(&Map<String, Value>) -> bool,
) -> Result<bool> {
    let line = line::seal(text::json(record)?.into_bytes());
    if line.len() as u64 >= MAX_LINE || !line::open(&line).is_some_and(|record| is_same(&record)) {
        return Err(Error::data(format!(
            "{}: the row cannot be added: it has {} bytes of at most {MAX_LINE}, or contains a secret",
            path.display(),
            line.len()
        )));
    }
    let mut appended = false;
    for _ in 0..ATTEMPTS {
        let mut found = false;
        if path.symlink_metadata().is_ok() {
            each(path, |record| found |= is_same(&record))?;
        }
        if found {
            return Ok(appended);
        }
        append(&open_to_append(path)?, &line).map_err(|cause| Error::io(path, cause))?;
        REAL.names(parent(path))?;
        appended = true;
    }
    let text = "a row was written several times and is not in the file; other programs write to it";
    Err(Error::io(path, text))
}

fn append(mut file: &File, line: &[u8]) -> std::io::Result<()> {
    let mut last = [b'\n'];
    if let Some(at) = file.metadata()?.len().checked_sub(1) {
        file.read_exact_at(&mut last, at)?;
    }
    let line = if last == *b"\n" { line.to_vec() } else { [b"\n", line].concat() };
    file.write_all(&line)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log;
    use serde_json::json;

    fn append_number(path: &Path, n: u64) -> bool {
        append_once(path, &json!({"n": n}), |record| record["n"] == n).unwrap()
    }

    fn numbers(path: &Path) -> Vec<u64> {
        let mut numbers = Vec::new();
        log::each(path, |record| numbers.push(record["n"].as_u64().unwrap())).unwrap();
        numbers
    }

    #[test]
    fn a_record_is_appended_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows.jsonl");
        let appended = [1, 2, 1, 3, 2].map(|n| append_number(&path, n));
        assert_eq!(appended, [true, true, false, true, false]);
        assert_eq!(numbers(&path), [1, 2, 3]);
    }

    #[test]
    fn an_incomplete_line_of_another_process_costs_only_itself() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows.jsonl");
        append_number(&path, 1);
        let whole = std::fs::read(&path).unwrap();
        for cut in 1..whole.len() {
            std::fs::write(&path, [&whole[..], &whole[..cut]].concat()).unwrap();
            assert!(append_number(&path, 2));
            let mut expected = vec![1, 2];
            // After a cut just before the newline, the record is complete and therefore exists twice.
            if cut == whole.len() - 1 {
                expected.insert(0, 1);
            }
            assert_eq!(numbers(&path), expected, "cut at {cut}");
            let damaged = log::each(&path, |_| {}).unwrap();
            assert_eq!(damaged.count, usize::from(expected.len() == 2), "cut at {cut}");
        }
    }

    #[test]
    fn a_record_that_would_not_be_found_again_is_not_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows.jsonl");
        let long = json!({"n": 1, "text": "x".repeat(MAX_LINE as usize)});
        let error = append_once(&path, &long, |_| true).unwrap_err();
        assert!(error.to_string().contains("rows.jsonl"), "{error}");
        assert!(append_once(&path, &json!({"n": 1}), |_| false).is_err());
        assert!(!path.exists());
    }
}
