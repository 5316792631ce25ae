//! Runs the programs of this build like a user would.

// Every test file is a separate crate and uses only some of these functions.
#![allow(dead_code)]

pub mod images;
pub mod pty;
pub mod run;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// The outcome of a command.
pub struct Captured {
    /// Exit status; `None` when a signal killed it.
    pub status: Option<i32>,
    /// Its stdout.
    pub stdout: String,
    /// Its stderr.
    pub stderr: String,
}

/// Runs a shell script in `folder` with the programs of this build first on the PATH, and without the environment of a
/// SLURM or MPI job in which the tests may run. The script stops at the first command that fails.
pub fn shell(folder: &Path, script: &str) -> Captured {
    let mut command = Command::new("sh");
    command.args(["-euc", script]).current_dir(folder).env("PATH", path()).stdin(Stdio::null());
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("SLURM_") || name == "LONGHAUL_END_TIME" {
            command.env_remove(name);
        }
    }
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Captured { status: status.code(), stdout: text(stdout), stderr: text(stderr) }
}

/// The folder of the programs of this build or, on another machine, that of the tests (`make gpu-pack`).
pub fn programs() -> PathBuf {
    let built = Path::new(env!("CARGO_BIN_EXE_timekeep"));
    let here = std::env::current_exe().unwrap();
    let program = if built.exists() { built } else { &here };
    program.parent().unwrap().to_path_buf()
}

fn path() -> OsString {
    let rest = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::iter::once(programs()).chain(std::env::split_paths(&rest));
    std::env::join_paths(folders).unwrap()
}

/// Compiles `clock.so` in `folder`, which shifts the clock of a program with it in LD_PRELOAD (`clock.c`).
pub fn make_clock(folder: &Path) {
    std::fs::write(folder.join("clock.c"), include_str!("clock.c")).unwrap();
    let made = shell(folder, "cc -shared -fPIC -o clock.so clock.c");
    assert_eq!(made.status, Some(0), "{}", made.stderr);
}

/// A checkpoint of which one tensor has this value everywhere.
pub fn with_tensor(folder: &Path, from: &str, name: &str, value: f32, to: &str) {
    let mut bytes = std::fs::read(folder.join(from)).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let [begin, end] = [0, 1].map(|i| header[name]["data_offsets"][i].as_u64().unwrap() as usize);
    for at in (begin..end).step_by(4) {
        bytes[8 + length + at..][..4].copy_from_slice(&value.to_le_bytes());
    }
    std::fs::write(folder.join(to), bytes).unwrap();
}
