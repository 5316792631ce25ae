//! Enforces the time limit of a command if timekeep itself is killed.
//!
//! The guard is a second timekeep process that is idle while the first one is alive: it reads changes of the limit from
//! a pipe, and end-of-file means that the first process is gone. If the command is still running, the guard sends the
//! warning, TERM and KILL at the times at which timekeep would have sent them. For a step of a pipeline, it acts as if
//! the limit had passed, because the next run of the pipeline repeats the step. `PR_SET_PDEATHSIG` would reach only the
//! command itself, not its descendants.

use std::ffi::OsString;
use std::io::{Write, stdin};
use std::os::unix::process::CommandExt;
use std::process::{ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};

use super::group;
use super::monitor::{TimedSignal, steps};
use crate::time::{format_duration, parse_duration, unix_seconds};
use crate::{Error, Result, note, warn};

/// The hidden subcommand of timekeep that calls [`run`].
pub const VERB: &str = "guard";
/// Interval at which the guard checks whether the command has exited.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// The schedule that the guard enforces: options of `timekeep run`.
#[derive(clap::Args, Clone, Copy, Debug)]
pub struct Schedule {
    /// Warn the command this long before the limit
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = parse_duration)]
    #[arg(env = "LONGHAUL_MARGIN")]
    pub margin: Duration,
    /// Signal to warn with: USR1, USR2, TERM, INT or HUP
    #[arg(long, value_name = "SIGNAL", default_value = "USR1")]
    #[arg(value_parser = group::parse_warn_signal)]
    pub warn_signal: Signal,
    /// Send TERM this long after the limit, and KILL after the same time again
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse_duration)]
    pub grace: Duration,
}

/// The guard of a command; it exits once this value is dropped and the command is gone.
pub(super) struct Guard {
    pipe: Option<ChildStdin>,
}

impl Guard {
    /// Starts the guard of a process group. The guard gets the limit as an argument, so it knows it from the start.
    pub fn start(leader: Pid, schedule: Schedule, limit: Option<Instant>) -> Self {
        let Schedule { margin, grace, warn_signal } = schedule;
        let mut words = vec![OsString::from(VERB), leader.as_raw_nonzero().to_string().into()];
        words.extend([margin, grace].map(|time| time.as_secs().to_string().into()));
        words.extend([group::name(warn_signal).into(), end(limit).to_string().into()]);
        // Do not use the path of the program, because the file may have been replaced since.
        let mut command = Command::new("/proc/self/exe");
        command.args(words).process_group(0).stdin(Stdio::piped()).stdout(Stdio::null());
        match command.spawn() {
            // The guard is reaped together with all other children.
            Ok(mut child) => Self { pipe: child.stdin.take() },
            Err(cause) => {
                warn!("the time limit is not enforced if timekeep is killed: {cause}");
                Self { pipe: None }
            }
        }
    }

    /// Sends a new limit to the guard.
    pub fn tell(&mut self, limit: Option<Instant>) {
        // If the guard has died, the command continues without it.
        let _ = self.pipe.as_mut().map(|pipe| writeln!(pipe, "{}", end(limit)));
    }
}

/// Converts a limit to seconds since 1970; without a limit, returns the largest number.
fn end(limit: Option<Instant>) -> u64 {
    let left = limit.map(|limit| limit.saturating_duration_since(Instant::now()));
    left.map_or(u64::MAX, |left| unix_seconds().saturating_add(left.as_secs()))
}

/// Runs the guard. `end` is the limit in seconds since 1970 until another one is read from stdin. Errors: 2 for a
/// number that is not a process id.
pub fn run(leader: i32, schedule: Schedule, end: u64) -> Result<()> {
    let leader = Pid::from_raw(leader).ok_or_else(|| Error::usage("no such process group"))?;
    let lines = stdin().lines().map_while(std::io::Result::ok);
    let end = lines.filter_map(|line| line.parse::<u64>().ok()).last().unwrap_or(end);
    let is_alive = || test_kill_process_group(leader).is_ok();
    let left = Duration::from_secs(end.saturating_sub(unix_seconds()));
    let Some(limit) = Instant::now().checked_add(left).filter(|_| is_alive()) else {
        return Ok(());
    };
    note!("timekeep was killed; its command has {} left", format_duration(left));
    for TimedSignal { at, signal, .. } in steps(limit, schedule) {
        while Instant::now() < at {
            if !is_alive() {
                return Ok(());
            }
            std::thread::sleep(POLL_INTERVAL.min(at.saturating_duration_since(Instant::now())));
        }
        note!("sending {} to the command that timekeep left behind", group::name(signal));
        let _ = kill_process_group(leader, signal); // the group may be gone
    }
    Ok(())
}
