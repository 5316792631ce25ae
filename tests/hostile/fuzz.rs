//! Every reader on mutated files, in a process with its own limits.

use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::mutate::Mutator;
use super::targets::TARGETS;
use super::*;

/// Address space beyond what the process uses at the start: the fixed limits of the readers, and some more.
const HEADROOM: u64 = 1 << 30;
/// Maximum time per case, on a machine with other load.
const SLOW: Duration = Duration::from_secs(60);
/// Seconds of fuzzing: normally, and with TORTURE set.
const SECONDS: [u64; 2] = [6, 300];

#[test]
fn no_reader_panics_hangs_or_allocates_for_missing_data() {
    if let Ok(folder) = std::env::var("FUZZ_IN") {
        return child(Path::new(&folder));
    }
    let seed = test_support::seed();
    let seconds = SECONDS[usize::from(test_support::torture())];
    let copy = copy();
    let name = "hostile::fuzz::no_reader_panics_hangs_or_allocates_for_missing_data";
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env("FUZZ_IN", copy.path())
        .env("SEED", seed.to_string())
        .env("FUZZ_SECONDS", seconds.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + Duration::from_secs(seconds) + 6 * SLOW;
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break Some(status);
        }
        if Instant::now() > deadline {
            child.kill().unwrap();
            child.wait().unwrap();
            break None;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let at = std::fs::read_to_string(copy.path().join("case")).unwrap_or_default();
    assert!(
        status.is_some_and(|status| status.success()),
        "SEED={seed}: {status:?} (none: it hung) at {at}"
    );
    println!("{at}");
}

fn child(folder: &Path) {
    let number = |name: &str| std::env::var(name).unwrap().parse::<u64>().unwrap();
    let (seed, seconds) = (number("SEED"), number("FUZZ_SECONDS"));
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
    let kilobytes: u64 = size.trim().trim_end_matches(" kB").parse().unwrap();
    let limit = kilobytes * 1024 + HEADROOM;
    let maximum = getrlimit(Resource::As).maximum;
    setrlimit(Resource::As, Rlimit { current: Some(limit), maximum }).unwrap();
    let started = Instant::now();
    let mut case = 0;
    while started.elapsed().as_secs() < seconds {
        for (name, target) in TARGETS {
            // Written first, so that the case is known even if the process is killed from outside.
            std::fs::write(folder.join("case"), format!("case {case}, {name}")).unwrap();
            let began = Instant::now();
            target(folder, &mut Mutator::new(seed, case));
            assert!(began.elapsed() < SLOW, "case {case}, {name}: {:?}", began.elapsed());
            case += 1;
        }
    }
}
