//! Keeps the limit of a command when timekeep itself is killed and can no longer do so.
//!
//! The guard is a second process of timekeep, which does nothing while the first lives: it reads the limit from
//! a pipe, whose end tells that the first is gone. If the command is still there, the guard sends it the
//! warning, TERM and KILL at the same times as timekeep would have. `PR_SET_PDEATHSIG` would reach the command
//! itself, but nothing that it has started.

use std::ffi::OsString;
use std::io::{Write, stdin};
use std::os::unix::process::CommandExt;
use std::process::{ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};

use super::group;
use super::monitor::{Step, steps};
use crate::time::{format_duration, unix_seconds};
use crate::{Error, Result, note, warn};

/// The verb of timekeep that runs [`run`].
pub const VERB: &str = "guard";
/// How often the guard looks whether the command has ended.
const LOOK: Duration = Duration::from_millis(200);

/// What the guard keeps. Its limit comes by the pipe.
#[derive(Clone, Copy, Debug)]
pub struct Schedule {
    /// The command is warned this long before its limit.
    pub margin: Duration,
    /// Time after the limit before TERM, and again before KILL.
    pub grace: Duration,
    /// The signal of the warning.
    pub warn_signal: Signal,
}

/// The guard of a command; it ends when this is dropped and the command is gone.
pub(super) struct Guard {
    pipe: Option<ChildStdin>,
}

impl Guard {
    /// Starts the guard of a process group.
    pub fn start(leader: Pid, schedule: Schedule) -> Self {
        let Schedule { margin, grace, warn_signal } = schedule;
        let mut words = vec![OsString::from(VERB), leader.as_raw_nonzero().to_string().into()];
        words.extend([margin, grace].map(|time| time.as_secs().to_string().into()));
        words.push(group::name(warn_signal).into());
        // Not by its name: the file may have been replaced since.
        let mut command = Command::new("/proc/self/exe");
        command.args(words).process_group(0).stdin(Stdio::piped()).stdout(Stdio::null());
        match command.spawn() {
            // Its end is reaped with those of all other children.
            Ok(mut child) => Self { pipe: child.stdin.take() },
            Err(cause) => {
                warn!("nobody keeps the time if timekeep is killed: {cause}");
                Self { pipe: None }
            }
        }
    }

    /// Says when the limit is.
    pub fn tell(&mut self, limit: Option<Instant>) {
        let left = limit.map(|limit| limit.saturating_duration_since(Instant::now()));
        let end = left.map_or(u64::MAX, |left| unix_seconds().saturating_add(left.as_secs()));
        // A guard that is gone guards nothing; the command goes on all the same.
        let _ = self.pipe.as_mut().map(|pipe| writeln!(pipe, "{end}"));
    }
}

/// What the guard does. Errors: 2 for a number that is no process.
pub fn run(leader: i32, schedule: Schedule) -> Result<()> {
    let leader = Pid::from_raw(leader).ok_or_else(|| Error::usage("no such process group"))?;
    let lines = stdin().lines().map_while(std::io::Result::ok);
    let Some(end) = lines.filter_map(|line| line.parse::<u64>().ok()).last() else {
        return Ok(());
    };
    let is_alive = || test_kill_process_group(leader).is_ok();
    let left = Duration::from_secs(end.saturating_sub(unix_seconds()));
    let Some(limit) = Instant::now().checked_add(left).filter(|_| is_alive()) else {
        return Ok(());
    };
    note!("timekeep is gone; its command still has {}", format_duration(left));
    for Step { at, signal, .. } in steps(limit, schedule) {
        while Instant::now() < at {
            if !is_alive() {
                return Ok(());
            }
            std::thread::sleep(LOOK.min(at.saturating_duration_since(Instant::now())));
        }
        note!("sending {} to what timekeep left behind", group::name(signal));
        let _ = kill_process_group(leader, signal); // gone meanwhile
    }
    Ok(())
}
