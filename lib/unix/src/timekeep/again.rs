//! Determines what happens to a batch job when its command has exited.
//!
//! | status | action |
//! |---|---|
//! | 0 | none: the job is complete, and `afterok` dependents start |
//! | 75 | requeue the job; wait until SLURM ends it, so that no later line of the script runs |
//! | 143 | as for 75: TERM ended a program without a handler, as in the grace time of a preemption |
//! | 137 | as for 75: a user or the kernel's OOM killer killed it. Not if timekeep killed it after the limit |
//! | 254 of srun | srun could not start a step: run it again, then requeue the job, or hold it ([`NO_STEP`]) |
//! | 254 of srun after a signal to stop | as for 75 |
//! | 75, 143 or 137, restarted too many times | as for a failure |
//! | any other | the job ends with it or, with [`OnFailure::Hold`], stays in the queue: dependents keep waiting |
//!
//! A program that makes no progress in any attempt must exit with a different status; longhaul's programs do. If an
//! attempt exits with 75 immediately and without having been asked to, for example because another job holds the run,
//! the next attempt is delayed.
//!
//! Requeueing requires SLURM's commands, which are missing in a container. There, the status is returned to the process
//! that started the container.

use std::os::unix::process::parent_id;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use rustix::process::{Signal, set_parent_process_death_signal};
use signal_hook::consts::{SIGKILL, SIGTERM};

use super::group::NO_STEP;
use super::monitor::ChildMonitor;
use super::{Cause, Ended};
use crate::slurm::{Attempts, RequeueKind, Slurm, requeue};
use crate::{Exit, note, warn};

/// What to do when the command exits with 75.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Requeue {
    /// Request a requeue from SLURM, and wait until SLURM ends the job; in a terminal, as never
    Auto,
    /// Request a requeue also in a terminal, whose session it ends
    Always,
    /// Exit with the status of the command
    Never,
}

/// What to do when the command fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OnFailure {
    /// End the job with the status of the command
    End,
    /// Requeue and hold the job until it is released; jobs that depend on it keep waiting
    Hold,
}

/// What to do when the command has exited: options of `timekeep run`.
#[derive(clap::Args, Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExitPolicy {
    /// What to do when the command exits with 75 in the script of a batch job
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    pub requeue: Requeue,
    /// What to do when the command fails in the script of a batch job, or has been requeued too often
    #[arg(long, value_name = "WHAT", default_value = "end", env = "LONGHAUL_ON_FAILURE")]
    pub on_failure: OnFailure,
    /// Do not requeue a job that SLURM has restarted this many times
    #[arg(long, value_name = "COUNT", default_value_t = 1000, env = "LONGHAUL_MAX_RESTARTS")]
    pub max_restarts: u32,
}

/// Status of a command that was ended by TERM.
const ENDED_BY_TERM: u8 = 128 + SIGTERM as u8;
/// Status of a command that was ended by KILL.
const ENDED_BY_KILL: u8 = 128 + SIGKILL as u8;

/// Maximum run time in seconds of an attempt that exits by itself and presumably could not start its work.
const IMMEDIATE: f64 = 10.0;
/// Initial and maximum delay of the next attempt after an immediate exit; it doubles with each restart.
const DELAY: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(600));

/// Maximum number of times that srun is run if it cannot start a step although the controller answers.
const STEP_TRIES: u32 = 3;

/// The outcome of a command, as it concerns its job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CommandOutcome {
    Done,
    /// The command should run again.
    Again,
    /// srun could not start a step.
    NoStep,
    Failed,
}

impl CommandOutcome {
    pub fn of(status: u8, cause: Cause, is_srun: bool) -> Self {
        match status {
            status if status == Exit::Done as u8 => Self::Done,
            status if status == Exit::Again as u8 => Self::Again,
            ENDED_BY_TERM => Self::Again,
            ENDED_BY_KILL if cause != Cause::Killed => Self::Again,
            NO_STEP if is_srun && cause == Cause::Itself => Self::NoStep,
            NO_STEP if is_srun => Self::Again,
            _ => Self::Failed,
        }
    }
}

/// Whether to run srun again now, after `tries` runs: srun could not start a step although the controller answers, and
/// no signal requested a stop, before or during the pause made here.
pub(super) fn should_rerun(
    outcome: CommandOutcome,
    tries: u32,
    monitor: &mut ChildMonitor,
) -> bool {
    let job = Slurm::from_environment().filter(|_| outcome == CommandOutcome::NoStep);
    if tries >= STEP_TRIES || !job.is_some_and(|job| job.controller_answers()) {
        return false;
    }
    let pause = Duration::from_secs(u64::from(tries));
    note!("srun could not start a step; running it again in {} s", pause.as_secs());
    !monitor.stop_requested_within(pause)
}

