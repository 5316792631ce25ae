//! The files of a lease: one for each attempt, named by its number, which nobody else can get.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, utimensat};

use super::Owner;
use crate::publish::TEMPORARY_PREFIX;
use crate::{Error, Result, host};

/// What candidates that were killed left behind is removed after this time.
const LEFTOVER: Duration = Duration::from_secs(3600);

/// The time of a lease that was given back on a full disk.
pub(super) const RELEASED: SystemTime = SystemTime::UNIX_EPOCH;

/// The file of an attempt.
pub(super) fn path_of(folder: &Path, number: u64) -> PathBuf {
    folder.join(format!("attempt-{number:08}.json"))
}

fn number_of(name: &str) -> Option<u64> {
    name.strip_prefix("attempt-")?.strip_suffix(".json")?.parse().ok()
}

/// The numbers taken so far, in no order.
pub(super) fn numbers(folder: &Path) -> std::io::Result<Vec<u64>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        found.extend(entry?.file_name().to_str().and_then(number_of));
    }
    Ok(found)
}

/// A lease as it stands on the disk.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Look {
    /// Its owner; none when the file is empty or damaged, as after a power cut.
    pub owner: Option<Owner>,
    /// Its last heartbeat, by the clock of the file system.
    pub beaten: SystemTime,
}

/// Largest lease, in bytes.
const MAX_BYTES: u64 = 1 << 20;

/// Looks at the lease of an attempt; none when it is gone. Errors: 66, also when it is a pipe or a folder.
pub(super) fn look(path: &Path) -> Result<Option<Look>> {
    // NFS asks its server for the true time of a file when it is opened, and only then.
    let opened = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path);
    let found = opened.and_then(|file| Ok((file.metadata()?, file)));
    let (found, file) = match found {
        Ok(found) => found,
        Err(cause) if cause.kind() == ErrorKind::NotFound => return Ok(None),
        Err(cause) => return Err(Error::open(path, cause)),
    };
    if !found.is_file() {
        let advice = "it is not a regular file; remove it if no process works on the run";
        return Err(Error::open(path, advice));
    }
    let beaten = found.modified().map_err(|cause| Error::open(path, cause))?;
    Ok(Some(Look { owner: serde_json::from_reader(file.take(MAX_BYTES)).ok(), beaten }))
}

/// Sets the time of a file to now, by the clock of the file system; needs no space on the disk.
pub(super) fn touch(path: &Path) -> std::io::Result<()> {
    let at = |tv_nsec| Timespec { tv_sec: 0, tv_nsec };
    let times = Timestamps { last_access: at(UTIME_OMIT), last_modification: at(UTIME_NOW) };
    Ok(utimensat(CWD, path, &times, AtFlags::empty())?)
}

/// Marks a lease as given back by a time that no heartbeat sets; needs no space on the disk.
pub(super) fn mark_released(path: &Path) -> std::io::Result<()> {
    File::options().write(true).open(path)?.set_modified(RELEASED)
}

/// Removes what lies below the attempt `number` and is of no use any more. Only for its owner.
pub(super) fn remove_older(folder: &Path, number: u64) {
    for old in numbers(folder).unwrap_or_default().into_iter().filter(|old| *old < number) {
        let _ = fs::remove_file(path_of(folder, old)); // tried again by the next owner
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

/// A lease that is written and has no number yet.
pub(super) struct Candidate {
    path: PathBuf,
    text: Vec<u8>,
}

impl Candidate {
    /// Writes the owner under a name of its own. Errors: 73.
    pub fn new(folder: &Path, owner: &Owner) -> Result<Self> {
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        let count = COUNTER.fetch_add(1, Ordering::Relaxed);
        let name = format!("{TEMPORARY_PREFIX}{}-{}-{count}", host::name(), std::process::id());
        let path = folder.join(name);
        let mut text = serde_json::to_vec_pretty(owner).map_err(Error::bug)?;
        text.push(b'\n');
        // Ids are used again: what lies there was left by a process that is gone.
        let _ = fs::remove_file(&path);
        match create(&path, &text) {
            // A full disk is no reason not to make room on it: a lease without a name is one too.
            Err(cause) if is_full(&cause) && path.exists() => {}
            other => other.map_err(|cause| Error::create(&path, cause))?,
        }
        Ok(Self { path, text })
    }

    /// Now, by the clock of the file system: clocks of two hosts need not agree.
    pub fn now(&self) -> Result<SystemTime> {
        let now = touch(&self.path).and_then(|()| File::open(&self.path)?.metadata()?.modified());
        now.map_err(|cause| Error::io(&self.path, cause))
    }

    /// Takes the number; false when another process has it.
    pub fn take(&self, target: &Path) -> Result<bool> {
        let taken = match fs::hard_link(&self.path, target) {
            Ok(()) => Ok(true),
            // Over NFS the answer to a link that was made may be lost.
            Err(_) if is_same_file(&self.path, target) => Ok(true),
            Err(cause) if cause.kind() == ErrorKind::AlreadyExists => Ok(false),
            // A file system without links: who creates the file has the number.
            Err(_) => match create(target, &self.text) {
                Err(cause) if cause.kind() == ErrorKind::AlreadyExists => Ok(false),
                other => other.map(|()| true),
            },
        };
        let synced = taken.and_then(|taken| {
            File::open(target.parent().unwrap_or(Path::new(".")))?.sync_all()?;
            Ok(taken)
        });
        synced.map_err(|cause| Error::create(target, cause))
    }
}

impl Drop for Candidate {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path); // else the owner an hour later does it
    }
}

fn is_same_file(a: &Path, b: &Path) -> bool {
    let id = |path| fs::metadata(path).map(|found| (found.dev(), found.ino()));
    matches!((id(a), id(b)), (Ok(a), Ok(b)) if a == b)
}

fn create(path: &Path, text: &[u8]) -> std::io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
    file.write_all(text)?;
    file.sync_all()
}
