//! Reads a log while it grows: each call parses only the lines appended since the last one.

use std::io::{BufReader, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::read::{Position, read_lines};
use super::superseded::{LogPart, Parts, update_of};
use crate::{Error, Result, small};

/// The records of a log that are not superseded, each reduced to a `T`.
#[derive(Debug)]
pub struct Follow<T> {
    path: PathBuf,
    /// Device and inode of the file that was last read.
    file: Option<(u64, u64)>,
    position: Position,
    parts: Parts,
    kept: Vec<Kept<T>>,
    superseded: usize,
}

#[derive(Debug)]
struct Kept<T> {
    part: Option<LogPart>,
    update: Option<u64>,
    item: T,
}

impl<T> Follow<T> {
    /// Creates a reader at the start of a log.
    pub fn new(path: &Path) -> Self {
        Self {
            path: path.into(),
            file: None,
            position: Position::default(),
            parts: Parts::default(),
            kept: Vec::new(),
            superseded: 0,
        }
    }

    /// Reads the records that were appended, reduces them with `reduce`, and drops records that are now superseded. A
    /// log that was replaced is read from the start. Errors: 66 when it cannot be opened or is not a regular file, 74;
    /// damaged lines are only counted.
    pub fn read(&mut self, mut reduce: impl FnMut(Map<String, Value>) -> T) -> Result<()> {
        let mut file = small::open(&self.path)?;
        let io = |cause| Error::io(&self.path, cause);
        let found = file.metadata().map_err(io)?;
        let identity = Some((found.dev(), found.ino()));
        if self.file != identity || found.len() < self.position.offset {
            *self = Self { file: identity, ..Self::new(&self.path) };
        }
        if found.len() == self.position.offset {
            return Ok(());
        }
        file.seek(SeekFrom::Start(self.position.offset)).map_err(|c| Error::io(&self.path, c))?;
        let Self { parts, kept, .. } = self;
        read_lines(&self.path, BufReader::new(file), &mut self.position, |record| {
            let (part, update) = (parts.add(&record), update_of(&record));
            kept.push(Kept { part, update, item: reduce(record) });
        })?;
        let limits = self.parts.limits();
        let before = self.kept.len();
        self.kept.retain(|kept| {
            // Records without an attempt are not superseded.
            let limit = kept.part.and_then(|part| limits.get(&part)).copied().unwrap_or(u64::MAX);
            kept.update.is_none_or(|update| update < limit)
        });
        self.superseded += before - self.kept.len();
        Ok(())
    }

    /// Iterates over the records in file order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &T> {
        self.kept.iter().map(|kept| &kept.item)
    }

    /// Returns the records in file order.
    pub fn into_items(self) -> Vec<T> {
        self.kept.into_iter().map(|kept| kept.item).collect()
    }

    /// Returns the number of damaged lines so far.
    pub fn bad_lines(&self) -> usize {
        self.position.damaged.count
    }

    /// Returns the number of superseded records so far.
    pub fn superseded(&self) -> usize {
        self.superseded
    }
}
