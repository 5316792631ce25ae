//! What keeps an owner that lost its lease from writing.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::files::{look, numbers, path_of};
use crate::{Error, Exit, Result};

/// Asked before every write. Cheap to copy.
#[derive(Clone, Debug)]
pub struct Fence(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    folder: PathBuf,
    number: u64,
    /// How long a look is trusted: far less than it takes until another process may take over.
    trust: Duration,
    looked: Mutex<Instant>,
    lost: OnceLock<String>,
}

impl Fence {
    pub(super) fn new(folder: PathBuf, number: u64, beat: Duration) -> Self {
        let trust = (beat / 10).min(Duration::from_secs(1));
        let looked = Mutex::new(Instant::now());
        Self(Arc::new(Inner { folder, number, trust, looked, lost: OnceLock::new() }))
    }

    /// The number of this attempt.
    pub fn attempt(&self) -> u64 {
        self.0.number
    }

    /// Whether the lease is still ours, as far as a look within the last second tells; for records of
    /// a log. Errors: 75, with who has it now.
    pub fn check(&self) -> Result<()> {
        // A process that was stopped and goes on finds its last look long ago.
        let looked = *self.0.looked.lock().unwrap_or_else(PoisonError::into_inner);
        if self.0.lost.get().is_none() && looked.elapsed() < self.0.trust {
            return Ok(());
        }
        self.look()
    }

    /// Whether the lease is ours at this moment; before a file is published. Errors: 75, with who
    /// has it now.
    pub fn look(&self) -> Result<()> {
        let inner = &*self.0;
        if inner.lost.get().is_none() {
            let started = Instant::now();
            if let Some(why) = self.loss() {
                let _ = inner.lost.set(why); // set by another thread: the same
            }
            *inner.looked.lock().unwrap_or_else(PoisonError::into_inner) = started;
        }
        match inner.lost.get() {
            None => Ok(()),
            Some(why) => Err(Error::new(
                Exit::Again,
                format!("attempt {} stops and writes nothing more: {why}", inner.number),
            )),
        }
    }

    /// Why the lease is not ours any more. A disk that does not answer is no reason.
    fn loss(&self) -> Option<String> {
        let removed =
            || format!("{} was removed", path_of(&self.0.folder, self.0.number).display());
        let found = match numbers(&self.0.folder) {
            Ok(found) => found,
            Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => return Some(removed()),
            Err(_) => return None,
        };
        let newest = found.iter().copied().max().unwrap_or(0);
        if newest > self.0.number {
            let owner = look(&path_of(&self.0.folder, newest)).ok().flatten();
            let who =
                owner.and_then(|look| look.owner).map_or(String::new(), |o| format!(" ({o})"));
            return Some(format!("attempt {newest}{who} took the run over"));
        }
        (!found.contains(&self.0.number)).then(removed)
    }
}
