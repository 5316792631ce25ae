//! A lease ensures that a run has a single writer. It has a heartbeat, and a number that fences off earlier owners.
//!
//! `RUN/lease/attempt-00000003.json` describes the owner of the third attempt. The file appears complete under a name
//! that only one process can get (link(2) is atomic, even over NFS), so each number has one owner; the owner of the
//! highest number is the writer. It sets the mtime of its file every ten seconds. A process that finds no recent
//! heartbeat ([`judge`]) takes the next number, and the earlier owner, if it is still alive, notices this before its
//! next write ([`Fence`]). File locks are not used: correctness depends on unique names, rename, and the attempt number
//! in every record and manifest.
//!
//! The file with the highest number is never removed, even when the lease is released. A slow candidate therefore
//! either fails to get its number or sees a higher number right afterwards.

mod fence;
mod files;
mod judge;
mod observation;
mod owner;

use std::fmt;
use std::fs::File;
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::publish::{create_folder, publish_bytes};
use crate::{Error, Exit, Result, note, time, warn};
pub use fence::{Fence, FencedDisk};
use files::{Candidate, is_link, mark_released, numbers, path_of, remove_older, touch};
use judge::{Verdict, judge};
pub use observation::{Observation, observe};
pub use owner::{HEARTBEAT_VARIABLE, Owner};

/// The lease of a run, held by this process until it is dropped.
#[derive(Debug)]
pub struct Lease {
    fence: Fence,
    owner: Owner,
    path: std::path::PathBuf,
    heart: Option<(Sender<()>, JoinHandle<()>)>,
}

/// Another process that holds the run.
#[derive(Clone, Debug, PartialEq)]
pub struct Holder {
    /// Attempt number of the process.
    pub attempt: u64,
    /// The owner of the lease, if its file can be read.
    pub owner: Option<Owner>,
    /// Time since the last heartbeat.
    pub age: Duration,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { attempt, owner, age } = self;
        let owner = owner.as_ref().map(|owner| format!(" {owner}, since {},", owner.since));
        let (owner, age) = (owner.unwrap_or_default(), age.as_secs_f64());
        write!(f, "attempt {attempt},{owner} last heartbeat {age:.0} s ago")
    }
}

impl Lease {
    /// Takes the lease in `folder` (RUN/lease). `first` returns the attempt number for a run without a lease; it is
    /// called before the directory is read. When `stop` returns true, the wait for a stale owner ends.
    ///
    /// Errors: 75 when another process holds the run (the message names it) or `stop` returned true; 66 when the
    /// directory or a file in it is a link; 73.
    pub fn take(
        folder: &Path,
        first: impl FnOnce() -> Result<u64>,
        stop: &dyn Fn() -> bool,
    ) -> Result<Self> {
        Self::take_as(Owner::this_process(), folder, first, stop)
    }

    fn take_as(
        owner: Owner,
        folder: &Path,
        first: impl FnOnce() -> Result<u64>,
        stop: &dyn Fn() -> bool,
    ) -> Result<Self> {
        if folder.is_symlink() {
            return Err(is_link(folder));
        }
        create_folder(folder)?;
        // Call `first` before reading the directory: as long as there is no lease, no process changes what `first`
        // reads, so all candidates compute the same number.
        let first = first()?;
        let candidate = Candidate::new(folder, &owner)?;
        loop {
            let (number, why) = match newest(folder)? {
                None => (first, String::new()),
                Some(held) => {
                    match judge(&path_of(folder, held), held, &candidate, &owner, stop)? {
                        Verdict::Free(why) => (next(folder, held)?, why),
                        Verdict::Held(holder) => return Err(refused(folder, &holder)),
                        Verdict::Vanished => continue,
                    }
                }
            };
            let path = path_of(folder, number);
            if !candidate.take(&path)? {
                continue; // another candidate was faster; read its lease
            }
            if newest(folder)? != Some(number) {
                // The number was free because its owner has already finished. A link below the highest number has no
                // effect.
                let _ = std::fs::remove_file(&path); // otherwise the owner removes it
                continue;
            }
            if !why.is_empty() {
                note!("{why}: taking over as attempt {number}");
            }
            remove_older(folder, number);
            return Self::begin(owner, folder, number);
        }
    }

    fn begin(owner: Owner, folder: &Path, number: u64) -> Result<Self> {
        let (path, beat) = (path_of(folder, number), owner.beat());
        let opened = touch(&path).and_then(|()| File::open(folder));
        let opened = opened.map_err(|cause| Error::io(&path, cause))?;
        let fence = Fence::new(folder.to_path_buf(), opened, number, beat);
        let (stop, stopped) = mpsc::channel();
        let (file, watched) = (path.clone(), fence.clone());
        let heart = std::thread::Builder::new().name("heartbeat".into()).spawn(move || {
            let mut warned = false;
            while stopped.recv_timeout(beat) == Err(RecvTimeoutError::Timeout) {
                if watched.check_now().is_err() {
                    return;
                }
                if let Err(cause) = touch(&file)
                    && !std::mem::replace(&mut warned, true)
                {
                    warn!("the heartbeat of the lease {}: {cause}", file.display());
                }
            }
        });
        let heart = heart.map_err(|cause| Error::io(&path, cause))?;
        Ok(Self { fence, owner, path, heart: Some((stop, heart)) })
    }

    /// Returns the fence to check before every write.
    pub fn fence(&self) -> &Fence {
        &self.fence
    }

    /// Returns the number of this attempt, starting at 1.
    pub fn attempt(&self) -> u64 {
        self.fence.attempt()
    }
}

/// Releases the lease if this process still holds it, so that the next attempt need not wait.
impl Drop for Lease {
    fn drop(&mut self) {
        if let Some((stop, heart)) = self.heart.take() {
            drop(stop);
            let _ = heart.join(); // if it panicked, the message is already printed
        }
        if self.fence.check_now().is_err() {
            return;
        }
        self.owner.released = Some(time::now_utc());
        let text = serde_json::to_vec_pretty(&self.owner).map_err(Error::bug);
        if text.and_then(|text| publish_bytes(&self.path, &text)).is_err() {
            // The mtime can be set even on a full disk.
            mark_released(&self.path).unwrap_or_else(|cause| {
                let path = self.path.display();
                warn!("{path}: {cause}: lease not released, the next attempt may have to wait");
            });
        }
    }
}

fn newest(folder: &Path) -> Result<Option<u64>> {
    let found = numbers(folder).map_err(|cause| Error::open(folder, cause))?;
    Ok(found.into_iter().max())
}

/// Returns the number after `held`. Errors: 65 when `held` is the largest possible number.
fn next(folder: &Path, held: u64) -> Result<u64> {
    held.checked_add(1).ok_or_else(|| {
        let path = path_of(folder, held);
        let path = path.display();
        Error::data(format!(
            "{path}: no attempt can have a higher number; remove the file if no process is using the run"
        ))
    })
}

fn refused(folder: &Path, holder: &Holder) -> Error {
    let run = folder.parent().unwrap_or(folder).display();
    Error::new(Exit::Again, format!("{run} is in use by {holder}; nothing was done"))
}

#[cfg(test)]
mod tests;
