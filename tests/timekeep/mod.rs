//! End-to-end tests of `timekeep`, with fake SLURM commands that lag, fail or return nonsense. With a real SLURM:
//! tests/slurm.

mod left;
mod pipeline;
mod pipeline_jobs;
#[cfg(feature = "failpoints")]
mod pipeline_killed;
mod place;
mod requeue;
mod run;
mod runs;
mod spot;
mod study;
mod submit;
mod templates;
mod watch;

use crate::common::run::wait_until;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

/// timekeep without the environment of a job in which the tests may run, and with default signal handling even if the
/// tests run under nohup or in the background of a script.
fn timekeep(words: &[&str]) -> Command {
    let mut command = Command::new("/usr/bin/env");
    command.args(["--default-signal=INT,HUP", env!("CARGO_BIN_EXE_timekeep")]);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("SLURM_") || name == "LONGHAUL_END_TIME" {
            command.env_remove(name);
        }
    }
    command.args(words).stdin(Stdio::null());
    command
}

struct Captured {
    status: Option<i32>,
    stdout: String,
    stderr: String,
}

fn see(command: &mut Command) -> Captured {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Captured { status: status.code(), stdout: text(stdout), stderr: text(stderr) }
}

fn in_seconds(seconds: u64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    (now + seconds).to_string()
}

/// Writes an executable script and renames it into place. A file that is open for writing cannot be executed, and
/// another test that forks at this moment inherits our open files: so a separate process writes it.
pub fn script(path: &Path, text: &str) {
    let new = path.with_extension("new");
    let mut install = Command::new("install")
        .args(["-m", "755", "/dev/stdin"])
        .arg(&new)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    write!(install.stdin.take().unwrap(), "#!/bin/sh\n{text}\n").unwrap();
    assert!(install.wait().unwrap().success());
    fs::rename(&new, path).unwrap();
}

/// PATH with the fake commands first.
fn path_with(folder: &Path) -> String {
    format!("{}:{}", folder.display(), std::env::var("PATH").unwrap())
}

#[test]
fn the_manual_page_has_no_faults_and_its_examples_run() {
    let output = see(&mut timekeep(&["--generate", "man"]));
    assert!(
        output.stdout.contains(".SS timekeep run") && output.stdout.contains(".SH EXIT STATUS")
    );
    match Command::new("mandoc")
        .args(["-Tlint", "-W", "warning"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
    {
        Ok(mut lint) => {
            lint.stdin.take().unwrap().write_all(output.stdout.as_bytes()).unwrap();
            let output = lint.wait_with_output().unwrap();
            assert_eq!(String::from_utf8(output.stdout).unwrap(), "");
            assert!(output.status.success());
        }
        Err(_) => drop(test_support::require(false, "mandoc")),
    }

    let examples = see(&mut timekeep(&["--generate", "examples"])).stdout;
    assert!(examples.lines().count() >= 4, "{examples}");
    let programs = Path::new(env!("CARGO_BIN_EXE_timekeep")).parent().unwrap();
    let ran = Command::new("sh")
        .args(["-euc", &examples])
        .env("PATH", path_with(programs))
        .current_dir(tempfile::tempdir().unwrap().path())
        .status();
    assert!(ran.unwrap().success());
}

#[test]
fn the_version_names_the_commit() {
    let output = see(&mut timekeep(&["--version"]));
    let commit = output.stdout.trim_end().strip_prefix("timekeep 0.1.0 (").unwrap();
    let commit = commit.strip_suffix(')').unwrap();
    let git = Command::new("git")
        .args(["rev-parse", "--short=12", "HEAD"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output();
    match git {
        Ok(output) if output.status.success() => {
            assert_eq!(commit, String::from_utf8(output.stdout).unwrap().trim());
        }
        _ => assert_eq!(commit, "unknown"),
    }
}

/// Waits until the guard of a timekeep process runs, which it starts after the command.
pub fn wait_for_guard(timekeep: u32) {
    let parent = format!("PPid:\t{timekeep}\n");
    let is_guard = |process: std::io::Result<fs::DirEntry>| {
        let file = |name: &str| fs::read_to_string(process.as_ref().ok()?.path().join(name)).ok();
        let words = file("cmdline").unwrap_or_default();
        words.split('\0').any(|word| word == "guard")
            && file("status").is_some_and(|status| status.contains(&parent))
    };
    wait_until(|| fs::read_dir("/proc").unwrap().any(is_guard));
}
