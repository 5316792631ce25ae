//! Prevents an owner that lost its lease from writing.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::files::{numbers, path_of, read_lease};
use crate::disk::{Disk, is_still_at};
use crate::{Error, Exit, Result};

/// Checked before every write. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Fence(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    folder: PathBuf,
    number: u64,
    /// How long the result of a check is trusted: far less than the time until another process may take over.
    trust: Duration,
    checked: Mutex<Instant>,
    /// The lease directory, held open so that no other directory can get its inode.
    opened: File,
    lost: OnceLock<Loss>,
}

/// How the lease was lost.
#[derive(Debug)]
struct Loss {
    why: String,
    /// No process took over the run: its directory was moved, removed or replaced.
    is_gone: bool,
}

impl Fence {
    pub(super) fn new(folder: PathBuf, opened: File, number: u64, beat: Duration) -> Self {
        let trust = (beat / 10).min(Duration::from_secs(1));
        let checked = Mutex::new(Instant::now());
        Self(Arc::new(Inner { folder, opened, number, trust, checked, lost: OnceLock::new() }))
    }

    /// The number of this attempt.
    pub fn attempt(&self) -> u64 {
        self.0.number
    }

    /// Whether this process still holds the lease, according to a check within the last second; used for log records.
    /// Errors: 75, naming the new owner.
    pub fn check(&self) -> Result<()> {
        // After a suspended process resumes, its last check is too old to be trusted.
        let checked = *self.0.checked.lock().unwrap_or_else(PoisonError::into_inner);
        if self.0.lost.get().is_none() && checked.elapsed() < self.0.trust {
            return Ok(());
        }
        self.check_now()
    }

    /// Whether this process holds the lease right now; used before a file is published. Errors: 75, naming the new
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

    /// Whether the run disappeared from its path without being taken over: another attempt would find something else
    /// there.
    pub fn is_gone(&self) -> bool {
        self.0.lost.get().is_some_and(|loss| loss.is_gone)
    }

    /// Why the lease was lost. A file system that does not respond does not count as a loss.
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

/// The file system of this machine; checks before each change of a name that the lease is still held. A process that
/// was suspended in the middle of a save therefore modifies nothing in a run that another process has taken over.
#[derive(Clone, Debug)]
pub struct FencedDisk(Fence);

impl FencedDisk {
    /// A disk for the holder of `fence`.
    pub fn new(fence: Fence) -> Self {
        Self(fence)
    }
}

impl Disk for FencedDisk {
    fn permit(&self) -> io::Result<()> {
        self.0.check_now().map_err(io::Error::other)
    }
}
