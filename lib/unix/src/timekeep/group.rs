//! Runs a command and all its descendants as a process group.

use std::ffi::{OsStr, OsString};
use std::io::{self, IsTerminal};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, getpid, kill_process_group, set_child_subreaper,
    test_kill_process_group, wait,
};
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};

use super::pipeline::step::STEP_VARIABLE;
use crate::{Error, Exit, Result};

/// Signals that timekeep forwards to the command.
pub const FORWARDED: [i32; 6] = [SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2, SIGCONT];

/// Whether a signal asks the command to exit.
pub fn requests_exit(number: i32) -> bool {
    [SIGTERM, SIGINT, SIGHUP, SIGUSR1].contains(&number)
}

/// Programs that react to TERM, INT and HUP by killing their tasks, immediately or soon after, but forward USR1 and
/// USR2 to them. They receive the warning signal in place of TERM, INT and HUP.
const LAUNCHERS: [&str; 7] =
    ["srun", "mpirun", "mpiexec", "mpirun.openmpi", "mpiexec.openmpi", "mpiexec.hydra", "orterun"];

/// Exit status of an srun that could not start a step, for example because the controller is down. By default it would
/// be 1, the same as for a failed program.
pub const NO_STEP: u8 = 254;
/// The variable that sets the exit status [`NO_STEP`], see srun(1).
const SRUN_ERROR_VARIABLE: &str = "SLURM_EXIT_ERROR";

/// A running process group.
pub struct Group {
    /// The command itself; its process id is the group id.
    pub leader: Pid,
    /// Whether the command is srun.
    pub is_srun: bool,
    /// Whether the command launches the tasks of a step and forwards signals to them ([`LAUNCHERS`]).
    pub is_launcher: bool,
}

impl Group {
    /// Starts the command. If stdin is a terminal, it is replaced by /dev/null: a background process group would be
    /// stopped when reading from it.
    pub fn start(words: &[OsString], variable: Option<(&str, String)>) -> io::Result<Self> {
        // Orphaned descendants of the command become our children, so that we can wait for them.
        set_child_subreaper(Some(getpid()))?;
        let name = Path::new(&words[0]).file_name();
        let is_srun = name == Some(OsStr::new("srun"));
        let mut command = Command::new(&words[0]);
        // A timekeep started by the command must not work on the same step.
        command.args(&words[1..]).envs(variable).env_remove(STEP_VARIABLE).process_group(0);
        if is_srun {
            command.env(SRUN_ERROR_VARIABLE, NO_STEP.to_string());
        }
        if io::stdin().is_terminal() {
            command.stdin(Stdio::null());
        }
        let child = command.spawn()?; // reaped by `reap`
        let id = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let leader = id.ok_or_else(|| io::Error::other("the process has no id"))?;
        let is_launcher = LAUNCHERS.iter().any(|launcher| name == Some(OsStr::new(launcher)));
        Ok(Self { leader, is_srun, is_launcher })
    }

    /// Sends a signal to the whole group; does nothing if the group no longer exists.
    pub fn send(&self, signal: Signal) {
        let _ = kill_process_group(self.leader, signal);
    }

    /// Whether the command has a handler for the signal or ignores it.
    pub fn handles(&self, signal: i32) -> bool {
        let path = format!("/proc/{}/status", self.leader.as_raw_nonzero());
        let status = std::fs::read_to_string(path).unwrap_or_default();
        let mask = |line: &str| u64::from_str_radix(line.trim(), 16).unwrap_or(0);
        let masks = status.lines().filter_map(|line| {
            line.strip_prefix("SigCgt:").or(line.strip_prefix("SigIgn:")).map(mask)
        });
        masks.fold(0, |all, mask| all | mask) >> (signal - 1) & 1 == 1
    }

    /// Forwards a signal, and returns the signal that was sent.
    pub fn forward(&self, number: i32, warn_signal: Signal) -> Option<Signal> {
        let mut signal = Signal::from_named_raw(number)?;
        if self.is_launcher && [Signal::TERM, Signal::INT, Signal::HUP].contains(&signal) {
            signal = warn_signal;
        }
        self.send(signal);
        Some(signal)
    }

    /// Reaps all children that have exited. If the command itself is among them, returns its exit status, or 128+n and
    /// the name of signal n.
    pub fn reap(&self) -> Result<Option<(u8, Option<String>)>> {
        let mut ended = None;
        loop {
            let (pid, status) = match wait(WaitOptions::NOHANG) {
                Ok(Some(found)) => found,
                Ok(None) | Err(Errno::CHILD) => return Ok(ended),
                Err(Errno::INTR) => continue,
                Err(cause) => return Err(Error::new(Exit::Failure, format!("wait: {cause}"))),
            };
            if pid == self.leader {
                let signal = status.terminating_signal();
                let code = status.exit_status().or(signal.map(|signal| 128 + signal));
                let code = code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX);
                ended = Some((code, signal.map(raw_name)));
            }
        }
    }

    /// Whether any process of the group still exists.
    pub fn is_alive(&self) -> Result<bool> {
        self.reap()?;
        Ok(test_kill_process_group(self.leader).is_ok())
    }
}

/// Returns the name of a signal, for example `SIGUSR1`.
pub fn name(signal: Signal) -> String {
    raw_name(signal.as_raw())
}

fn raw_name(signal: i32) -> String {
    let name = signal_hook::low_level::signal_name(signal);
    name.map_or_else(|| format!("signal {signal}"), String::from)
}

/// Parses `USR1`, `SIGUSR1` or `usr1`; accepts only signals that can serve as a warning.
pub fn parse_warn_signal(text: &str) -> Result<Signal> {
    let upper = text.to_ascii_uppercase();
    match upper.strip_prefix("SIG").unwrap_or(&upper) {
        "USR1" => Ok(Signal::USR1),
        "USR2" => Ok(Signal::USR2),
        "TERM" => Ok(Signal::TERM),
        "INT" => Ok(Signal::INT),
        "HUP" => Ok(Signal::HUP),
        _ => Err(Error::usage("the warning signal must be one of USR1, USR2, TERM, INT, HUP")),
    }
}
