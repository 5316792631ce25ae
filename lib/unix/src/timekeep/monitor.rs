//! Watches a running command: forwards signals, enforces the time limit, and cleans up remaining processes.

use std::iter::Peekable;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};
use std::vec::IntoIter;

use signal_hook::consts::{SIGCHLD, SIGTERM, SIGUSR1, SIGUSR2};

use super::group::{self, Group};
use super::guard::{Guard, Schedule};
use super::{Cause, CommandPlan, Signal};
use crate::budget::{Budget, round};
use crate::time::format_duration;
use crate::{Result, note};

/// Time after which a command that starts within its margin is warned. The tasks of srun or mpirun receive no USR1 or
/// USR2 before it, because these signals end a program that has not installed its handlers yet. Other commands receive
/// them as soon as they handle them.
pub(super) const HANDLER_DELAY: Duration = Duration::from_secs(10);
/// Interval at which a command that does not handle a signal yet is polled.
const HANDLER_INTERVAL: Duration = Duration::from_millis(20);
/// Interval at which the remaining processes of a group are polled.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// A limit counts as extended if it is later by more than this, because two queries may differ by seconds.
const EXTENSION_THRESHOLD: Duration = Duration::from_secs(20);
/// Time to wait for a killed process to disappear.
const KILL_WAIT: Duration = Duration::from_secs(5);

/// A signal to send at a given time.
pub(super) struct TimedSignal {
    pub at: Instant,
    pub signal: Signal,
    cause: Cause,
}

/// Returns the signals to send for a limit, in chronological order.
pub(super) fn steps(limit: Instant, schedule: Schedule) -> Vec<TimedSignal> {
    let Schedule { margin, grace, warn_signal } = schedule;
    let now = Instant::now();
    let mut warning = limit.checked_sub(margin).unwrap_or(now);
    if warning <= now {
        // A signal that arrives before the command has installed its handler would end the command.
        warning = limit.min(now + HANDLER_DELAY);
    }
    let mut steps = vec![TimedSignal { at: warning, signal: warn_signal, cause: Cause::Warned }];
    // A grace time beyond the range of the clock never ends.
    let after = |grace| limit.checked_add(grace);
    let last = [
        (after(grace), Signal::TERM, Cause::Terminated),
        (after(grace.saturating_mul(2)), Signal::KILL, Cause::Killed),
    ];
    let step =
        |(at, signal, cause): (Option<Instant>, _, _)| Some(TimedSignal { at: at?, signal, cause });
    steps.extend(last.into_iter().filter_map(step));
    steps
}

/// A running command.
pub(super) struct ChildMonitor<'a> {
    plan: &'a CommandPlan,
    pub group: Group,
    /// The signals that timekeep has received.
    pub events: Receiver<i32>,
    /// The time limits, as currently known.
    budget: Budget,
    /// Why the command ends, as far as known.
    pub cause: Cause,
    began: Instant,
    /// Signals held back until the command has installed its handlers.
    held: Vec<i32>,
    /// The guard; present if there is a limit, or if the command must end with timekeep.
    guard: Option<Guard>,
    /// Whether timekeep received TERM: in a batch job, SLURM sends it when it ends the job.
    pub got_term: bool,
}

impl<'a> ChildMonitor<'a> {
    pub fn new(plan: &'a CommandPlan, events: Receiver<i32>, group: Group, budget: Budget) -> Self {
        let (began, held) = (Instant::now(), Vec::new());
        Self {
            plan,
            group,
            events,
            budget,
            cause: Cause::Itself,
            began,
            held,
            guard: None,
            got_term: false,
        }
    }

    /// Prepares to monitor another run of the same command, started as `group`.
    pub fn restart(&mut self, group: Group) {
        (self.group, self.began, self.guard) = (group, Instant::now(), None);
        self.held.clear();
    }

    /// Forwards signals and enforces the time limit until the command itself has ended.
    pub fn wait_for_child(&mut self) -> Result<(u8, Option<String>)> {
        let mut steps = self.steps();
        loop {
            if let Some(end) = self.group.reap()? {
                return Ok(end);
            }
            let held = std::mem::take(&mut self.held);
            let (ready, held) = held.into_iter().partition(|signal| self.is_ready_for(*signal));
            self.held = held;
            ready.into_iter().for_each(|signal| self.forward(signal));
            let is_due = |step: &TimedSignal| step.at <= Instant::now();
            if steps.peek().is_some_and(|step| is_due(step) && step.cause == Cause::Warned)
                && self.was_extended()
            {
                steps = self.steps();
            } else if let Some(step) = steps.next_if(is_due) {
                self.cause = step.cause;
                let name = group::name(step.signal);
                note!("time limit {}: sending {name}", self.limit_in_words());
                self.group.send(step.signal);
            } else {
                let next = || match self.group.is_launcher {
                    true => self.began + HANDLER_DELAY,
                    false => Instant::now() + HANDLER_INTERVAL,
                };
                let ready = (!self.held.is_empty()).then(next);
                self.wait(steps.peek().map(|step| step.at).into_iter().chain(ready).min());
            }
        }
    }

