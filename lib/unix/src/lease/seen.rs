//! A look at a lease from outside: for reports, and before a job is submitted that would only be refused.
//!
//! It decides nothing. Ages are told by this host's clock, and a wrong answer costs a start that finds out.

use std::path::Path;
use std::time::{Duration, SystemTime};

use super::files::{RELEASED, look, path_of};
use super::judge::STALE;
use super::{Owner, newest};
use crate::Result;

/// The newest attempt of a run, as its lease tells.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    /// Its number.
    pub attempt: u64,
    /// Who it is, if its file can be read.
    pub owner: Option<Owner>,
    /// Since its last sign of life; none if the time of its file was set to say that it gave the lease back.
    pub age: Option<Duration>,
    /// Whether it is at work, as far as is known: it did not give the lease back, did not end on this
    /// machine, and was not silent for too long.
    pub is_at_work: bool,
}

/// Looks at the lease in `folder` (RUN/lease); nothing where there was never one. Errors: 66.
pub fn see(folder: &Path) -> Result<Option<Seen>> {
    if !folder.is_dir() {
        return Ok(None);
    }
    // The file may go while we look, when another attempt takes over.
    for _ in 0..3 {
        let Some(attempt) = newest(folder)? else { return Ok(None) };
        let Some(found) = look(&path_of(folder, attempt))? else { continue };
        let me = Owner::this_process();
        let age = SystemTime::now().duration_since(found.beaten).unwrap_or_default();
        let beat = found.owner.as_ref().map_or(me.beat(), Owner::beat);
        let released = found.owner.as_ref().is_some_and(|owner| owner.released.is_some());
        let ended = found.owner.as_ref().is_some_and(|owner| owner.is_gone(&me));
        let age = (found.beaten != RELEASED).then_some(age);
        let is_at_work = !released && !ended && age.is_some_and(|age| age <= STALE * beat);
        return Ok(Some(Seen { attempt, owner: found.owner, age, is_at_work }));
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
        assert_eq!(see(&lease).unwrap(), None);
        let taken = Lease::take(&lease, || Ok(4), &|| false).unwrap();
        let seen = see(&lease).unwrap().unwrap();
        assert_eq!((seen.attempt, seen.is_at_work), (4, true));
        assert_eq!(seen.owner.unwrap().pid, std::process::id());
        drop(taken);
        let seen = see(&lease).unwrap().unwrap();
        assert_eq!((seen.attempt, seen.is_at_work), (4, false));
    }

    #[test]
    fn silent_for_too_long_is_not_at_work() {
        let folder = tempfile::tempdir().unwrap();
        let taken = Lease::take(folder.path(), || Ok(1), &|| false).unwrap();
        let file = std::fs::File::options().write(true).open(path_of(folder.path(), 1)).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(3600)).unwrap();
        let seen = see(folder.path()).unwrap().unwrap();
        assert!(!seen.is_at_work && seen.age > Some(Duration::from_secs(3500)), "{seen:?}");
        // Given back on a full disk: no time of a heartbeat, and no age.
        file.set_modified(RELEASED).unwrap();
        let seen = see(folder.path()).unwrap().unwrap();
        assert!(!seen.is_at_work && seen.age.is_none(), "{seen:?}");
        drop(taken);
    }
}
