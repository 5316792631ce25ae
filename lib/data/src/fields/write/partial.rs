//! A field file that is written over several attempts.
//!
//! Until it is complete, its values are in `.NAME.partial` next to it, and `.NAME.partial.jsonl` records a hash of the
//! file's header, the offsets of the values and the number of trajectories synced to disk. An attempt that finds both
//! files resumes; with a different header, it starts over. A lock on the second file excludes other processes; it is
//! released when the process that holds it ends.

use super::{Dataset, FieldWriter, Header, lay_out};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use unix::{Error, Exit, Result};

/// Maximum size of the progress record in bytes.
const MAX_RECORD: u64 = 256 << 20;

/// A file that is being written.
pub struct PartialFile {
    path: PathBuf,
    data: PathBuf,
    record: File,
    record_path: PathBuf,
    writer: FieldWriter,
    done: usize,
}

/// The first line of the progress record.
#[derive(Serialize, Deserialize)]
struct RecordHeader {
    /// BLAKE3 hash of the header, which identifies the content to be written.
    header: String,
    /// Size of the data file in bytes.
    bytes: u64,
    datasets: Vec<Dataset>,
}

/// The data that other processes need to write into the same file; see [`PartialFile::share`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PartialFileState {
    datasets: Vec<Dataset>,
    done: usize,
}

impl PartialFileState {
    /// Opens the unfinished file `path`, which another process holds as a [`PartialFile`] with the same header. Errors:
    /// 73.
    pub fn writer(self, path: &Path, header: &Header) -> Result<FieldWriter> {
        FieldWriter::open(&names(path).0, path, header, self.datasets)
    }

    /// Number of leading trajectories that are complete.
    pub fn done(&self) -> usize {
        self.done
    }
}

/// Every further line of the progress record.
#[derive(Serialize, Deserialize)]
struct RecordLine {
    /// Number of leading trajectories that are complete.
    trajectories: usize,
}

impl PartialFile {
    /// Resumes the file `path`, which must not exist yet, or starts it.
    ///
    /// Errors: 73 when it cannot be created or there is no space for it; 75 when another process is writing it.
    pub fn open(path: &Path, header: &Header) -> Result<Self> {
        header.require_layout().map_err(Error::bug)?;
        let (data, record_path) = names(path);
        let create = |cause| Error::create(path, cause);
        let options = File::options().read(true).write(true).create(true).truncate(false).clone();
        let mut record = options.open(&record_path).map_err(create)?;
        lock(&record, path)?;
        let identity = blake3::hash(format!("{header:?}").as_bytes()).to_hex().to_string();
        let mut text = String::new();
        // A record that is not valid UTF-8 was not written by us.
        let read = Read::by_ref(&mut record).take(MAX_RECORD).read_to_string(&mut text);
        let found = read.ok().and_then(|_| parse_record(&text, &identity, &data, header));
        let (writer, done) = match found {
            Some((datasets, done, valid)) => {
                record.set_len(valid).map_err(create)?;
                (FieldWriter::open(&data, path, header, datasets)?, done)
            }
            None => {
                remove(&data).map_err(create)?;
                record.set_len(0).map_err(create)?;
                unix::space::ensure_space(path, header.bytes())?;
                let writer = lay_out(&data, path, header)?;
                writer.file.sync_all().map_err(create)?;
                let bytes = writer.file.metadata().map_err(create)?.len();
                let (datasets, header) = (writer.datasets.clone(), identity);
                add(&record_path, &RecordHeader { header, bytes, datasets })?;
                (writer, 0)
            }
        };
        Ok(Self { path: path.to_path_buf(), data, record, record_path, writer, done })
    }

    /// Returns the data with which other processes can write trajectories of this file.
    pub fn share(&self) -> PartialFileState {
        PartialFileState { datasets: self.writer.datasets.clone(), done: self.done }
    }

    /// The path of the complete file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Number of leading trajectories that are complete.
    pub fn done(&self) -> usize {
        self.done
    }

