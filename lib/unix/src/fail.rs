//! Points at which a test lets a program fail.
//!
//! With the feature `failpoints`, `FAIL=POINT:N=ACTION` hits the N-th time that POINT is reached, and
//! `N+` every time from then on; more are given with commas. Actions: `kill` the process, `sleep` for a
//! second, or return the error `eio` or `enospc` as the disk would. Without the feature a point is
//! nothing at all; a release build with it is refused.

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

/// A step of the program, at which it may be made to fail.
#[cfg(not(feature = "failpoints"))]
#[inline(always)]
pub fn point(_name: &str) -> std::io::Result<()> {
    Ok(())
}

#[cfg(feature = "failpoints")]
pub use on::point;

#[cfg(feature = "failpoints")]
mod on {
    use std::io;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use super::POINTS;

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
        Error(rustix::io::Errno),
    }

    /// A step of the program, at which it may be made to fail.
    pub fn point(name: &str) -> io::Result<()> {
        static HITS: OnceLock<Vec<Hit>> = OnceLock::new();
        debug_assert!(POINTS.contains(&name), "{name} is not in the list of points");
        let hits = HITS.get_or_init(|| {
            let text = std::env::var("FAIL").unwrap_or_default();
            parse(&text).unwrap_or_else(|| {
                eprintln!("FAIL={text}: want POINT:N=kill|eio|enospc|sleep");
                std::process::exit(crate::Exit::Usage as i32)
            })
        });
        // Counted for each before one of them returns.
        let counted = hits.iter().filter(|hit| hit.point == name).map(|hit| {
            let reached = hit.reached.fetch_add(1, Ordering::Relaxed) + 1;
            (hit, reached)
        });
        for (hit, reached) in counted.collect::<Vec<_>>() {
            if reached == hit.nth || hit.and_on && reached > hit.nth {
                eprintln!("failpoint {name}:{reached}");
                act(hit.action)?;
            }
        }
        Ok(())
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
                "eio" => Action::Error(rustix::io::Errno::IO),
                "enospc" => Action::Error(rustix::io::Errno::NOSPC),
                _ => return None,
            };
            let nth = nth.trim_end_matches('+').parse().ok()?;
            let known = POINTS.contains(&point) && nth > 0;
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
            let hits = parse("log.write:3+=enospc,save.after_shard:1=kill").unwrap();
            assert_eq!((hits[0].nth, hits[0].and_on), (3, true));
            assert_eq!((hits[1].action, hits[1].and_on), (Action::Kill, false));
            assert!(parse("").unwrap().is_empty());
            for bad in
                ["save", "save.begin=kill", "save.begin:0=kill", "save.begin:1=die", "x:1=eio"]
            {
                assert!(parse(bad).is_none(), "{bad}");
            }
        }
    }
}
