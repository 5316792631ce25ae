//! A command under a time limit: warned in time, waited for, and ended if it stays.
//!
//! ```text
//! start ......... limit - margin ............ limit ... limit + grace ... limit + 2 grace
//!                 warn signal (USR1)                    TERM              KILL
//! ```
//!
//! A command that begins within its margin is warned after ten seconds, when it listens.
//! The command runs in a process group of its own; signals go to the whole group, so that a shell
//! around a program does not keep them to itself. What the command leaves running behind in its
//! group gets the grace to end.

mod group;

use std::ffi::OsString;
use std::fmt;
use std::path::Path;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

pub use rustix::process::Signal;
use serde::Serialize;
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT};

use crate::budget::{Budget, END_TIME_VARIABLE, round};
use crate::time::{format_duration, unix_seconds};
use crate::{Error, Exit, Result, note, signal};
use group::Group;
pub use group::parse_warn_signal;

/// What `timekeep run` is asked to do.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Limit from now; SLURM's and an outer timekeep's limits count beside it.
    pub limit: Option<Duration>,
    /// The command is warned this long before the limit.
    pub margin: Duration,
    /// The signal of the warning.
    pub warn_signal: Signal,
    /// Time after the limit before TERM, and again before KILL.
    pub grace: Duration,
    /// Program and arguments.
    pub command: Vec<OsString>,
}

/// What made the command end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Cause {
    /// It ended without having been told to.
    Itself,
    /// It ended after a signal that we passed on.
    Signalled,
    /// It ended after the warning.
    Warned,
    /// It had to be sent TERM after the limit.
    Terminated,
    /// It ignored TERM and was killed.
    Killed,
}

/// How the command ended: the record of `timekeep run --json`.
#[derive(Clone, Debug, Serialize)]
pub struct Ended {
    /// What made it end.
    pub cause: Cause,
    /// Its exit status, or 128+n for signal n; timekeep exits with it.
    pub status: u8,
    /// Name of the signal that ended it, if one did.
    pub signal: Option<String>,
    /// How long it ran, in seconds.
    pub seconds: f64,
    /// Who set the limit that counted, if there was one.
    pub limit_source: Option<&'static str>,
    /// The command.
    pub command: Vec<String>,
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = match self.cause {
            Cause::Itself => "ended by itself",
            Cause::Signalled => "ended after a signal that was passed on",
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

/// Runs the command to its end and the end of all it started in its group.
/// Errors: 2 for a margin that is not shorter than the limit; 126 and 127, as in a shell, are
/// no errors but the status of a command that cannot be run.
pub fn run(plan: &Plan) -> Result<Ended> {
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
        command: plan.command.iter().map(|w| w.to_string_lossy().into_owned()).collect(),
    };
    let group = match Group::start(&plan.command, environment) {
        Ok(group) => group,
        Err(cause) => {
            let name = Path::new(&plan.command[0]).display();
            note!("cannot run {name}: {cause}");
            let missing = cause.kind() == std::io::ErrorKind::NotFound;
            return Ok(ended(Cause::Itself, if missing { 127 } else { 126 }, None));
        }
    };
    let mut watch = Watch { plan, events, group, cause: Cause::Itself, limit: end.map(|e| e.at) };
    let (status, signal) = watch.until_child_ended()?;
    let ended = ended(watch.cause, status, signal);
    note!("{ended}");
    watch.until_group_gone()?;
    Ok(ended)
}

/// All limits, told to the user.
fn plan_budget(plan: &Plan) -> Result<Budget> {
    if plan.command.is_empty() {
        return Err(Error::usage("no command to run"));
    }
    if let Some(limit) = plan.limit.filter(|limit| *limit <= plan.margin) {
        return Err(Error::usage(format!(
            "--margin {} is not shorter than --limit {}",
            format_duration(plan.margin),
            format_duration(limit)
        )));
    }
    let mut budget = Budget::from_environment(None);
    if let Some(limit) = plan.limit {
        budget.add("--limit", Instant::now().checked_add(limit));
    }
    for line in &budget.notes {
        note!("{line}");
    }
    match budget.left() {
        Some(_) => note!("time limit: {budget}, warning {} before", format_duration(plan.margin)),
        None => note!("time limit: none"),
    }
    Ok(budget)
}

/// Signals as messages, from a thread that does nothing else; CHLD tells that a child ended.
fn receive_signals() -> Result<Receiver<i32>> {
    let mut wanted = group::PASSED_ON.to_vec();
    wanted.retain(|s| !(matches!(*s, SIGINT | SIGHUP) && signal::is_ignored(*s)));
    wanted.push(SIGCHLD);
    let signals = signal_hook::iterator::Signals::new(wanted);
    let mut signals =
        signals.map_err(|cause| Error::new(Exit::Failure, format!("signal handlers: {cause}")))?;
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || signals.forever().try_for_each(|signal| send.send(signal)));
    Ok(receive)
}

