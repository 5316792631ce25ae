//! Writes predictions as JSON lines to a pipe, or to a file that an interrupted command can resume.

use super::score::already_exists;
use super::state::StoreTimer;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;
use unix::out::Out;
use unix::publish::{REAL, publish_bytes};
use unix::{Error, Exit, Result, small};

/// Maximum size in bytes of the record file of an unfinished output.
const MAX_RECORD: u64 = 1 << 20;

/// Destination of JSON lines.
pub enum JsonLines {
    /// Standard output.
    Pipe(Out),
    /// A file, which appears under its final name only once it is complete.
    File(Unfinished),
}

/// A file being written: its lines are in `.NAME.partial`, and `.NAME.partial.json` records how many of them are synced
/// to disk.
pub struct Unfinished {
    path: PathBuf,
    replace: bool,
    data: PathBuf,
    file: File,
    record: PathBuf,
    stored: Record,
    timer: StoreTimer,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Record {
    /// Identifies the inputs and the model.
    identity: String,
    /// Number of complete items.
    items: u64,
    /// Size of the complete items in bytes.
    bytes: u64,
    /// How many of the complete items have an error instead of a prediction.
    #[serde(default)]
    failed: u64,
}

impl JsonLines {
    /// Resumes or creates the file `path`. `identity` is a text that identifies inputs and model; without it, or if it
    /// differs from the recorded one, the file is started anew.
    ///
    /// Errors: 73 when the file cannot be created, or exists and `replace` is not set; 75 when another process is
    /// writing it.
    pub fn open(path: &Path, replace: bool, identity: Option<&str>) -> Result<Self> {
        if !replace && path.exists() {
            return Err(already_exists(path));
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
            // Do not truncate the file: it may be a hard link to a published file.
            fs::remove_file(&data).map_err(create)?;
            file = options.create_new(true).open(&data).map_err(create)?;
            lock(&file, path)?;
        }
        let identity = identity.unwrap_or_default().to_string();
        let stored = own.unwrap_or(Record { identity, items: 0, bytes: 0, failed: 0 });
        file.set_len(stored.bytes).map_err(create)?;
        file.seek(SeekFrom::Start(stored.bytes)).map_err(create)?;
        let path = path.to_path_buf();
        let timer = StoreTimer::new();
        Ok(Self::File(Unfinished { path, replace, data, file, record, stored, timer }))
    }

    /// Whether what was written is continued by [`JsonLines::open`] with the same arguments.
    pub fn resumes(&self) -> bool {
        match self {
            Self::Pipe(_) => false,
            Self::File(file) => !file.stored.identity.is_empty(),
        }
    }

    /// Number of complete items.
    pub fn done(&self) -> u64 {
        match self {
            Self::Pipe(_) => 0,
            Self::File(file) => file.stored.items,
        }
    }

    /// How many of the complete items have an error instead of a prediction.
    pub fn failed(&self) -> u64 {
        match self {
            Self::Pipe(_) => 0,
            Self::File(file) => file.stored.failed,
        }
    }

    /// Writes lines that bring the number of complete items to `done`. Errors: 74; 0 when the reader of the pipe has
    /// exited.
    pub fn write(&mut self, lines: &[u8], done: u64) -> Result<()> {
        self.write_with_errors(lines, done, self.failed())
    }

    /// The same, where `failed` of the complete items have an error instead of a prediction.
    pub fn write_with_errors(&mut self, lines: &[u8], done: u64, failed: u64) -> Result<()> {
        match self {
            Self::Pipe(out) => out.raw(lines),
            Self::File(file) => file.write(lines, done, failed),
        }
    }

    /// Publishes the file; does nothing for a pipe. Errors: 73, 74.
    pub fn publish(&mut self) -> Result<()> {
        match self {
            Self::Pipe(_) => Ok(()),
            Self::File(file) => file.publish(),
        }
    }
}

/// Locks the file without blocking. Errors: 75 when another process holds the lock.
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
    fn write(&mut self, lines: &[u8], done: u64, failed: u64) -> Result<()> {
        let wrong = |cause| Error::io(&self.path, cause);
        self.file.write_all(lines).map_err(wrong)?;
        self.stored.bytes += lines.len() as u64;
        (self.stored.items, self.stored.failed) = (done, failed);
        if !self.timer.is_due() {
            return Ok(());
        }
        let began = Instant::now();
        self.file.sync_data().map_err(wrong)?;
        publish_bytes(&self.record, &serde_json::to_vec(&self.stored).map_err(Error::bug)?)?;
        unix::fail::point("save.after_shard").map_err(wrong)?;
        self.timer.stored(began);
        Ok(())
    }

    fn publish(&mut self) -> Result<()> {
        let failed = |cause| Error::io(&self.path, cause);
        self.file.sync_all().map_err(failed)?;
        if self.replace && self.path.exists() {
            fs::remove_file(&self.path).map_err(|cause| Error::create(&self.path, cause))?;
        }
        REAL.new_file(&self.path, |temporary| {
            // Use a second hard link, so that the data survive if publishing fails.
            let named = fs::hard_link(&self.data, temporary);
            let named = named.or_else(|_| fs::rename(&self.data, temporary));
            named.map_err(|cause| Error::create(&self.path, cause))
        })?;
        // The next command that writes this file replaces any leftovers.
        let _ = fs::remove_file(&self.data).and_then(|()| fs::remove_file(&self.record));
        Ok(())
    }
}
