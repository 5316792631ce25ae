//! Shared by the tests of all crates: optional tools, seeds, the log of a run, and power cuts.

pub mod crash;

use std::ffi::OsStr;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// The seed of all tests, except under `make torture`.
const SEED: u64 = 20_261_123;

/// Whether a tool that a test needs was found. A test returns early when this is false.
///
/// As root and in CI (environment variable `CI`) a missing tool fails the test, because `make deps` can install it.
/// Elsewhere the skip is printed and counted ([`skip`]).
pub fn require(found: bool, tool: &str) -> bool {
    let can_install = rustix::process::geteuid().is_root() || std::env::var_os("CI").is_some();
    assert!(found || !can_install, "{tool} is missing: `make deps` installs it");
    if !found {
        skip(&format!("{tool} is missing"));
    }
    found
}

/// [`require`] for a program on the `PATH`; `words` are arguments that make it exit at once, such as `--version`.
pub fn require_program(program: &str, words: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(words).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    require(command.status().is_ok_and(|status| status.success()), program)
}

/// [`require`] for a file system that a test has tried to mount. With CAP_SYS_ADMIN the mount must succeed, because
/// wrong arguments of mount(8) are no reason to skip. Without it the test is skipped.
pub fn require_mount(mounted: bool) -> bool {
    const CAP_SYS_ADMIN: u64 = 21;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    let may_mount = effective.is_some_and(|mask| mask & 1 << CAP_SYS_ADMIN != 0);
    assert!(mounted || !may_mount, "mount failed although this process may mount");
    if !mounted {
        skip("mounting a file system requires CAP_SYS_ADMIN");
    }
    mounted
}

/// Prints that a test, or a part of it, was skipped, and why. `make test` counts the lines in `LONGHAUL_SKIPS`.
pub fn skip(why: &str) {
    let test = std::thread::current();
    let line = format!("SKIPPED: {}: {why}\n", test.name().unwrap_or("a test"));
    // Not with eprintln!, which the test harness captures.
    let _ = std::io::stderr().write_all(line.as_bytes()); // nobody reads it
    if let Some(path) = std::env::var_os("LONGHAUL_SKIPS") {
        let mut file =
            File::options().append(true).create(true).open(path).expect("LONGHAUL_SKIPS");
        file.write_all(line.as_bytes()).expect("LONGHAUL_SKIPS");
    }
}

/// Whether the long forms of the tests were requested: `make torture`.
pub fn torture() -> bool {
    std::env::var_os("TORTURE").is_some()
}

/// The seed of a test, printed so that it can be repeated: `SEED` if set, else a constant under `make test` and a new
/// one for each `make torture`.
pub fn seed() -> u64 {
    let given = std::env::var_os("SEED").as_deref().and_then(OsStr::to_str).map(str::parse);
    let seed = match given {
        Some(seed) => seed.expect("SEED is an integer"),
        None if torture() => {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            now.expect("a clock after 1970").as_nanos() as u64
        }
        None => SEED,
    };
    println!("SEED={seed}");
    seed
}

/// The records of updates and validations that were not superseded, without timings: the same for an interrupted and
/// resumed run as for an uninterrupted one, on any number of ranks.
pub fn logged(run: &Path) -> Vec<String> {
    let records = unix::log::read(&run.join("log.jsonl")).expect("a log").records;
    let is_result = |record: &serde_json::Map<_, _>| {
        ["update", "validation"].iter().any(|kind| record.get("kind").is_some_and(|k| k == kind))
    };
    let without_times = |mut record: serde_json::Map<String, serde_json::Value>| {
        for key in ["time", "attempt", "seconds", "cost", "data_wait_s", "comm_s", "comm_wait_s"] {
            record.shift_remove(key);
        }
        serde_json::Value::Object(record).to_string()
    };
    records.into_iter().filter(is_result).map(without_times).collect()
}

/// The random number generator SplitMix64 (Steele, Lea and Flood 2014).
pub struct Random(pub u64);

impl Random {
    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in [0, 1).
    pub fn uniform(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Uniform in 0..n.
    pub fn below(&mut self, n: usize) -> usize {
        (self.uniform() * n as f64) as usize
    }
}
