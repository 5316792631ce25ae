//! Prevents an owner that has lost its lease from writing.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::files::{numbers, path_of, read_lease};
use crate::disk::{Disk, is_still_at};
use crate::{Error, Exit, Result};

/// Checks before every write that this process still holds its lease. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Fence(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    folder: PathBuf,
    number: u64,
    /// How long the result of a check is trusted: much shorter than the time after which another process may take over.
    trust: Duration,
    checked: Mutex<Instant>,
    /// The lease directory, held open so that no other directory can be given its inode.
    opened: File,
    lost: OnceLock<Loss>,
}

/// How the lease was lost.
#[derive(Debug)]
struct Loss {
    why: String,
    /// Whether the run directory was moved, removed or replaced, rather than taken over by another process.
    is_gone: bool,
}

impl Fence {
    pub(super) fn new(folder: PathBuf, opened: File, number: u64, beat: Duration) -> Self {
        let trust = (beat / 10).min(Duration::from_secs(1));
        let checked = Mutex::new(Instant::now());
        Self(Arc::new(Inner { folder, opened, number, trust, checked, lost: OnceLock::new() }))
    }

    /// Returns the number of this attempt.
    pub fn attempt(&self) -> u64 {
        self.0.number
    }

    /// Checks that this process still held the lease within the last second; used for log records. Errors: 75, naming
    /// the new owner.
    pub fn check(&self) -> Result<()> {
        // After a suspended process resumes, its last check is too old to be trusted.
        let checked = *self.0.checked.lock().unwrap_or_else(PoisonError::into_inner);
        if self.0.lost.get().is_none() && checked.elapsed() < self.0.trust {
            return Ok(());
        }
        self.check_now()
    }

    /// Checks that this process holds the lease right now; used before a file is published. Errors: 75, naming the new
    /// owner.
    pub fn check_now(&self) -> Result<()> {
        let inner = &*self.0;
        if inner.lost.get().is_none() {
            let started = Instant::now();
            if let Some(why) = self.loss() {
                let _ = inner.lost.set(why); // another thread may have set the same
            }
            *inner.checked.lock().unwrap_or_else(PoisonError::into_inner) = started;
        }
        match inner.lost.get() {
            None => Ok(()),
            Some(Loss { why, .. }) => Err(Error::new(
                Exit::Again,
                format!("attempt {} stops and writes nothing more: {why}", inner.number),
            )),
        }
    }

    /// Whether the run disappeared from its path without being taken over: another attempt would not find this run
    /// there.
    pub fn is_gone(&self) -> bool {
        self.0.lost.get().is_some_and(|loss| loss.is_gone)
    }

    /// Returns how the lease was lost, if it was. A file system that does not respond does not count as a loss.
    fn loss(&self) -> Option<Loss> {
        let path = path_of(&self.0.folder, self.0.number);
        let removed = || Loss {
            why: format!(
                "{} was removed or replaced; put the run directory back if it was moved, removed or \
                 restored from a copy, or start again with what is there now",
                path.display()
            ),
            is_gone: true,
        };
        let found = match numbers(&self.0.folder) {
            Ok(found) => found,
            Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => return Some(removed()),
            Err(_) => return None,
        };
        let newest = found.iter().copied().max().unwrap_or(0);
        if newest > self.0.number {
            let owner = read_lease(&path_of(&self.0.folder, newest)).ok().flatten();
            let who =
                owner.and_then(|file| file.owner).map_or(String::new(), |o| format!(" ({o})"));
            let why = format!("attempt {newest}{who} took over the run");
            return Some(Loss { why, is_gone: false });
        }
        (!found.contains(&self.0.number) || !is_still_at(&self.0.opened, &self.0.folder))
            .then(removed)
    }
}

/// The file system of this machine, with a check before each change of a name that this process still holds the lease.
/// A process that was suspended during a save therefore modifies nothing in a run that another process has taken over.
#[derive(Clone, Debug)]
pub struct FencedDisk(Fence);

impl FencedDisk {
    /// Creates a disk for the holder of `fence`.
    pub fn new(fence: Fence) -> Self {
        Self(fence)
    }
}

impl Disk for FencedDisk {
    fn permit(&self) -> io::Result<()> {
        self.0.check_now().map_err(io::Error::other)
    }
}
