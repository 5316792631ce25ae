//! A log that is read while it grows: each call parses only what was appended since the last one.

use std::io::{BufReader, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::read::{Position, read_lines};
use super::superseded::{Part, Parts, update_of};
use crate::{Error, Result, small};

/// The records of a log that are not superseded, each reduced to a `T`.
#[derive(Debug)]
pub struct Follow<T> {
    path: PathBuf,
    /// Device and inode of the file that was read.
    file: Option<(u64, u64)>,
    position: Position,
    parts: Parts,
    kept: Vec<Kept<T>>,
    superseded: usize,
}

#[derive(Debug)]
struct Kept<T> {
    part: Option<Part>,
    update: Option<u64>,
    item: T,
}

impl<T> Follow<T> {
    /// A log of which nothing was read yet.
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

    /// Reads the records that were appended, reduces them with `reduce`, and drops those that are superseded now. A log
    /// that was replaced is read from its beginning. Errors: 66 when it cannot be opened or is not a regular file, 74;
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

    /// The records in file order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &T> {
        self.kept.iter().map(|kept| &kept.item)
    }

    /// The records in file order.
    pub fn into_items(self) -> Vec<T> {
        self.kept.into_iter().map(|kept| kept.item).collect()
    }

    /// Number of damaged lines so far.
    pub fn bad_lines(&self) -> usize {
        self.position.damaged.count
    }

    /// Number of records that were superseded so far.
    pub fn superseded(&self) -> usize {
        self.superseded
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::{Log, read};
    use serde_json::json;
    use std::fs::OpenOptions;
    use std::io::Write;
    use test_support::Random;

    fn records(log: &Follow<Map<String, Value>>) -> Vec<Map<String, Value>> {
        log.iter().cloned().collect()
    }

    /// A log of attempts that resume and rewind, with damaged lines, read while it grows by pieces of any length.
    #[test]
    fn reading_piece_by_piece_equals_reading_the_whole() {
        let folder = tempfile::tempdir().unwrap();
        let (whole, growing) = (folder.path().join("whole"), folder.path().join("growing"));
        for seed in 0..20 {
            let mut random = Random(seed);
            let _ = (std::fs::remove_file(&whole), std::fs::remove_file(&growing));
            let mut reached: usize = 0;
            for attempt in 1..=4 {
                let mut log = Log::open(&whole, attempt).unwrap();
                reached = random.below(reached + 1);
                log.write("start", &json!({"update": reached})).unwrap();
                for _ in 0..random.below(12) {
                    reached += 1;
                    log.write("update", &json!({"update": reached, "loss": 0.5})).unwrap();
                    if random.below(6) == 0 {
                        reached = random.below(reached + 1);
                        log.write("rewind", &json!({"update": reached})).unwrap();
                    }
                }
                OpenOptions::new().append(true).open(&whole).unwrap().write_all(b"{}\n\n").unwrap();
            }
            let bytes = std::fs::read(&whole).unwrap();
            let mut file = OpenOptions::new().create(true).append(true).open(&growing).unwrap();
            let mut log = Follow::new(&growing);
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let (piece, after) = rest.split_at(rest.len().min(1 + random.below(300)));
                file.write_all(piece).unwrap();
                rest = after;
                log.read(|record| record).unwrap();
                let expected = read(&growing).unwrap();
                assert_eq!(records(&log), expected.records, "seed {seed}");
                assert_eq!(log.superseded(), expected.superseded, "seed {seed}");
                assert_eq!(log.bad_lines(), expected.bad_lines, "seed {seed}");
            }
            assert_eq!(log.bad_lines(), 4);
        }
    }

    #[test]
    fn a_log_that_was_replaced_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log.jsonl");
        let mut log = Follow::new(&path);
        assert!(log.read(|record| record).is_err(), "there is no log yet");
        for update in [1, 2] {
            Log::open(&path, 1).unwrap().write("update", &json!({"update": update})).unwrap();
        }
        log.read(|record| record).unwrap();
        std::fs::rename(&path, folder.path().join("old")).unwrap();
        assert!(log.read(|record| record).is_err());
        Log::open(&path, 1).unwrap().write("update", &json!({"update": 7})).unwrap();
        log.read(|record| record).unwrap();
        let updates: Vec<Option<u64>> = records(&log).iter().map(update_of).collect();
        assert_eq!(updates, [Some(7)]);
    }
}
