//! Decides whether the lease of another process is still valid.
//!
//! Clocks alone are not trusted. The age of a heartbeat is the difference between two times of the same file system, so
//! the clocks of the hosts need not agree. Because that clock may jump, an old heartbeat only starts a waiting period,
//! measured by the monotonic clock of this process, in which a live owner would send another heartbeat. Time during
//! which this process was suspended does not count, because the owner may have been suspended at the same time.

use std::path::Path;
use std::time::{Duration, Instant};

use super::files::{Candidate, LeaseFile, RELEASED, read_lease};
use super::{Holder, Owner};
use crate::{Error, Exit, Result, note};

/// Number of missed heartbeats after which a lease looks stale: at the default interval of 10 s, 3 heartbeats and 60 s
/// for the caches of network file systems.
pub(super) const STALE_HEARTBEATS: u32 = 9;
/// Number of heartbeat intervals to wait once a lease looks stale.
const WATCH_HEARTBEATS: u32 = 3;

/// The verdict on a lease.
pub(super) enum Verdict {
    /// The lease may be taken over, for this reason.
    Free(String),
    /// The lease is valid.
    Held(Box<Holder>),
    /// The file no longer exists: another candidate was faster.
    Vanished,
}

/// Checks the lease `number` at `path`. Errors: 75 when `stop` returns true while waiting; 66.
pub(super) fn judge(
    path: &Path,
    number: u64,
    candidate: &Candidate,
    me: &Owner,
    stop: &dyn Fn() -> bool,
) -> Result<Verdict> {
    let Some(first) = read_lease(path)? else { return Ok(Verdict::Vanished) };
    if let Some(free) = released_or_gone(&first, me) {
        return Ok(free);
    }
    let beat = first.owner.as_ref().unwrap_or(me).beat();
    let now = candidate.now()?;
    let age = now.duration_since(first.beaten);
    let held = |owner: Option<Owner>, age| {
        Ok(Verdict::Held(Box::new(Holder { attempt: number, owner, age })))
    };
    let wait = match &age {
        _ if first.owner.as_ref().is_some_and(|o| o.is_earlier_attempt_of(me)) => {
            WATCH_HEARTBEATS * beat
        }
        Ok(age) if *age > STALE_HEARTBEATS * beat => WATCH_HEARTBEATS * beat,
        // The heartbeat is in the future: a clock was set back, so the age is meaningless.
        Err(ahead) if ahead.duration() > beat => STALE_HEARTBEATS * beat,
        _ => return held(first.owner, age.unwrap_or_default()),
    };
    let age = age.unwrap_or_default();
    let who = first.owner.as_ref().map_or("an unknown process".into(), ToString::to_string);
    note!(
        "attempt {number} ({who}) sent its last heartbeat {:.0} s ago; watching for {:.0} s",
        age.as_secs_f64(),
        wait.as_secs_f64()
    );
    let (began, pause) = (Instant::now(), (beat / 10).min(Duration::from_secs(1)));
    let mut watched = Duration::ZERO;
    while watched < wait {
        if stop() {
            return Err(Error::new(Exit::Again, "stopped while waiting for the lease of the run"));
        }
        let since = Instant::now();
        std::thread::sleep(pause);
        watched += since.elapsed().min(2 * pause);
        let Some(now) = read_lease(path)? else { return Ok(Verdict::Vanished) };
        if let Some(free) = released_or_gone(&now, me) {
            return Ok(free);
        }
        if now.beaten != first.beaten {
            return held(now.owner, Duration::ZERO);
        }
    }
    Ok(Verdict::Free(format!(
        "{who} sent no heartbeat for {:.0} s",
        (age + began.elapsed()).as_secs_f64()
    )))
}

/// Whether the lease can be taken without waiting.
fn released_or_gone(read_lease: &LeaseFile, me: &Owner) -> Option<Verdict> {
    let released = |owner: &Owner| owner.released.is_some();
    if read_lease.beaten == RELEASED || read_lease.owner.as_ref().is_some_and(released) {
        return Some(Verdict::Free(String::new()));
    }
    let owner = read_lease.owner.as_ref()?;
    owner.is_gone(me).then(|| Verdict::Free(format!("{owner} is gone")))
}