    /// Asks SLURM whether the limit has been extended. Called when the command is about to be warned, so only once
    /// unless the answer postpones the warning.
    fn was_extended(&mut self) -> bool {
        let was = self.limit();
        self.budget.ask_again();
        let later = match (was, self.limit()) {
            (Some(was), Some(now)) => now > was + EXTENSION_THRESHOLD,
            (was, now) => was.is_some() && now.is_none(),
        };
        if later {
            note!("time limit: {} now", self.budget);
        }
        later
    }

    fn limit(&self) -> Option<Instant> {
        self.budget.end().map(|end| end.at)
    }

    /// Returns the signals to send; none without a limit.
    fn steps(&mut self) -> Peekable<IntoIter<TimedSignal>> {
        let (limit, schedule) = (self.limit(), self.plan.schedule);
        let of_guard = if self.plan.ends_with_us { Some(Instant::now()) } else { limit };
        match &mut self.guard {
            Some(guard) => guard.tell(of_guard),
            None if of_guard.is_none() => {}
            none => *none = Some(Guard::start(self.group.leader, schedule, of_guard)),
        }
        limit.map_or(Vec::new(), |limit| steps(limit, schedule)).into_iter().peekable()
    }

    /// Waits for the processes that the command left behind: one grace time for them to exit, another one after TERM,
    /// and a few seconds after KILL.
    pub fn wait_for_group(&mut self) -> Result<()> {
        let grace = self.plan.schedule.grace;
        if self.group.is_alive()? {
            note!(
                "waiting up to {} for processes that the command left running",
                format_duration(grace)
            );
        }
        let patience =
            [(grace, None), (grace, Some(Signal::TERM)), (KILL_WAIT, Some(Signal::KILL))];
        for (time, signal) in patience {
            if let Some(signal) = signal.filter(|_| self.group.is_alive().unwrap_or(false)) {
                note!("sending {} to the remaining processes", group::name(signal));
                self.group.send(signal);
            }
            let start = Instant::now();
            while self.group.is_alive()? && start.elapsed() < time {
                // timekeep receives no CHLD for a process whose parent is alive, so check periodically.
                self.wait(Instant::now().checked_add(POLL_INTERVAL));
            }
        }
        if self.group.is_alive()? {
            note!("some processes cannot be killed (blocked on I/O?); leaving them");
        }
        Ok(())
    }

    /// Whether the command has been asked to stop, or is asked to within `time`; returns as soon as it is. Called after
    /// the command has ended, so signals are recorded but not forwarded.
    pub fn stop_requested_within(&mut self, time: Duration) -> bool {
        let end = Instant::now() + time;
        std::mem::take(&mut self.held).into_iter().for_each(|number| self.record(number));
        loop {
            let requested = self.cause != Cause::Itself;
            let left = end.saturating_duration_since(Instant::now());
            match self.events.recv_timeout(if requested { Duration::ZERO } else { left }) {
                Ok(number) => self.record(number),
                Err(_) => return requested,
            }
        }
    }

    /// Waits for a signal until `due`, and forwards it or holds it back.
    fn wait(&mut self, due: Option<Instant>) {
        let received = match due {
            Some(due) => self.events.recv_timeout(due.saturating_duration_since(Instant::now())),
            None => self.events.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match received {
            Ok(SIGCHLD) | Err(RecvTimeoutError::Timeout) => {}
            Ok(number) => {
                let may_wait = number == SIGUSR1 || number == SIGUSR2;
                if may_wait && !self.is_ready_for(number) {
                    self.held.push(number);
                } else {
                    self.forward(number);
                }
            }
            // Cannot happen: the sending thread runs as long as we hold its receiver. If it did happen, poll.
            Err(RecvTimeoutError::Disconnected) => std::thread::sleep(POLL_INTERVAL),
        }
    }

    /// Whether the command can be sent this signal: it handles the signal, or has had enough time to install its
    /// handlers.
    fn is_ready_for(&self, signal: i32) -> bool {
        self.began.elapsed() >= HANDLER_DELAY
            || !self.group.is_launcher && self.group.handles(signal)
    }

    fn forward(&mut self, number: i32) {
        if let Some(signal) = self.group.forward(number, self.plan.schedule.warn_signal) {
            note!("forwarding {}", group::name(signal));
            self.record(number);
        }
    }

    fn record(&mut self, number: i32) {
        self.got_term |= number == SIGTERM;
        if group::requests_exit(number) && self.cause == Cause::Itself {
            self.cause = Cause::Signalled;
        }
    }

    /// Formats the limit as `in 00:05:00` or `passed 00:01:00 ago`.
    fn limit_in_words(&self) -> String {
        let Some(limit) = self.limit() else { return "unknown".into() };
        let now = Instant::now();
        match limit.checked_duration_since(now) {
            Some(left) => format!("in {}", format_duration(round(left))),
            None => format!("passed {} ago", format_duration(round(now - limit))),
        }
    }
}