/// Whether TERM arrives within `time`.
fn got_term_within(time: Duration, events: &Receiver<i32>) -> bool {
    let end = Instant::now() + time;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        match events.recv_timeout(left) {
            Ok(SIGTERM) => return true,
            Ok(_) => {}
            Err(RecvTimeoutError::Timeout) => return false,
            // Cannot happen: the sending thread runs as long as we hold its receiver.
            Err(RecvTimeoutError::Disconnected) => std::thread::sleep(left),
        }
    }
}

/// Sends SLURM the request that follows from `outcome`, and repeats it until SLURM answers. Returns whether SLURM is
/// about to end the job because of it.
pub(super) fn follow(
    then: &ExitPolicy,
    mut outcome: CommandOutcome,
    ended: &Ended,
    is_ending: bool,
    events: &Receiver<i32>,
) -> bool {
    let wanted = outcome != CommandOutcome::Done;
    let job = Slurm::from_environment().filter(|job| wanted && job.is_batch_script);
    let Some(job) = job else { return false };
    if then.requeue != Requeue::Always && has_terminal() {
        note!(
            "job {} is left alone, because this is a terminal in it; --requeue always requeues it",
            job.id()
        );
        return false;
    }
    if outcome == CommandOutcome::NoStep && !job.controller_answers() {
        outcome = CommandOutcome::Again;
    }
    let Some(request) = request_for(then, outcome, &job) else { return false };
    let id = job.id();
    let mut last_warning = String::new();
    let mut wait = |problem: &str, pause: Duration| {
        if last_warning != problem {
            warn!("{problem}; asking again until SLURM answers or ends the job");
            last_warning = problem.into();
        }
        got_term_within(pause, events)
    };
    match requeue(&job, Attempts { request, is_ending, wait: &mut wait }) {
        Ok(()) if request == RequeueKind::Requeue => {
            let later = delay(ended, job.restart_count).filter(|delay| {
                job.start_later(*delay).inspect_err(|problem| warn!("{problem}")).is_ok()
            });
            let when = later.map_or(String::new(), |delay| format!(" in {} s", delay.as_secs()));
            note!("SLURM will start job {id} again{when} (restart {})", job.restart_count + 1);
            true
        }
        Ok(()) => {
            note!(
                "job {id} is held: fix the cause, then `scontrol release {id}`, or `scancel {id}`"
            );
            true
        }
        Err(why) => {
            warn!("job {id} was not requeued: {why}");
            if outcome == CommandOutcome::Again {
                note!("submit the same job again to resume");
            }
            false
        }
    }
}

/// Whether this process belongs to a user's terminal session, for example in Jupyter or VS Code in a batch job: ending
/// the job would end the session.
fn has_terminal() -> bool {
    std::fs::File::open("/dev/tty").is_ok()
}

/// Returns the delay of the next attempt if this one exited with 75 immediately and by itself.
fn delay(ended: &Ended, restarts: u32) -> Option<Duration> {
    let unprompted = ended.cause == Cause::Itself && ended.status == Exit::Again as u8;
    let doubled = DELAY.0 * 2u32.pow(restarts.min(10));
    (unprompted && ended.seconds < IMMEDIATE).then(|| doubled.min(DELAY.1))
}

/// Returns the request to send to SLURM, if any.
fn request_for(then: &ExitPolicy, outcome: CommandOutcome, job: &Slurm) -> Option<RequeueKind> {
    if then.requeue == Requeue::Never && outcome != CommandOutcome::Failed {
        return None;
    }
    match outcome {
        CommandOutcome::Done => return None,
        CommandOutcome::Again if job.restart_count < then.max_restarts => {
            return Some(RequeueKind::Requeue);
        }
        CommandOutcome::Again => warn!(
            "SLURM has restarted job {} {} times; it is not requeued again (--max-restarts)",
            job.id(),
            job.restart_count
        ),
        // SLURM also holds a job with a batch script that it cannot launch.
        CommandOutcome::NoStep => return Some(RequeueKind::Hold),
        CommandOutcome::Failed => {}
    }
    (then.on_failure == OnFailure::Hold).then_some(RequeueKind::Hold)
}

