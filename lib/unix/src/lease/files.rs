//! The files of a lease: one per attempt, named after the attempt number, which only one process can obtain.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, utimensat};

use super::Owner;
use crate::publish::{TEMPORARY_PREFIX, link_new, unique_suffix};
use crate::{Error, Result};

/// Age at which files left behind by killed candidates are removed.
const LEFTOVER: Duration = Duration::from_secs(3600);

/// The mtime that marks a lease as released, set when the disk is full.
pub(super) const RELEASED: SystemTime = SystemTime::UNIX_EPOCH;

/// Returns the path of the file of an attempt.
pub(super) fn path_of(folder: &Path, number: u64) -> PathBuf {
    folder.join(format!("attempt-{number:08}.json"))
}

fn number_of(name: &str) -> Option<u64> {
    name.strip_prefix("attempt-")?.strip_suffix(".json")?.parse().ok()
}

/// Returns the attempt numbers in use, unordered.
pub(super) fn numbers(folder: &Path) -> std::io::Result<Vec<u64>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        found.extend(entry?.file_name().to_str().and_then(number_of));
    }
    Ok(found)
}

/// The content and mtime of a lease file.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct LeaseFile {
    /// The owner of the lease; `None` if the file is empty or damaged, e.g. after a power failure.
    pub owner: Option<Owner>,
    /// Time of the last heartbeat, by the clock of the file system.
    pub beaten: SystemTime,
}

/// Maximum size of a lease file in bytes.
const MAX_BYTES: u64 = 1 << 20;

/// Reads the lease of an attempt; `None` if it does not exist. Errors: 66, including for a pipe or a directory.
pub(super) fn read_lease(path: &Path) -> Result<Option<LeaseFile>> {
    // Open the file, because only then does an NFS client fetch its current mtime.
    let flags = libc::O_NONBLOCK | libc::O_NOFOLLOW;
    let opened = OpenOptions::new().read(true).custom_flags(flags).open(path);
    let found = opened.and_then(|file| Ok((file.metadata()?, file)));
    let (found, file) = match found {
        Ok(found) => found,
        Err(cause) if cause.kind() == ErrorKind::NotFound => return Ok(None),
        Err(cause) if cause.raw_os_error() == Some(libc::ELOOP) => return Err(is_link(path)),
        Err(cause) => return Err(Error::open(path, cause)),
    };
    if !found.is_file() {
        let advice = "it is not a regular file; remove it if no process is using the run";
        return Err(Error::open(path, advice));
    }
    let beaten = found.modified().map_err(|cause| Error::open(path, cause))?;
    Ok(Some(LeaseFile { owner: serde_json::from_reader(file.take(MAX_BYTES)).ok(), beaten }))
}

/// Returns the error (66) for a link, which may refer to the lease of another run or to any file.
pub(super) fn is_link(path: &Path) -> Error {
    Error::open(path, "it is a link; remove it if no process is using the run")
}

/// Sets the mtime of a file to the current time by the clock of the file system; needs no disk space.
pub(super) fn touch(path: &Path) -> std::io::Result<()> {
    let at = |tv_nsec| Timespec { tv_sec: 0, tv_nsec };
    let times = Timestamps { last_access: at(UTIME_OMIT), last_modification: at(UTIME_NOW) };
    Ok(utimensat(CWD, path, &times, AtFlags::empty())?)
}

/// Marks a lease as released, with an mtime that no heartbeat sets; needs no disk space.
pub(super) fn mark_released(path: &Path) -> std::io::Result<()> {
    File::options().write(true).open(path)?.set_modified(RELEASED)
}

/// Removes the files of attempts before `number` and stale temporary files. Only the owner of `number` may call it.
pub(super) fn remove_older(folder: &Path, number: u64) {
    for old in numbers(folder).unwrap_or_default().into_iter().filter(|old| *old < number) {
        let _ = fs::remove_file(path_of(folder, old)); // the next owner tries again
    }
    let now = fs::metadata(path_of(folder, number)).and_then(|found| found.modified());
    let (Ok(now), Ok(entries)) = (now, fs::read_dir(folder)) else { return };
    for entry in entries.flatten() {
        let modified = entry.metadata().and_then(|found| found.modified()).unwrap_or(now);
        let is_old = now.duration_since(modified).is_ok_and(|age| age > LEFTOVER);
        if is_old && entry.file_name().to_string_lossy().starts_with(TEMPORARY_PREFIX) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

fn is_full(cause: &std::io::Error) -> bool {
    matches!(cause.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

/// A complete lease file that has no attempt number yet.
pub(super) struct Candidate {
    path: PathBuf,
    text: Vec<u8>,
}

impl Candidate {
    /// Writes the owner to a file with a unique temporary name. Errors: 73.
    pub fn new(folder: &Path, owner: &Owner) -> Result<Self> {
        let path = folder.join(format!("{TEMPORARY_PREFIX}{}", unique_suffix()));
        let mut text = serde_json::to_vec_pretty(owner).map_err(Error::bug)?;
        text.push(b'\n');
        match create(&path, &text) {
            // Continue on a full disk, because the owner may be about to free space: an empty lease file is also valid.
            Err(cause) if is_full(&cause) && path.exists() => {}
            other => other.map_err(|cause| Error::create(&path, cause))?,
        }
        Ok(Self { path, text })
    }

    /// Returns the current time by the clock of the file system, because the clocks of hosts may differ.
    pub fn now(&self) -> Result<SystemTime> {
        let now = touch(&self.path).and_then(|()| File::open(&self.path)?.metadata()?.modified());
        now.map_err(|cause| Error::io(&self.path, cause))
    }

    /// Claims the attempt number of `target`; returns false if another process has it.
    pub fn take(&self, target: &Path) -> Result<bool> {
        // On a file system without hard links, the process that creates the file gets the number.
        let taken = link_new(&self.path, target).or_else(|_| match create(target, &self.text) {
            Err(cause) if cause.kind() == ErrorKind::AlreadyExists => Ok(false),
            other => other.map(|()| true),
        });
        let synced = taken.and_then(|taken| {
            File::open(target.parent().unwrap_or(Path::new(".")))?.sync_all()?;
            Ok(taken)
        });
        synced.map_err(|cause| Error::create(target, cause))
    }
}

impl Drop for Candidate {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path); // otherwise the owner removes it an hour later
    }
}

fn create(path: &Path, text: &[u8]) -> std::io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
    file.write_all(text)?;
    file.sync_all()
}
