//! The programs of this build, run as their users run them.

// Every test file is a crate of its own and uses a part of this.
#![allow(dead_code)]

pub mod run;

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// What a command did.
pub struct Seen {
    /// Exit status; none when a signal ended it.
    pub status: Option<i32>,
    /// Its results.
    pub stdout: String,
    /// Its talk.
    pub stderr: String,
}

/// Runs a shell script in `folder` with the programs of this build first on the PATH, and without any
/// trace of a job around the tests. The script ends with the first command that fails.
pub fn shell(folder: &Path, script: &str) -> Seen {
    let mut command = Command::new("sh");
    command.args(["-euc", script]).current_dir(folder).env("PATH", path()).stdin(Stdio::null());
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("SLURM_") || name == "LONGHAUL_END_TIME" {
            command.env_remove(name);
        }
    }
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Seen { status: status.code(), stdout: text(stdout), stderr: text(stderr) }
}

fn path() -> OsString {
    let programs = Path::new(env!("CARGO_BIN_EXE_timekeep")).parent().unwrap();
    let rest = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::iter::once(programs.to_path_buf()).chain(std::env::split_paths(&rest));
    std::env::join_paths(folders).unwrap()
}
