//! Runs a command under a time limit: warns it in time, waits for it, and ends it if it does not exit.
//!
//! ```text
//! start ......... limit - margin ............ limit ... limit + grace ... limit + 2 grace
//!                 warn signal (USR1)                    TERM              KILL
//! ```
//!
//! A second process ([`guard`]) sends the signals at the same times if this one is killed. A command that starts within
//! its margin is warned after ten seconds, by which time it should have installed its handlers. The command runs in its
//! own process group. Signals go to the whole group, so that a wrapping shell does not swallow them. Processes that the
//! command leaves behind in its group get the grace time to exit. In a batch job, status 75 then requeues the job
//! ([`again`]).
//!
//! The submodules [`runs`], [`record`], [`submit`] and [`interval`] work on run directories, and [`pipeline`] on
//! commands that depend on each other.

pub mod again;
mod group;
pub mod guard;
pub mod interval;
mod monitor;
pub mod pipeline;
pub mod price;
pub mod record;
pub mod runs;
pub mod submit;

use std::ffi::OsString;
use std::fmt;
use std::os::unix::process::parent_id;
use std::path::Path;
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

pub use rustix::process::Signal;
use serde::Serialize;
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT};

use crate::budget::{Budget, END_TIME_VARIABLE, round};
use crate::time::{format_duration, unix_seconds};
use crate::{Error, Exit, Result, note, secrets, signal, warn};
use again::CommandOutcome;
pub use again::{ExitPolicy, OnFailure, Requeue};
use group::Group;
pub use group::parse_warn_signal;
use guard::Schedule;
use monitor::ChildMonitor;

/// The plan of `timekeep run`: a command, its limit and its signals.
#[derive(Clone, Debug)]
pub struct CommandPlan {
    /// Time limit, counted from now; the limits of SLURM and of an outer timekeep also apply.
    pub limit: Option<Duration>,
    /// The times and signals before and after the limit.
    pub schedule: Schedule,
    /// Program and arguments.
    pub command: Vec<OsString>,
    /// What to do when the command has exited.
    pub then: ExitPolicy,
    /// Whether to end the command at once if timekeep is killed, instead of at its limit, because it will be run again.
    pub ends_with_us: bool,
}

/// Why the command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Cause {
    /// The command exited by itself.
    Itself,
    /// The command ended after a signal that timekeep forwarded.
    Signalled,
    /// The command ended after the warning.
    Warned,
    /// The command was sent TERM after the limit.
    Terminated,
    /// The command ignored TERM and was killed.
    Killed,
}

/// The result of a command, which is also the record of `timekeep run --json`.
#[derive(Clone, Debug, Serialize)]
pub struct Ended {
    /// Why the command ended.
    pub cause: Cause,
    /// Exit status of the command, or 128+n for signal n; timekeep exits with it.
    pub status: u8,
    /// Name of the signal that ended the command, if one did.
    pub signal: Option<String>,
    /// Run time in seconds.
    pub seconds: f64,
    /// Source of the time limit that applied, if any.
    pub limit_source: Option<&'static str>,
    /// Program and arguments.
    pub command: Vec<String>,
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = match self.cause {
            Cause::Itself => "ended by itself",
            Cause::Signalled => "ended after a forwarded signal",
            Cause::Warned => "ended after the warning",
            Cause::Terminated => "ended after the limit, by TERM",
            Cause::Killed => "ended after the limit, by KILL",
        };
        write!(f, "child {how} with {}", self.status)?;
        if let Some(signal) = &self.signal {
            write!(f, " ({signal})")?;
        }
        write!(f, " after {}", format_duration(Duration::from_secs_f64(self.seconds)))
    }
}

