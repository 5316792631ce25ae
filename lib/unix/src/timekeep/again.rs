//! What follows when the command of a batch job has ended.
//!
//! | status | done |
//! |---|---|
//! | 0 | nothing: the job is done, and `afterok` goes on |
//! | 75 | SLURM is asked to start the job again; we stay until it ends us, so that no later line of the script runs |
//! | 143 | the same: TERM ended a program that does not listen to it, as in the grace of a preemption |
//! | these, started too often | as on a failure |
//! | any other | the job ends with it or, with [`OnFailure::Hold`], is kept in the queue: dependents keep waiting |
//!
//! SLURM can be asked only where its commands are: not in a container. There the status is left to whoever
//! started the container.

use std::os::unix::process::parent_id;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use rustix::process::{Signal, set_parent_process_death_signal};
use signal_hook::consts::SIGTERM;

use super::Ended;
use crate::budget::Budget;
use crate::slurm::{Asked, Asking, Slurm, requeue};
use crate::{Exit, note, warn};

/// When the command ends with 75.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requeue {
    /// The job is started again, if this is the script of a batch job.
    Auto,
    /// The status is handed on, and that is all.
    Never,
}

/// When the command fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFailure {
    /// The job ends; jobs that depend on it never start.
    End,
    /// The job is held in the queue, until its user releases or cancels it.
    Hold,
}

/// What follows when the command has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Then {
    /// After 75.
    pub requeue: Requeue,
    /// After a failure.
    pub on_failure: OnFailure,
    /// A job that SLURM has started again this often is not started again.
    pub max_restarts: u32,
}

/// Status of a command that TERM ended.
const ENDED_BY_TERM: u8 = 128 + SIGTERM as u8;

/// How long a controller without an answer is asked, in a job without a limit.
const PATIENCE: Duration = Duration::from_secs(1800);

/// Does what follows. Whether SLURM is about to end the job, because it was asked to.
pub(super) fn follow(then: &Then, status: u8, budget: &Budget, is_ending: bool) -> bool {
    let wanted = status != Exit::Done as u8;
    let job = Slurm::from_environment().filter(|job| wanted && job.is_batch_script);
    let Some(job) = job else { return false };
    let Some(asked) = wanted_of(then, status, &job) else { return false };
    let until = Instant::now() + budget.left().unwrap_or(PATIENCE).max(Duration::from_secs(1));
    let id = job.id();
    let mut tell = |fault: &str| warn!("{fault}; asking again");
    match requeue(&job, Asking { asked, is_ending, until, tell: &mut tell }) {
        Ok(()) if asked == Asked::Again => {
            note!("job {id} is started again by SLURM (restart {})", job.restart_count + 1);
            true
        }
        Ok(()) => {
            note!(
                "job {id} is held: mend the cause, then `scontrol release {id}`, or `scancel {id}`"
            );
            true
        }
        Err(why) => {
            warn!("job {id} was not put back into the queue: {why}");
            if status == Exit::Again as u8 {
                note!(
                    "status {status}: the same job, submitted again, goes on where this one stopped"
                );
            }
            false
        }
    }
}

/// What SLURM is to be asked for, if anything.
fn wanted_of(then: &Then, status: u8, job: &Slurm) -> Option<Asked> {
    if status == Exit::Again as u8 || status == ENDED_BY_TERM {
        if then.requeue == Requeue::Never {
            return None;
        }
        if job.restart_count < then.max_restarts {
            return Some(Asked::Again);
        }
        warn!(
            "job {} was started again {} times and is not started again (--max-restarts)",
            job.id(),
            job.restart_count
        );
    }
    (then.on_failure == OnFailure::Hold).then_some(Asked::Held)
}

/// The status to end with: at once or, when SLURM is about to end the job, only when it did.
///
/// The shell of a batch script dies of the TERM that SLURM begins with, and we with the shell. One that
/// has a trap for TERM would go on to its next line: we stay until the KILL. Without a shell, after
/// `exec timekeep`, there is no next line, and nothing to stay for after TERM. `shell` is the parent that
/// we were started by; nobody tells of its death if it died before we asked to be told.
pub(super) fn end(
    is_ended_by_slurm: bool,
    ended: &Ended,
    events: &Receiver<i32>,
    shell: u32,
) -> u8 {
    if is_ended_by_slurm {
        let _ = set_parent_process_death_signal(Some(Signal::KILL)); // else SLURM's KILL comes for us
        let under_a_shell = name_of(shell).is_none_or(|name| !name.starts_with("slurmstepd"));
        while parent_id() == shell {
            match events.recv() {
                Ok(SIGTERM) if !under_a_shell => break,
                Ok(_) => {}
                // The thread cannot end while we hold its receiver; if it did, only KILL ends us.
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
    fn what_is_asked_for_after_which_status() {
        let plain = Then { requeue: Requeue::Auto, on_failure: OnFailure::End, max_restarts: 2 };
        let hold = Then { on_failure: OnFailure::Hold, ..plain };
        let never = Then { requeue: Requeue::Never, ..hold };
        let cases = [
            (plain, 75, 0, Some(Asked::Again)),
            (plain, 75, 1, Some(Asked::Again)),
            (plain, 75, 2, None),
            (plain, 143, 0, Some(Asked::Again)),
            (plain, 138, 0, None),
            (plain, 1, 0, None),
            (hold, 75, 1, Some(Asked::Again)),
            (hold, 75, 2, Some(Asked::Held)),
            (hold, 1, 0, Some(Asked::Held)),
            (hold, 137, 0, Some(Asked::Held)),
            (never, 75, 0, None),
            (never, 78, 0, Some(Asked::Held)),
        ];
        for (then, status, restarts, asked) in cases {
            assert_eq!(wanted_of(&then, status, &job(restarts)), asked, "{then:?} {status}");
        }
    }
}