/// A command that begins within its margin is warned after this time.
const BEFORE_LISTENING: Duration = Duration::from_secs(10);
/// How often the rest of a group is looked at.
const LOOK: Duration = Duration::from_millis(100);
/// How long a killed process may take to go.
const AFTER_KILL: Duration = Duration::from_secs(5);

/// One thing to do when its time comes.
struct Step {
    at: Instant,
    signal: Signal,
    cause: Cause,
}

struct Watch<'a> {
    plan: &'a Plan,
    events: Receiver<i32>,
    group: Group,
    cause: Cause,
    limit: Option<Instant>,
}

impl Watch<'_> {
    /// Passes signals on and keeps the time until the command itself has ended.
    fn until_child_ended(&mut self) -> Result<(u8, Option<String>)> {
        let mut steps = self.steps().into_iter().peekable();
        loop {
            if let Some(end) = self.group.reap()? {
                return Ok(end);
            }
            if let Some(step) = steps.next_if(|step| step.at <= Instant::now()) {
                self.cause = step.cause;
                let name = group::name(step.signal);
                note!("time limit {}: sending {name}", self.limit_in_words());
                self.group.send(step.signal);
            } else {
                self.wait(steps.peek().map(|step| step.at));
            }
        }
    }

    /// What the limit leads to, in the order of time; nothing without a limit.
    fn steps(&self) -> Vec<Step> {
        let Some(limit) = self.limit else { return Vec::new() };
        let Plan { margin, grace, warn_signal, .. } = *self.plan;
        let now = Instant::now();
        let mut warning = limit.checked_sub(margin).unwrap_or(now);
        if warning <= now {
            // A signal that comes before the command listens would end it.
            warning = limit.min(now + BEFORE_LISTENING);
        }
        let mut steps = vec![Step { at: warning, signal: warn_signal, cause: Cause::Warned }];
        // A grace beyond what the clock can tell is for ever.
        let after = |grace| limit.checked_add(grace);
        let last = [
            (after(grace), Signal::TERM, Cause::Terminated),
            (after(grace.saturating_mul(2)), Signal::KILL, Cause::Killed),
        ];
        steps.extend(
            last.into_iter()
                .filter_map(|(at, signal, cause)| at.map(|at| Step { at, signal, cause })),
        );
        steps
    }

    /// Waits for the processes the command left behind: one grace for them to end, one more after
    /// TERM, and a moment after KILL.
    fn until_group_gone(&mut self) -> Result<()> {
        let grace = self.plan.grace;
        if self.group.is_alive()? {
            note!("waiting up to {} for what it left running", format_duration(grace));
        }
        let patience =
            [(grace, None), (grace, Some(Signal::TERM)), (AFTER_KILL, Some(Signal::KILL))];
        for (time, signal) in patience {
            if let Some(signal) = signal.filter(|_| self.group.is_alive().unwrap_or(false)) {
                note!("sending {} to what is left", group::name(signal));
                self.group.send(signal);
            }
            let start = Instant::now();
            while self.group.is_alive()? && start.elapsed() < time {
                // A process whose parent lives gives no CHLD to us: look now and then.
                self.wait(Instant::now().checked_add(LOOK));
            }
        }
        if self.group.is_alive()? {
            note!("some processes cannot be killed (waiting for a disk?), leaving them");
        }
        Ok(())
    }

    /// Waits for a signal until `due` and passes it on.
    fn wait(&mut self, due: Option<Instant>) {
        let received = match due {
            Some(due) => self.events.recv_timeout(due.saturating_duration_since(Instant::now())),
            None => self.events.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match received {
            Ok(SIGCHLD) | Err(RecvTimeoutError::Timeout) => {}
            Ok(number) => {
                if let Some((signal, asks_to_end)) =
                    self.group.pass_on(number, self.plan.warn_signal)
                {
                    note!("passing {} on", group::name(signal));
                    if asks_to_end && self.cause == Cause::Itself {
                        self.cause = Cause::Signalled;
                    }
                }
            }
            // The thread cannot end while we hold its receiver; if it did, poll.
            Err(RecvTimeoutError::Disconnected) => std::thread::sleep(LOOK),
        }
    }

    /// `in 00:05:00` or `passed 00:01:00 ago`.
    fn limit_in_words(&self) -> String {
        let Some(limit) = self.limit else { return "unknown".into() };
        let now = Instant::now();
        match limit.checked_duration_since(now) {
            Some(left) => format!("in {}", format_duration(round(left))),
            None => format!("passed {} ago", format_duration(round(now - limit))),
        }
    }
}
