//! A command and everything it starts, as a process group.

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

use crate::{Error, Exit, Result};

/// Signals that the command gets when timekeep gets them.
pub const PASSED_ON: [i32; 6] = [SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2, SIGCONT];

/// Whether this signal asks the command to end.
pub fn asks_to_end(number: i32) -> bool {
    [SIGTERM, SIGINT, SIGHUP, SIGUSR1].contains(&number)
}

/// Programs that answer TERM, INT and HUP by killing their tasks, at once or soon after, and hand USR1 and
/// USR2 on to them. They never get the former passed on.
const LAUNCHERS: [&str; 7] =
    ["srun", "mpirun", "mpiexec", "mpirun.openmpi", "mpiexec.openmpi", "mpiexec.hydra", "orterun"];

/// Exit status of an srun that could not start a step, as when the controller is away. By itself it is 1, as
/// of a program that failed.
pub const NO_STEP: u8 = 254;
/// Sets that status: srun(1).
const SRUN_ERROR_VARIABLE: &str = "SLURM_EXIT_ERROR";

/// The running group.
pub struct Group {
    /// The command itself, whose number the group has.
    pub leader: Pid,
    /// Whether the command is srun.
    pub is_srun: bool,
    /// Whether it starts the tasks of a step and stands before them ([`LAUNCHERS`]).
    pub is_launcher: bool,
}

impl Group {
    /// Starts the command. A terminal is not its stdin: in a group of its own it would be stopped
    /// when reading from there.
    pub fn start(words: &[OsString], variable: Option<(&str, String)>) -> io::Result<Self> {
        // Orphans of the command become our children, so that we can wait for them.
        set_child_subreaper(Some(getpid()))?;
        let name = Path::new(&words[0]).file_name();
        let is_srun = name == Some(OsStr::new("srun"));
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).envs(variable).process_group(0);
        if is_srun {
            command.env(SRUN_ERROR_VARIABLE, NO_STEP.to_string());
        }
        if io::stdin().is_terminal() {
            command.stdin(Stdio::null());
        }
        let child = command.spawn()?; // reaped by `reap`, with all the others
        let id = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let leader = id.ok_or_else(|| io::Error::other("a process without an id"))?;
        let is_launcher = LAUNCHERS.iter().any(|launcher| name == Some(OsStr::new(launcher)));
        Ok(Self { leader, is_srun, is_launcher })
    }

    /// Sends a signal to all of the group; one that is gone needs none.
    pub fn send(&self, signal: Signal) {
        let _ = kill_process_group(self.leader, signal);
    }

    /// Passes a signal on; returns which was sent.
    pub fn pass_on(&self, number: i32, warn_signal: Signal) -> Option<Signal> {
        let mut signal = Signal::from_named_raw(number)?;
        if self.is_launcher && [Signal::TERM, Signal::INT, Signal::HUP].contains(&signal) {
            signal = warn_signal;
        }
        self.send(signal);
        Some(signal)
    }

    /// Buries all children that have ended; gives the end of the command itself if it is among
    /// them: its exit status, or 128+n and the name of the signal n.
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

    /// Whether any process of the group is left.
    pub fn is_alive(&self) -> Result<bool> {
        self.reap()?;
        Ok(test_kill_process_group(self.leader).is_ok())
    }
}

/// `SIGUSR1`.
pub fn name(signal: Signal) -> String {
    raw_name(signal.as_raw())
}

fn raw_name(signal: i32) -> String {
    match signal_hook::low_level::signal_name(signal) {
        Some(name) => name.into(),
        None => format!("signal {signal}"),
    }
}

/// Reads `USR1`, `SIGUSR1` or `usr1`: the signals that can be a warning.
pub fn parse_warn_signal(text: &str) -> Result<Signal> {
    let upper = text.to_ascii_uppercase();
    match upper.strip_prefix("SIG").unwrap_or(&upper) {
        "USR1" => Ok(Signal::USR1),
        "USR2" => Ok(Signal::USR2),
        "TERM" => Ok(Signal::TERM),
        "INT" => Ok(Signal::INT),
        "HUP" => Ok(Signal::HUP),
        _ => Err(Error::usage("a warning is one of USR1, USR2, TERM, INT, HUP")),
    }
}
