//! Errors caused by resource limits name the limit, its value and how to raise it.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;

use super::*;

#[test]
fn errors_name_the_limit_that_caused_them() {
    let copy = copy();
    // Soft limits, so that the advice does not depend on who runs the tests; dash counts in blocks of 512 bytes.
    for (limit, script, expected) in [
        (
            "ulimit -S -f 32",
            "train-stage codec -c codec.yaml --run new",
            "RLIMIT_FSIZE limits the size of a file to 16.0 KiB",
        ),
        (
            "ulimit -S -f 32",
            "ds-prep gen burgers --parameter 0.01 --samples 10 --grid 256 --frames 20 -o made",
            "RLIMIT_FSIZE limits the size of a file to 16.0 KiB",
        ),
        (
            "ulimit -S -n 8",
            "train-stage codec -c codec.yaml --run new-files",
            "RLIMIT_NOFILE limits the number of open files to 8",
        ),
        (
            "ulimit -S -v 1048576",
            "train-stage codec -c codec.yaml --run new-memory -s model.hidden=4096",
            "RLIMIT_AS limits the address space to 1.0 GiB",
        ),
    ] {
        let output = shell(copy.path(), &format!("{limit}; {script}"));
        assert!(matches!(output.status, Some(1 | 73 | 74)), "{script}: {:?}", output.status);
        let line = output.stderr.lines().find(|line| line.contains(expected));
        let line = line.unwrap_or_else(|| panic!("{script}: {}", output.stderr));
        assert!(line.contains("ulimit -") && !line.contains("os error"), "{line}");
    }
}

#[test]
fn a_model_that_is_too_large_for_the_machine_is_not_tried() {
    let copy = copy();
    // One checkpoint is kept, so that little disk is enough.
    let options = "-c codec.yaml --run new -s model.hidden=2400 -s training.threads=1 -s checkpoint.keep_last=1";
    for look in ["--check", "--dry-run"] {
        let script = format!("ulimit -S -v 655360; train-stage codec {options} {look}");
        let output = shell(copy.path(), &script);
        assert_eq!(output.status, Some(1), "{look}: {}", output.stderr);
        assert!(output.stderr.contains("even a batch of 2 more than the"), "{}", output.stderr);
        assert!(output.stderr.contains("--on"), "{}", output.stderr);
    }
    // On a GPU with more memory, the rest is checked here.
    let script = format!("ulimit -S -v 655360; train-stage codec {options} --check --on h100");
    let output = shell(copy.path(), &script);
    assert_eq!(output.status, Some(0), "{}", output.stderr);
    assert!(output.stdout.contains("fits into 74.5 GiB"), "{}", output.stdout);
}

/// Root has no limit on threads, so the programs run as another user; they are started through a file descriptor
/// because that user may lack access to the folders above them.
#[test]
fn errors_name_the_limit_on_threads() {
    let copy = copy();
    let programs = PathBuf::from(env!("CARGO_BIN_EXE_timekeep"));
    let user = 50_000 + std::process::id() % 10_000;
    let is_root = rustix::process::geteuid().is_root();
    if is_root {
        let script = format!("chown -R {user}:{user} .");
        assert_eq!(shell(copy.path(), &script).status, Some(0));
    }
    for words in [
        "train-stage codec -c codec.yaml --run new",
        "ds-prep gen burgers --parameter 0.01 --samples 2 --grid 64 --frames 3 -o made",
        "ds-prep show raw/1D_Burgers_Sols_Nu0.1.hdf5",
        "latent-cache make run --data split.json -o made-latents",
        "evaluate score run --data split.json -o report",
        "timekeep run -- true",
    ] {
        let mut words = words.split(' ');
        let program = File::open(programs.with_file_name(words.next().unwrap())).unwrap();
        rustix::io::fcntl_setfd(&program, rustix::io::FdFlags::empty()).unwrap();
        let mut command = Command::new("prlimit");
        command.args(["--nproc=1", &format!("/proc/self/fd/{}", program.as_raw_fd())]).args(words);
        if is_root {
            command.uid(user).gid(user);
        }
        let output = command.current_dir(copy.path()).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(matches!(output.status.code(), Some(1 | 74)), "{command:?}: {stderr}");
        let expected = "RLIMIT_NPROC limits the number of processes and threads to 1";
        assert!(stderr.contains(expected) && !stderr.contains("os error"), "{command:?}: {stderr}");
    }
}
