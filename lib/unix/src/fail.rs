//! Failpoints: places where a test can make a program fail.
//!
//! With the feature `failpoints`, `FAIL=POINT:N=ACTION` triggers ACTION the N-th time that POINT is reached; `N+`
//! triggers it every time from then on. Several specifications are separated by commas. Actions: `kill` the process,
//! `sleep` for a second, `hold` while the current directory contains a file [`HOLD`], or return the error `eio` or
//! `enospc` as the disk would. The points in [`FLIPS`] accept only `flip`, which flips a bit of the data in memory.
//! Without the feature, a point compiles to nothing; release builds with the feature are rejected.

#[cfg(all(feature = "failpoints", not(debug_assertions)))]
compile_error!("the feature `failpoints` is for tests: it must not be enabled in a release build");

/// The failpoints, in the order in which a save reaches them. Every published file, directory and link passes through
/// the failpoints that start with `publish`.
pub const POINTS: [&str; 18] = [
    "status.write",
    "log.write",
    "publish.created",
    "publish.written",
    "publish.synced",
    "publish.renamed",
    "save.begin",
    "save.after_create",
    "save.after_shard",
    "save.before_manifest",
    "save.after_manifest",
    "save.after_rename",
    "save.after_verify",
    "save.after_latest",
    "save.before_prune",
    "save.after_trash",
    "save.after_prune",
    "save.end",
];

/// Name of the file in the current directory that makes the action `hold` wait at its point while the file exists.
pub const HOLD: &str = "hold";

/// Failpoints before a read whose failure does not end the run: hashing an input file, and any read that is repeated
/// ([`crate::retry`]).
pub const READS: [&str; 2] = ["inputs.hash", "inputs.read"];

/// Failpoints at which memory can be corrupted: the parameters after an update, and those read back from an exported model.
pub const FLIPS: [&str; 2] = ["update.parameters", "export.written"];

/// A failpoint; without the feature it does nothing.
#[cfg(not(feature = "failpoints"))]
#[inline(always)]
pub fn point(_name: &str) -> std::io::Result<()> {
    Ok(())
}

/// Whether to flip a bit at this failpoint.
#[cfg(not(feature = "failpoints"))]
#[inline(always)]
pub fn flips(_name: &str) -> bool {
    false
}

/// Returns how long data that other processes append to file `number` stays invisible to this process, as on a network
/// file system whose clients cache open files. Only tests set a delay, of up to [`DELAY_VARIABLE`] seconds.
#[cfg(not(feature = "failpoints"))]
#[inline(always)]
pub fn visibility_delay(_number: u64) -> std::time::Duration {
    std::time::Duration::ZERO
}

/// Environment variable with the maximum of [`visibility_delay`] in seconds.
pub const DELAY_VARIABLE: &str = "LONGHAUL_VISIBILITY_DELAY";

#[cfg(feature = "failpoints")]
pub use on::{flips, point, visibility_delay};

#[cfg(feature = "failpoints")]
mod on {
    use std::io;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use super::{FLIPS, HOLD, POINTS, READS};

    struct Hit {
        point: String,
        nth: u64,
        and_on: bool,
        action: Action,
        reached: AtomicU64,
    }

    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Action {
        Kill,
        Sleep,
        Hold,
        Flip,
        Error(rustix::io::Errno),
    }

    /// A failpoint. Errors: the error that `FAIL` specifies.
    pub fn point(name: &str) -> io::Result<()> {
        let is_known = POINTS.contains(&name) || READS.contains(&name);
        debug_assert!(is_known, "{name} is in no list of points");
        due(name).into_iter().try_for_each(act)
    }

    /// Whether to flip a bit at this failpoint.
    pub fn flips(name: &str) -> bool {
        debug_assert!(FLIPS.contains(&name), "{name} is not in the list of flips");
        !due(name).is_empty()
    }