/// Returns the exit status: immediately or, if SLURM is about to end the job, only when SLURM ends it.
///
/// The shell of a batch script is ended by the TERM that SLURM sends first, and timekeep exits with it. A shell with a
/// trap for TERM would continue with its next line, so timekeep stays until the KILL. Without a shell, after `exec
/// timekeep`, there is no next line and no reason to stay after TERM. `shell` is the original parent process: if it
/// died before prctl was called, no signal reports its death.
pub(super) fn end(
    is_ended_by_slurm: bool,
    ended: &Ended,
    events: &Receiver<i32>,
    shell: u32,
) -> u8 {
    if is_ended_by_slurm {
        let _ = set_parent_process_death_signal(Some(Signal::KILL)); // if this fails, SLURM's KILL ends us
        let under_a_shell = name_of(shell).is_none_or(|name| !name.starts_with("slurmstepd"));
        while parent_id() == shell {
            match events.recv() {
                Ok(SIGTERM) if !under_a_shell => break,
                Ok(_) => {}
                // Cannot happen: the sending thread runs as long as we hold its receiver. If it did happen, only KILL
                // would end this process.
                Err(_) => std::thread::sleep(Duration::from_secs(1)),
            }
        }
    }
    ended.status
}

fn name_of(process: u32) -> Option<String> {
    let name = std::fs::read_to_string(format!("/proc/{process}/comm")).ok()?;
    Some(name.trim_end().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(restart_count: u32) -> Slurm {
        Slurm { job_id: "7".into(), restart_count, ..Slurm::default() }
    }

    #[test]
    fn the_status_determines_the_request_to_slurm() {
        let plain =
            ExitPolicy { requeue: Requeue::Auto, on_failure: OnFailure::End, max_restarts: 2 };
        let hold = ExitPolicy { on_failure: OnFailure::Hold, ..plain };
        let never = ExitPolicy { requeue: Requeue::Never, ..hold };
        let cases = [
            (plain, 75, 0, Some(RequeueKind::Requeue)),
            (plain, 75, 1, Some(RequeueKind::Requeue)),
            (plain, 75, 2, None),
            (plain, 143, 0, Some(RequeueKind::Requeue)),
            (plain, 138, 0, None),
            (plain, 1, 0, None),
            (plain, NO_STEP, 5, Some(RequeueKind::Hold)),
            (hold, 75, 1, Some(RequeueKind::Requeue)),
            (hold, 75, 2, Some(RequeueKind::Hold)),
            (hold, 1, 0, Some(RequeueKind::Hold)),
            (hold, 139, 0, Some(RequeueKind::Hold)),
            (hold, 137, 0, Some(RequeueKind::Requeue)),
            (plain, 137, 0, Some(RequeueKind::Requeue)),
            (plain, 137, 2, None),
            (never, 75, 0, None),
            (never, 78, 0, Some(RequeueKind::Hold)),
            (never, NO_STEP, 0, None),
        ];
        for (then, status, restarts, request) in cases {
            let outcome = CommandOutcome::of(status, Cause::Itself, true);
            assert_eq!(request_for(&then, outcome, &job(restarts)), request, "{then:?} {status}");
        }
        assert_eq!(
            CommandOutcome::of(NO_STEP, Cause::Itself, false),
            CommandOutcome::Failed,
            "not of srun"
        );
        for cause in [Cause::Signalled, Cause::Warned, Cause::Terminated] {
            assert_eq!(
                CommandOutcome::of(NO_STEP, cause, true),
                CommandOutcome::Again,
                "asked to stop"
            );
        }
        assert_eq!(
            CommandOutcome::of(137, Cause::Killed, true),
            CommandOutcome::Failed,
            "by us, after the limit"
        );
    }

    #[test]
    fn the_next_attempt_is_delayed_after_an_immediate_exit() {
        let seconds = |cause, status, seconds, restarts| {
            let (signal, limit_source, command) = (None, None, Vec::new());
            let ended = Ended { cause, status, signal, seconds, limit_source, command };
            delay(&ended, restarts).map(|delay| delay.as_secs())
        };
        let delays: Vec<_> = (0..7).map(|n| seconds(Cause::Itself, 75, 1.0, n).unwrap()).collect();
        assert_eq!(delays, [30, 60, 120, 240, 480, 600, 600]);
        assert_eq!(seconds(Cause::Itself, 75, 1.0, u32::MAX), Some(600));
        assert_eq!(seconds(Cause::Itself, 75, 60.0, 0), None, "it has worked");
        assert_eq!(seconds(Cause::Itself, 137, 1.0, 0), None, "it was killed");
        assert_eq!(seconds(Cause::Signalled, 75, 1.0, 0), None, "it was asked to stop");
    }
}
