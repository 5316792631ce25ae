//! Reads a log: finds the valid records and drops the superseded ones.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use serde_json::{Map, Value};

use super::{Follow, MAX_LINE, line};
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
    /// Number of skipped lines.
    pub count: usize,
    /// Line numbers of the first few of them, starting at 1.
    pub first: Vec<u64>,
}

impl Damaged {
    fn add(&mut self, number: u64) {
        self.count += 1;
        if self.first.len() < 5 {
            self.first.push(number);
        }
    }

    /// Prints a warning about the skipped lines, if there are any.
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
    let mut log = Follow::new(path);
    log.read(|record| record)?;
    let (bad_lines, superseded) = (log.bad_lines(), log.superseded());
    Ok(Records { records: log.into_items(), bad_lines, superseded })
}

/// Calls `what` with every record of a log in file order, including superseded ones. An incomplete last line, which may
/// still be in the process of being written, is neither a record nor damaged. Errors: those of [`read`].
pub fn each(path: &Path, what: impl FnMut(Map<String, Value>)) -> Result<Damaged> {
    let mut position = Position::default();
    read_lines(path, BufReader::new(small::open(path)?), &mut position, what)?;
    Ok(position.damaged)
}

/// The position up to which a log was read.
#[derive(Debug, Default)]
pub(super) struct Position {
    /// Number of bytes read.
    pub offset: u64,
    /// Number of lines read.
    lines: u64,
    pub damaged: Damaged,
}

/// Reads lines from `at` on, which must be the position of `reader`. Stops before an incomplete last line.
pub(super) fn read_lines(
    path: &Path,
    mut reader: BufReader<File>,
    at: &mut Position,
    mut what: impl FnMut(Map<String, Value>),
) -> Result<()> {
    let io = |cause| Error::io(path, cause);
    let mut line = Vec::new();
    loop {
        line.clear();
        let mut limited = Read::take(&mut reader, MAX_LINE);
        let mut bytes = limited.read_until(b'\n', &mut line).map_err(io)?;
        let has_end = line.last() == Some(&b'\n');
        let is_long = bytes as u64 == MAX_LINE && !has_end;
        match line::open(&line) {
            _ if bytes == 0 => return Ok(()),
            _ if is_long => {
                bytes += skip_line(&mut reader).map_err(io)?;
                at.damaged.add(at.lines + 1);
            }
            // A record counts even if its newline is missing.
            Some(record) => what(record),
            None if !has_end => return Ok(()),
            None if line.trim_ascii().is_empty() => {}
            None => at.damaged.add(at.lines + 1),
        }
        at.offset += bytes as u64;
        at.lines += u64::from(has_end || is_long);
    }
}

/// Skips to the end of a line and returns the number of bytes skipped, like [`BufRead::skip_until`]. Does not read
/// holes, which a file system crash may leave: they contain no line feed.
fn skip_line(reader: &mut BufReader<File>) -> io::Result<usize> {
    let mut skipped = 0;
    loop {
        let at = reader.stream_position()?;
        let data = match rustix::fs::seek(reader.get_ref(), rustix::fs::SeekFrom::Data(at)) {
            Ok(data) => data,
            // There is no data up to the end of the file.
            Err(rustix::io::Errno::NXIO) => reader.seek(SeekFrom::End(0))?,
            // The file system does not support SEEK_DATA.
            Err(_) => at,
        };
        reader.seek(SeekFrom::Start(data))?;
        let mut line = Vec::new();
        let bytes = Read::take(&mut *reader, MAX_LINE).read_until(b'\n', &mut line)?;
        skipped += data.saturating_sub(at) as usize + bytes;
        if bytes == 0 || line.last() == Some(&b'\n') {
            return Ok(skipped);
        }
    }
}
