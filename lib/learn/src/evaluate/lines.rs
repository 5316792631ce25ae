//! Predictions as JSON lines: to a pipe, or to a file that an interrupted command resumes.

use super::score::exists;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use unix::out::Out;
use unix::publish::{REAL, publish_bytes};
use unix::{Error, Exit, Result, small};

/// Maximum size of the record of an unfinished file in bytes.
const MAX_RECORD: u64 = 1 << 20;
/// Syncing to disk takes at most this share of the time: one part in so many.
const STORE_INTERVAL: u32 = 20;

/// Where lines go.
pub enum JsonLines {
    /// To stdout.
    Pipe(Out),
    /// To a file, which exists under its name only once it is complete.
    File(Unfinished),
}

/// A file that is being written: its lines are in `.NAME.partial`, and `.NAME.partial.json` says how many of them are
/// synced to disk.
pub struct Unfinished {
    path: PathBuf,
    replace: bool,
    data: PathBuf,
    file: File,
    record: PathBuf,
    stored: Record,
    last: Instant,
    /// How long the last sync took.
    took: Duration,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Record {
    /// Identifies what is written.
    identity: String,
    /// Items that are complete.
    items: u64,
    /// Their size in bytes.
    bytes: u64,
}

impl JsonLines {
    /// Resumes the file `path`, or starts it; `identity` is a text that identifies inputs and model, without which nothing is
    /// resumed.
    ///
    /// Errors: 73 when it cannot be created, or exists and is not to be replaced; 75 when another process is writing it.
    pub fn open(path: &Path, replace: bool, identity: Option<&str>) -> Result<Self> {
        if !replace && path.exists() {
            return Err(exists(path));
        }
        let name = |ending: &str| {
            let mut name = OsString::from(".");
            name.push(path.file_name().unwrap_or_default());
            name.push(ending);
            path.with_file_name(name)
        };
        let (data, record) = (name(".partial"), name(".partial.json"));
        let create = |cause| Error::create(path, cause);
        let mut options = File::options();
        options.write(true);
        let mut file = options.clone().create(true).truncate(false).open(&data).map_err(create)?;
        lock(&file, path)?;
        let length = file.metadata().map_err(create)?.len();
        let text = small::read(&record, MAX_RECORD).ok();
        let found = text.and_then(|text| serde_json::from_slice::<Record>(&text).ok());
        let own = found.filter(|own| Some(&*own.identity) == identity && own.bytes <= length);
        if own.is_none() {
            // Not truncated: it may be another link to a file that was published.
            fs::remove_file(&data).map_err(create)?;
            file = options.create_new(true).open(&data).map_err(create)?;
            lock(&file, path)?;
        }
        let identity = identity.unwrap_or_default().to_string();
        let stored = own.unwrap_or(Record { identity, items: 0, bytes: 0 });
        file.set_len(stored.bytes).map_err(create)?;
        file.seek(SeekFrom::Start(stored.bytes)).map_err(create)?;
        let path = path.to_path_buf();
        let (last, took) = (Instant::now(), Duration::ZERO);
        Ok(Self::File(Unfinished { path, replace, data, file, record, stored, last, took }))
    }

    /// How many items are complete.
    pub fn done(&self) -> u64 {
        match self {
            Self::Pipe(_) => 0,
            Self::File(file) => file.stored.items,
        }
    }

    /// Writes lines, with which `done` items are complete. Errors: 74; 0 when the reader of a pipe is gone.
    pub fn write(&mut self, lines: &[u8], done: u64) -> Result<()> {
        match self {
            Self::Pipe(out) => out.raw(lines),
            Self::File(file) => file.write(lines, done),
        }
    }

    /// Ends the stream, or publishes the file. Errors: 73, 74.
    pub fn publish(&mut self) -> Result<()> {
        match self {
            Self::Pipe(_) => Ok(()),
            Self::File(file) => file.publish(),
        }
    }
}

/// Errors: 75 when another process holds the file.
fn lock(file: &File, path: &Path) -> Result<()> {
    // Any other error means that the file system does not support locks.
    if flock(file, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK) {
        let path = path.display();
        let what = format!("{path}: another process is writing it; wait until it has finished");
        return Err(Error::new(Exit::Again, what));
    }
    Ok(())
}

impl Unfinished {
    fn write(&mut self, lines: &[u8], done: u64) -> Result<()> {
        let failed = |cause| Error::io(&self.path, cause);
        self.file.write_all(lines).map_err(failed)?;
        self.stored.bytes += lines.len() as u64;
        self.stored.items = done;
        if self.last.elapsed() < STORE_INTERVAL * self.took {
            return Ok(());
        }
        let began = Instant::now();
        self.file.sync_data().map_err(failed)?;
        publish_bytes(&self.record, &serde_json::to_vec(&self.stored).map_err(Error::bug)?)?;
        unix::fail::point("save.after_shard").map_err(failed)?;
        (self.took, self.last) = (began.elapsed(), Instant::now());
        Ok(())
    }

    fn publish(&mut self) -> Result<()> {
        let failed = |cause| Error::io(&self.path, cause);
        self.file.sync_all().map_err(failed)?;
        if self.replace && self.path.exists() {
            fs::remove_file(&self.path).map_err(|cause| Error::create(&self.path, cause))?;
        }
        REAL.new_file(&self.path, |temporary| {
            // A second link, so that the data survive if the rename fails.
            let named = fs::hard_link(&self.data, temporary);
            let named = named.or_else(|_| fs::rename(&self.data, temporary));
            named.map_err(|cause| Error::create(&self.path, cause))
        })?;
        // Leftovers are replaced by the next command that writes this file.
        let _ = fs::remove_file(&self.data).and_then(|()| fs::remove_file(&self.record));
        Ok(())
    }
}