/// Runs the command until it and all processes in its group have ended, passes the result to `report`, and requeues the
/// job if necessary; returns the exit status. Errors: 2 for a margin that is not shorter than the limit. A command that
/// cannot be run is not an error: the status is then 126 or 127, as in a shell.
pub fn run(plan: &CommandPlan, report: impl FnOnce(&Ended) -> Result<()>) -> Result<u8> {
    let shell = parent_id();
    let words: Vec<_> = plan.command.iter().map(|word| word.to_string_lossy()).collect();
    secrets::register_words(&words);
    let budget = plan_budget(plan)?;
    let events = receive_signals()?;
    let start = Instant::now();
    let end = budget.end();
    let end_time = budget.left().map(|left| unix_seconds().saturating_add(left.as_secs()));
    let environment = end_time.map(|end| (END_TIME_VARIABLE, end.to_string()));
    let ended = |cause, status: u8, signal| Ended {
        cause,
        status,
        signal,
        seconds: start.elapsed().as_secs_f64(),
        limit_source: end.map(|end| end.source),
        command: words.iter().map(ToString::to_string).collect(),
    };
    let start_group = || Group::start(&plan.command, environment.clone());
    let group = match start_group() {
        Ok(group) => group,
        Err(cause) => {
            let name = Path::new(&plan.command[0]).display();
            note!("cannot run {name}: {cause}");
            let missing = cause.kind() == std::io::ErrorKind::NotFound;
            let ended = ended(Cause::Itself, if missing { 127 } else { 126 }, None);
            report(&ended)?;
            let follow = again::follow(&plan.then, CommandOutcome::Failed, &ended, false, &events);
            return Ok(again::end(follow, &ended, &events, shell));
        }
    };
    let mut monitor = ChildMonitor::new(plan, events, group, budget);
    let mut tries = 0;
    let (ended, status) = loop {
        let (status, signal) = monitor.wait_for_child()?;
        let ended = ended(monitor.cause, status, signal);
        note!("{ended}");
        monitor.wait_for_group()?;
        let outcome = CommandOutcome::of(status, monitor.cause, monitor.group.is_srun);
        tries += 1;
        if !again::should_rerun(outcome, tries, &mut monitor) {
            break (ended, status);
        }
        let failed = |cause| Error::new(Exit::Failure, format!("srun: {cause}"));
        monitor.restart(start_group().map_err(failed)?);
    };
    report(&ended)?;
    // Also record signals that arrived after the end of the command.
    monitor.stop_requested_within(Duration::ZERO);
    let outcome = CommandOutcome::of(status, monitor.cause, monitor.group.is_srun);
    let follow = again::follow(&plan.then, outcome, &ended, monitor.got_term, &monitor.events);
    Ok(again::end(follow, &ended, &monitor.events, shell))
}

/// Collects all time limits and prints the one that applies.
fn plan_budget(plan: &CommandPlan) -> Result<Budget> {
    if plan.command.is_empty() {
        return Err(Error::usage("no command to run"));
    }
    let margin = plan.schedule.margin;
    if let Some(limit) = plan.limit.filter(|limit| *limit <= margin) {
        let [margin, limit] = [margin, limit].map(format_duration);
        let message = format!("--margin {margin} is not shorter than --limit {limit}");
        return Err(Error::usage(message));
    }
    let mut budget = Budget::from_environment(None);
    if let Some(limit) = plan.limit {
        budget.add("--limit", Instant::now().checked_add(limit));
    }
    for line in &budget.notes {
        note!("{line}");
    }
    match budget.left() {
        Some(_) => note!("time limit: {budget}, warning {} before", format_duration(margin)),
        None => note!("time limit: none"),
    }
    if let Some(left) = budget.left() {
        let first = left.checked_sub(margin).filter(|time| !time.is_zero());
        let first = first.unwrap_or(monitor::HANDLER_DELAY.min(left));
        if plan.limit.is_none() && first <= monitor::HANDLER_DELAY {
            warn!(
                "{} left, with a margin of {}: the command is told to stop {} after its start \
                 and does little or nothing; request more time (sbatch --time) or reduce \
                 LONGHAUL_MARGIN (--margin)",
                format_duration(round(left)),
                format_duration(margin),
                format_duration(round(first)),
            );
        }
    }
    Ok(budget)
}

/// Starts a thread that sends signals as messages to the returned receiver; CHLD means that a child has exited.
fn receive_signals() -> Result<Receiver<i32>> {
    let mut wanted = group::FORWARDED.to_vec();
    wanted.retain(|s| !(matches!(*s, SIGINT | SIGHUP) && signal::is_ignored(*s)));
    wanted.push(SIGCHLD);
    let signals = signal_hook::iterator::Signals::new(wanted);
    let mut signals =
        signals.map_err(|cause| Error::new(Exit::Failure, format!("signal handlers: {cause}")))?;
    let (send, receive) = mpsc::channel();
    let early = signal::take_early();
    std::thread::Builder::new()
        .spawn(move || early.into_iter().chain(signals.forever()).try_for_each(|s| send.send(s)))
        .map_err(|cause| Error::new(Exit::Failure, format!("cannot start a thread: {cause}")))?;
    Ok(receive)
}