    /// Writer of the trajectories.
    pub fn writer(&self) -> &FieldWriter {
        &self.writer
    }

    /// Syncs the first `trajectories` trajectories to disk and records them as complete; call it once they are written.
    /// Errors: 74.
    pub fn advance(&mut self, trajectories: usize) -> Result<()> {
        self.writer.sync()?;
        add(&self.record_path, &RecordLine { trajectories })?;
        self.done = trajectories;
        Ok(())
    }

    /// Renames the complete file to its final path. Errors: 73 or 74; the unfinished file is then kept.
    pub fn publish(self) -> Result<()> {
        unix::publish::REAL.new_file(&self.path, |temporary| {
            // A second link, so that the data survive if the rename fails.
            let named = fs::hard_link(&self.data, temporary);
            let named = named.or_else(|_| fs::rename(&self.data, temporary));
            named.map_err(|cause| Error::create(&self.path, cause))
        })?;
        self.discard();
        Ok(())
    }

    /// Removes the unfinished file.
    pub fn discard(self) {
        // If removal fails, the next attempt resumes or replaces the files.
        let _ = remove(&self.data).and_then(|()| remove(&self.record_path));
        drop(self.record);
    }
}

/// Removes leftovers of a process that was killed between publishing `path` and cleaning up.
pub(crate) fn remove_leftovers(path: &Path) {
    let (data, record_path) = names(path);
    let Ok(record) = File::options().write(true).open(&record_path) else { return };
    if lock(&record, path).is_ok() {
        let _ = remove(&data).and_then(|()| remove(&record_path));
    }
}

/// Returns the paths of the data file and the progress record.
fn names(path: &Path) -> (PathBuf, PathBuf) {
    let name = |ending: &str| {
        let mut name = OsString::from(".");
        name.push(path.file_name().unwrap_or_default());
        name.push(ending);
        path.with_file_name(name)
    };
    (name(".partial"), name(".partial.jsonl"))
}

/// Locks the progress record. Fails (75) if another process holds it or has just removed it.
fn lock(record: &File, path: &Path) -> Result<()> {
    // Any other error means that the file system does not support locks.
    let held = flock(record, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK);
    if held || record.metadata().is_ok_and(|found| found.nlink() == 0) {
        let path = path.display();
        let what = format!("{path}: another process is writing it; wait until it has finished");
        return Err(Error::new(Exit::Again, what));
    }
    Ok(())
}

/// Returns the offsets of the values, the number of complete trajectories, and the length of the record's valid part
/// (its last line may be incomplete); `None` unless the record belongs to this file.
fn parse_record(
    text: &str,
    identity: &str,
    data: &Path,
    header: &Header,
) -> Option<(Vec<Dataset>, usize, u64)> {
    let mut lines = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    let first = lines.next()?;
    let begun: RecordHeader = serde_json::from_str(first).ok()?;
    let found = fs::symlink_metadata(data).ok()?;
    if begun.header != identity || !found.is_file() || found.len() != begun.bytes {
        return None;
    }
    let (mut done, mut valid) = (0, first.len());
    for line in lines {
        let Ok(RecordLine { trajectories }) = serde_json::from_str(line) else { break };
        (done, valid) = (trajectories, valid + line.len());
    }
    (done <= header.shape.trajectories).then_some((begun.datasets, done, valid as u64))
}

/// Appends a line and syncs it to disk.
fn add(record_path: &Path, line: &impl Serialize) -> Result<()> {
    let mut text = serde_json::to_string(line).map_err(Error::bug)?;
    text.push('\n');
    let append = || {
        let mut file = File::options().append(true).open(record_path)?;
        file.write_all(text.as_bytes())?;
        file.sync_data()
    };
    append().map_err(|cause| Error::io(record_path, cause))
}

fn remove(path: &Path) -> std::io::Result<()> {
    match fs::remove_file(path) {
        Err(cause) if cause.kind() != std::io::ErrorKind::NotFound => Err(cause),
        _ => Ok(()),
    }
}
