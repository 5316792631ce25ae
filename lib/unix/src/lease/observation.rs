//! Inspects a lease without taking it: for reports, and before submitting a job that would only be rejected.
//!
//! The result is advisory, because ages are measured with this host's clock. A wrong answer costs one attempt, which
//! then tries to take the lease itself.

use std::path::Path;
use std::time::{Duration, SystemTime};

use super::files::{RELEASED, path_of, read_lease};
use super::judge::STALE_HEARTBEATS;
use super::{Owner, newest};
use crate::Result;

/// The newest attempt of a run according to its lease.
#[derive(Clone, Debug, PartialEq)]
pub struct Observation {
    /// Number of the attempt.
    pub attempt: u64,
    /// The owner of the lease, if its file can be read.
    pub owner: Option<Owner>,
    /// Time since the last heartbeat; `None` if the mtime marks the lease as released.
    pub age: Option<Duration>,
    /// Whether the owner appears to be running: it has not released the lease, it has not exited on this machine, and
    /// its last heartbeat is recent.
    pub is_at_work: bool,
}

/// Reads the lease in `folder` (RUN/lease); `None` if the run has never had one. Errors: 66.
pub fn observe(folder: &Path) -> Result<Option<Observation>> {
    if !folder.is_dir() {
        return Ok(None);
    }
    // The file may disappear before it is read, when another attempt takes over.
    for _ in 0..3 {
        let Some(attempt) = newest(folder)? else { return Ok(None) };
        let Some(found) = read_lease(&path_of(folder, attempt))? else { continue };
        let me = Owner::this_process();
        let age = SystemTime::now().duration_since(found.beaten).unwrap_or_default();
        let beat = found.owner.as_ref().map_or(me.beat(), Owner::beat);
        let released = found.owner.as_ref().is_some_and(|owner| owner.released.is_some());
        let ended = found.owner.as_ref().is_some_and(|owner| owner.is_gone(&me));
        let age = (found.beaten != RELEASED).then_some(age);
        let is_at_work =
            !released && !ended && age.is_some_and(|age| age <= STALE_HEARTBEATS * beat);
        return Ok(Some(Observation { attempt, owner: found.owner, age, is_at_work }));
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::Lease;

    #[test]
    fn at_work_until_given_back() {
        let folder = tempfile::tempdir().unwrap();
        let lease = folder.path().join("lease");
        assert_eq!(observe(&lease).unwrap(), None);
        let taken = Lease::take(&lease, || Ok(4), &|| false).unwrap();
        let seen = observe(&lease).unwrap().unwrap();
        assert_eq!((seen.attempt, seen.is_at_work), (4, true));
        assert_eq!(seen.owner.unwrap().pid, std::process::id());
        drop(taken);
        let seen = observe(&lease).unwrap().unwrap();
        assert_eq!((seen.attempt, seen.is_at_work), (4, false));
    }

    #[test]
    fn silent_for_too_long_is_not_at_work() {
        let folder = tempfile::tempdir().unwrap();
        let taken = Lease::take(folder.path(), || Ok(1), &|| false).unwrap();
        let file = std::fs::File::options().write(true).open(path_of(folder.path(), 1)).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(3600)).unwrap();
        let seen = observe(folder.path()).unwrap().unwrap();
        assert!(!seen.is_at_work && seen.age > Some(Duration::from_secs(3500)), "{seen:?}");
        // Simulate a release on a full disk: the mtime is not a heartbeat, so there is no age.
        file.set_modified(RELEASED).unwrap();
        let seen = observe(folder.path()).unwrap().unwrap();
        assert!(!seen.is_at_work && seen.age.is_none(), "{seen:?}");
        drop(taken);
    }
}
