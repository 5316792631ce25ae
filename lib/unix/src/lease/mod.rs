//! One writer for a run: a lease with a heartbeat, and a number that fences older owners off.
//!
//! `RUN/lease/attempt-00000003.json` says who the third start is. The file appears whole under a name
//! that only one process can get (link(2), atomic also over NFS), so a number has one owner; the
//! highest number is the writer. Its owner sets the file's time every ten seconds. Who finds that it
//! has stopped doing so ([`judge`]) takes the next number, and the older owner, should it live after
//! all, sees that before its next write ([`Fence`]). No lock is trusted: correctness rests on unique
//! names, rename and the number that every record and manifest carries.
//!
//! The file with the highest number is never removed, also not when the lease is given back. So a
//! candidate that was slow either does not get its number, or sees a higher one right after.

mod disk;
mod fence;
mod files;
mod judge;
mod owner;
mod seen;

use std::fmt;
use std::fs::File;
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::publish::{create_folder, publish_bytes};
use crate::{Error, Exit, Result, note, time, warn};
pub use disk::FencedDisk;
pub use fence::Fence;
use files::{Candidate, mark_released, numbers, path_of, remove_older, touch};
use judge::{Verdict, judge};
pub use owner::{HEARTBEAT_VARIABLE, Owner};
pub use seen::{Seen, see};

/// The lease of a run, held by this process until it is dropped.
#[derive(Debug)]
pub struct Lease {
    fence: Fence,
    owner: Owner,
    path: std::path::PathBuf,
    heart: Option<(Sender<()>, JoinHandle<()>)>,
}

/// Another process that is at work on the run.
#[derive(Clone, Debug, PartialEq)]
pub struct Holder {
    /// Its attempt.
    pub attempt: u64,
    /// Who it is, if its file can be read.
    pub owner: Option<Owner>,
    /// Since its last heartbeat.
    pub age: Duration,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let age = self.age.as_secs_f64();
        match &self.owner {
            Some(owner) => write!(
                f,
                "attempt {}, {owner}, since {}, last sign of life {age:.0} s ago",
                self.attempt, owner.since
            ),
            None => write!(f, "attempt {}, last sign of life {age:.0} s ago", self.attempt),
        }
    }
}

impl Lease {
    /// Takes the lease kept in `folder` (RUN/lease). `first` gives the number for a run that never
    /// had a lease; it is asked before the folder is looked at. `stop` tells that waiting for a stale
    /// owner must end.
    ///
    /// Errors: 75 when another process is at work, with its name, or when `stop` became true; 73.
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
        create_folder(folder)?;
        // In this order: where there is no lease yet, nobody has changed what `first` is made of, and
        // all candidates want the same number.
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
                continue; // another candidate was faster: see who
            }
            if newest(folder)? != Some(number) {
                // The number was free because its owner has been and gone. A link under a number
                // below the highest means nothing.
                let _ = std::fs::remove_file(&path); // else the owner does it
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
                if watched.look().is_err() {
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

    /// What every write has to ask.
    pub fn fence(&self) -> &Fence {
        &self.fence
    }

    /// The number of this attempt, from 1.
    pub fn attempt(&self) -> u64 {
        self.fence.attempt()
    }
}

/// Gives the lease back, if it is still ours: the next start need not wait.
impl Drop for Lease {
    fn drop(&mut self) {
        if let Some((stop, heart)) = self.heart.take() {
            drop(stop);
            let _ = heart.join(); // a heart that died has said why
        }
        if self.fence.look().is_err() {
            return;
        }
        self.owner.released = Some(time::now_utc());
        let text = serde_json::to_vec_pretty(&self.owner).map_err(Error::bug);
        if text.and_then(|text| publish_bytes(&self.path, &text)).is_err() {
            // On a full disk a time can still be set.
            mark_released(&self.path).unwrap_or_else(|cause| {
                let path = self.path.display();
                warn!("{path}: {cause}: not given back, the next start may have to wait");
            });
        }
    }
}

fn newest(folder: &Path) -> Result<Option<u64>> {
    let found = numbers(folder).map_err(|cause| Error::open(folder, cause))?;
    Ok(found.into_iter().max())
}

/// The number after `held`. Errors: 65 when there is none.
fn next(folder: &Path, held: u64) -> Result<u64> {
    held.checked_add(1).ok_or_else(|| {
        let path = path_of(folder, held);
        Error::data(format!(
            "{}: no attempt can have a higher number; remove the file if no process works on the run",
            path.display()
        ))
    })
}

fn refused(folder: &Path, holder: &Holder) -> Error {
    let run = folder.parent().unwrap_or(folder).display();
    Error::new(Exit::Again, format!("{run} is being worked on by {holder}; nothing was done"))
}

#[cfg(test)]
mod tests;
