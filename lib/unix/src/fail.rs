//! Points at which a test lets a program fail.
//!
//! With the feature `failpoints`, `FAIL=POINT:N=ACTION` hits the N-th time that POINT is reached, and
//! `N+` every time from then on; more are given with commas. Actions: `kill` the process, `sleep` for a
//! second, `hold` as long as the current folder has a file [`HOLD`], or return the error `eio` or `enospc` as
//! the disk would. At a point of [`FLIPS`] the one action is `flip`: a bit of what is in memory there. Without
//! the feature a point is nothing at all; a release build with it is refused.

#[cfg(all(feature = "failpoints", not(debug_assertions)))]
compile_error!("the feature `failpoints` is for tests: it does not belong into a release build");

/// The points, in the order in which a save meets them. Those of `publish` are met by every file, folder
/// and link that is published.
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

/// The file in the current folder that holds a program at a point with the action `hold`.
pub const HOLD: &str = "hold";

/// Points at which a file is only read, and a fault costs the run nothing: before an input file is hashed.
pub const READS: [&str; 1] = ["inputs.hash"];

/// Points at which memory can err: the parameters after an update.
pub const FLIPS: [&str; 1] = ["update.parameters"];

/// A step of the program, at which it may be made to fail.
#[cfg(not(feature = "failpoints"))]
#[inline(always)]
pub fn point(_name: &str) -> std::io::Result<()> {
    Ok(())
}

/// Whether a bit is to be flipped at this point.
#[cfg(not(feature = "failpoints"))]
#[inline(always)]
pub fn flips(_name: &str) -> bool {
    false
}

#[cfg(feature = "failpoints")]
pub use on::{flips, point};

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

    /// A step of the program, at which it may be made to fail.
    pub fn point(name: &str) -> io::Result<()> {
        let is_known = POINTS.contains(&name) || READS.contains(&name);
        debug_assert!(is_known, "{name} is in no list of points");
        due(name).into_iter().try_for_each(act)
    }

    /// Whether a bit is to be flipped at this point.
    pub fn flips(name: &str) -> bool {
        debug_assert!(FLIPS.contains(&name), "{name} is not in the list of flips");
        !due(name).is_empty()
    }

    /// What is to be done at this point, which is reached once more.
    fn due(name: &str) -> Vec<Action> {
        static HITS: OnceLock<Vec<Hit>> = OnceLock::new();
        let hits = HITS.get_or_init(|| {
            let text = std::env::var("FAIL").unwrap_or_default();
            parse(&text).unwrap_or_else(|| {
                eprintln!(
                    "FAIL={text}: want POINT:N=kill|eio|enospc|sleep|hold, or {}:N=flip",
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
                // Until the signal arrives.
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
            Action::Flip => {} // by whoever asked
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
