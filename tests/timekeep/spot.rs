//! examples/spot.sh on a machine without SLURM.

use crate::common::run::wait_until;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

fn spot(folder: &Path, line: &str) -> Command {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/spot.sh");
    // The tests may run with TERM ignored, which a shell cannot change.
    let mut command = Command::new("/usr/bin/env");
    command.arg("--default-signal=TERM,INT").arg(script).args(["sh", "-c", line]);
    command.current_dir(folder).env("SPOT_PAUSE", "0").stdin(Stdio::null());
    command
}

#[test]
fn a_command_runs_again_until_it_is_done() {
    let folder = tempfile::tempdir().unwrap();
    for (last, line) in [(0, "exit 0"), (65, "exit 65")] {
        let line = format!("echo >> starts; test $(wc -l < starts) -ge 3 || exit 75; {line}");
        let status = spot(folder.path(), &line).status().unwrap();
        assert_eq!(status.code(), Some(last));
        assert_eq!(fs::read_to_string(folder.path().join("starts")).unwrap(), "\n\n\n");
        fs::remove_file(folder.path().join("starts")).unwrap();
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/spot.sh");
    assert_eq!(Command::new(script).stderr(Stdio::null()).status().unwrap().code(), Some(2));
}

/// The command is told, has the time that it needs, and does not start again.
#[test]
fn a_machine_that_goes_stops_the_command() {
    let folder = tempfile::tempdir().unwrap();
    let line = "trap 'sleep 0.3; echo >> saved; exit 75' TERM; echo >> starts; \
                while :; do sleep 0.05; done";
    let mut child = spot(folder.path(), line).spawn().unwrap();
    wait_until(|| folder.path().join("starts").exists());
    let killed = Command::new("kill").arg(child.id().to_string()).status().unwrap();
    assert!(killed.success());
    assert_eq!(child.wait().unwrap().code(), Some(75));
    let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
    assert_eq!((read("starts"), read("saved")), ("\n".into(), "\n".into()));
}