    /// Returns a fraction of the maximum delay that differs between processes and files.
    pub fn visibility_delay(number: u64) -> Duration {
        let longest = std::env::var(super::DELAY_VARIABLE).ok().and_then(|text| text.parse().ok());
        let mixed =
            (u64::from(std::process::id()) << 32 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let share = (mixed >> 40) as f64 / (1u64 << 24) as f64;
        Duration::try_from_secs_f64(longest.unwrap_or(0.0) * share).unwrap_or_default()
    }

    /// Counts another pass through this point and returns the actions that are due.
    fn due(name: &str) -> Vec<Action> {
        static HITS: OnceLock<Vec<Hit>> = OnceLock::new();
        let hits = HITS.get_or_init(|| {
            let text = std::env::var("FAIL").unwrap_or_default();
            parse(&text).unwrap_or_else(|| {
                eprintln!(
                    "FAIL={text}: expected POINT:N=kill|eio|enospc|sleep|hold, or {}:N=flip",
                    FLIPS[0]
                );
                std::process::exit(crate::Exit::Usage as i32)
            })
        });
        let mut actions = Vec::new();
        for hit in hits.iter().filter(|hit| hit.point == name) {
            let reached = hit.reached.fetch_add(1, Ordering::Relaxed) + 1;
            if reached == hit.nth || hit.and_on && reached > hit.nth {
                eprintln!("failpoint {name}:{reached}");
                actions.push(hit.action);
            }
        }
        actions
    }

    fn act(action: Action) -> io::Result<()> {
        match action {
            Action::Kill => {
                let own = rustix::process::getpid();
                rustix::process::kill_process(own, rustix::process::Signal::KILL)?;
                // Wait until the signal arrives.
                loop {
                    std::thread::sleep(Duration::from_secs(1));
                }
            }
            Action::Sleep => std::thread::sleep(Duration::from_secs(1)),
            Action::Hold => {
                while std::path::Path::new(HOLD).exists() {
                    std::thread::sleep(Duration::from_millis(2));
                }
            }
            Action::Flip => {} // the caller flips the bit
            Action::Error(errno) => return Err(errno.into()),
        }
        Ok(())
    }

    fn parse(text: &str) -> Option<Vec<Hit>> {
        let one = |text: &str| {
            let (place, action) = text.split_once('=')?;
            let (point, nth) = place.split_once(':')?;
            let and_on = nth.ends_with('+');
            let action = match action {
                "kill" => Action::Kill,
                "sleep" => Action::Sleep,
                "hold" => Action::Hold,
                "eio" => Action::Error(rustix::io::Errno::IO),
                "enospc" => Action::Error(rustix::io::Errno::NOSPC),
                "flip" => Action::Flip,
                _ => return None,
            };
            let nth = nth.trim_end_matches('+').parse().ok()?;
            let is_point = match action {
                Action::Flip => FLIPS.contains(&point),
                _ => POINTS.contains(&point) || READS.contains(&point),
            };
            let known = is_point && nth > 0;
            let reached = AtomicU64::new(0);
            known.then(|| Hit { point: point.into(), nth, and_on, action, reached })
        };
        text.split(',').filter(|part| !part.is_empty()).map(one).collect()
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn what_is_meant_is_read_and_nothing_else() {
            let hits =
                parse("log.write:3+=enospc,save.after_shard:1=kill,update.parameters:2=flip");
            let hits = hits.unwrap();
            assert_eq!((hits[0].nth, hits[0].and_on), (3, true));
            assert_eq!((hits[1].action, hits[1].and_on), (Action::Kill, false));
            assert_eq!((hits[2].action, hits[2].nth), (Action::Flip, 2));
            assert!(parse("").unwrap().is_empty());
            for bad in [
                "save",
                "save.begin=kill",
                "save.begin:0=kill",
                "save.begin:1=die",
                "x:1=eio",
                "save.begin:1=flip",
                "update.parameters:1=kill",
            ] {
                assert!(parse(bad).is_none(), "{bad}");
            }
        }
    }
}
