//! The state of runs. It is read from the files in their directories (`status.json`, the lease, `submit.json` and, for
//! a step of a pipeline, `step.json`), and from SLURM's queue for pending jobs.

use std::path::Path;

use serde::Serialize;
use serde_json::{Value, json};

use super::pipeline::step::{self, Stamp};
use super::{record, submit};
use crate::lease::{self, Observation};
use crate::run_dir::RunDir;
use crate::slurm::Queued;
use crate::status::{self, Status};
use crate::time::{format_duration, unix_seconds};
use crate::{Error, Result};

/// The state of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RunState {
    /// No attempt has started yet.
    New,
    /// A process is working on the run.
    Running,
    /// The run was killed: its status is running, but it has sent no heartbeat for too long.
    Lost,
    /// Stopped with a checkpoint; run it again.
    Stopped,
    /// Complete.
    Finished,
    /// Ended with an error.
    Failed,
    /// Failed in a way that another attempt would repeat.
    Held,
}

/// A run, which is also the record of `timekeep status --json`.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    /// Run directory, as given.
    pub run: String,
    /// Kind of the training task.
    pub task: Option<String>,
    /// State of the run.
    pub state: RunState,
    /// Number of completed updates.
    pub update: u64,
    /// Total number of updates.
    pub updates: Option<u64>,
    /// Estimated seconds left, at the average speed so far.
    pub eta: Option<f64>,
    /// Seconds until the time limit of the running attempt.
    pub limit: Option<u64>,
    /// Wall-clock hours so far, over all attempts.
    pub hours: f64,
    /// Wall-clock hours times the number of devices.
    pub device_hours: f64,
    /// Number of restarts.
    pub restarts: u64,
    /// Id of the running job, else of the job submitted last, else of the job of the newest attempt.
    pub job: Option<String>,
    /// Host of the newest attempt.
    pub host: Option<String>,
    /// Seconds since the last heartbeat of the current or lost process; `None` if the process ended cleanly.
    pub silent: Option<f64>,
    /// The best metric so far.
    pub best: Option<Value>,
    /// Why the run stopped or failed.
    pub reason: Option<String>,
    /// The state of the run's job in SLURM's queue.
    pub queue: Option<String>,
    /// Whether this job is held and must be released.
    #[serde(skip)]
    is_held: bool,
}

impl Run {
    /// Whether SLURM's queue may contain a job of this run.
    pub fn may_wait(&self) -> bool {
        self.job.is_some() && !matches!(self.state, RunState::Running | RunState::Finished)
    }

    /// Looks up the run's job in SLURM's queue.
    pub fn look_into(&mut self, queue: &[Queued]) {
        let queued = self.job.as_deref().and_then(|id| submit::find(queue, id));
        self.is_held = queued.is_some_and(Queued::is_held);
        self.queue = queued.map(Queued::describe);
    }

    fn of_step(&mut self, stamp: &Stamp) {
        self.restarts = stamp.attempts.saturating_sub(1);
        self.hours = stamp.seconds / 3600.0;
        match stamp.status {
            Some(0) => self.state = RunState::Finished,
            Some(status) if stamp.failed() => {
                self.state = RunState::Failed;
                self.reason = Some(format!("its command exited with {status}"));
            }
            Some(_) => self.state = RunState::Stopped,
            None => {}
        }
    }

    /// Returns the fields for a row of the table.
    pub fn row(&self) -> Value {
        let time = |seconds: f64| {
            std::time::Duration::try_from_secs_f64(seconds).map_or("-".into(), format_duration)
        };
        let progress = match self.updates.filter(|all| *all > 0) {
            Some(all) => {
                let percent = 100.0 * self.update as f64 / all as f64;
                format!("{}/{all} {percent:.0}%", self.update)
            }
            None => self.update.to_string(),
        };
        let note = match (self.state, self.silent) {
            _ if self.is_held => self.queue.clone(),
            (RunState::Lost, Some(silent)) => {
                let from = self.host.as_ref().map_or(String::new(), |host| format!(" from {host}"));
                Some(format!("no heartbeat{from} for {}", time(silent)))
            }
            (RunState::Lost, None) => {
                Some("ended without writing its state; is its disk full or read-only?".into())
            }
            (RunState::New, _) if self.queue.is_some() => self.queue.clone(),
            (RunState::New, _) => (self.job.as_ref()).map(|job| {
                format!("not started yet: see `squeue -j {job}`, or the output of the job")
            }),
            _ => self.reason.clone(),
        };
        json!({
            "run": self.run,
            "task": self.task,
            "state": self.state,
            "progress": progress,
            "left": self.eta.map(time),
            "device_hours": (1000.0 * self.device_hours).round() / 1000.0,
            "restarts": self.restarts,
            "job": self.job,
            "note": note,
        })
    }
}

/// Reads the state of a run. Errors: 66 if there is no run; 65 for a damaged status or submission.
pub fn look(path: &Path) -> Result<Run> {
    let run = RunDir::open(path)?;
    if !is_run(path) {
        return Err(Error::open(path, "it is not a run directory"));
    }
    state_of(&run)
}

/// Whether a directory contains any file of a run.
pub(super) fn is_run(path: &Path) -> bool {
    RunDir::open(path).is_ok_and(|run| {
        let files = [run.lease(), run.status(), run.submission(), run.checkpoints(), run.step()];
        files.iter().any(|path| path.exists())
    })
}

/// Reads the state of a directory that may not be a run yet.
pub(super) fn state_of(run: &RunDir) -> Result<Run> {
    let seen = lease::observe(&run.lease())?;
    let status = status::read(&run.status())?;
    let jobs = record::read(run)?.map_or(Vec::new(), |submission| submission.jobs);
    let submitted = jobs.last().filter(|job| !job.cancelled).map(|job| job.id.clone());
    let mut found = stand(run.path().display().to_string(), status, seen, submitted);
    // This is a step of a pipeline that reports no state of its own, such as evaluate gate.
    if let (RunState::New, Some(stamp)) = (found.state, step::read(&run.step())?) {
        found.of_step(&stamp);
    }
    Ok(found)
}

fn stand(
    run: String,
    status: Option<Status>,
    seen: Option<Observation>,
    submitted: Option<String>,
) -> Run {
    let at_work = seen.as_ref().is_some_and(|seen| seen.is_at_work);
    let state = match &status {
        _ if at_work => RunState::Running,
        None if seen.is_some() => RunState::Lost,
        None => RunState::New,
        Some(status) => match status.state {
            status::State::Running => RunState::Lost,
            status::State::Stopped => RunState::Stopped,
            status::State::Finished => RunState::Finished,
            status::State::Failed if status.blocked => RunState::Held,
            status::State::Failed => RunState::Failed,
        },
    };
    let is_unsure = matches!(state, RunState::Running | RunState::Lost);
    let task = status.as_ref().map(|status| status.task.clone());
    let Status { update, updates, cost, attempt, best, reason, end_time, .. } =
        status.unwrap_or_default();
    let has_pace = update > 0 && cost.hours > 0.0 && state != RunState::Finished;
    let eta = updates
        .filter(|_| has_pace)
        .map(|all| 3600.0 * cost.hours / update as f64 * all.saturating_sub(update) as f64);
    let attempt = seen.as_ref().map_or(attempt, |seen| seen.attempt.max(attempt));
    let owner = seen.as_ref().and_then(|seen| seen.owner.as_ref());
    let own_job = owner.and_then(|owner| owner.job.clone());
    Run {
        run,
        state,
        update,
        updates,
        eta,
        limit: end_time.filter(|_| at_work).map(|end| end.saturating_sub(unix_seconds())),
        hours: cost.hours,
        device_hours: cost.device_hours,
        restarts: attempt.saturating_sub(1),
        job: if at_work { own_job.or(submitted) } else { submitted.or(own_job) },
        host: owner.map(|owner| owner.host.clone()),
        silent: seen.as_ref().filter(|_| is_unsure).and_then(|seen| Some(seen.age?.as_secs_f64())),
        best: best.map(|best| json!(best)),
        reason: reason.filter(|_| !at_work),
        task,
        queue: None,
        is_held: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::{Cost, State};
    use std::time::Duration;

    fn status(state: State) -> Status {
        Status {
            task: "codec".into(),
            state,
            update: 100,
            updates: Some(400),
            best: None,
            cost: Cost { hours: 0.5, device_hours: 2.0 },
            attempt: 3,
            end_time: None,
            reason: Some("signal SIGUSR1".into()),
            cause: None,
            blocked: false,
            fruitless_attempts: 0,
            time: String::new(),
        }
    }

    fn seen(is_at_work: bool) -> Observation {
        Observation { attempt: 4, owner: None, age: Some(Duration::from_secs(200)), is_at_work }
    }

    #[test]
    fn a_running_status_needs_somebody_at_work() {
        let of = |state, seen| stand("a".into(), Some(status(state)), seen, None).state;
        assert_eq!(of(State::Running, Some(seen(true))), RunState::Running);
        assert_eq!(of(State::Running, Some(seen(false))), RunState::Lost);
        assert_eq!(of(State::Running, None), RunState::Lost);
        assert_eq!(of(State::Stopped, Some(seen(false))), RunState::Stopped);
        assert_eq!(of(State::Stopped, Some(seen(true))), RunState::Running);
        assert_eq!(of(State::Finished, Some(seen(false))), RunState::Finished);
        let held = Status { blocked: true, ..status(State::Failed) };
        assert_eq!(stand("a".into(), Some(held), None, None).state, RunState::Held);
        assert_eq!(stand("a".into(), None, None, None).state, RunState::New);
        let waits = stand("a".into(), None, None, Some("12".into()));
        assert!(waits.row()["note"].as_str().unwrap().contains("squeue -j 12"));
        let mut held = stand("a".into(), Some(status(State::Stopped)), None, Some("12".into()));
        assert!(held.may_wait());
        let reason = "JobHeldUser".to_string();
        held.look_into(&[Queued { id: "12".into(), state: "PENDING".into(), reason }]);
        assert!(held.row()["note"].as_str().unwrap().contains("scontrol release 12"));
    }

    #[test]
    fn what_is_left_follows_the_pace_so_far() {
        let run = stand("a".into(), Some(status(State::Stopped)), Some(seen(false)), None);
        assert_eq!(run.eta, Some(5400.0));
        assert_eq!((run.restarts, run.silent), (3, None));
        let line = run.row();
        assert_eq!(line["progress"], "100/400 25%");
        assert_eq!(line["left"], "01:30:00");
        assert_eq!(line["note"], "signal SIGUSR1");
        let lost = stand("a".into(), Some(status(State::Running)), Some(seen(false)), None);
        assert_eq!(lost.row()["note"], "no heartbeat for 00:03:20");
        let given_back = Observation { age: None, ..seen(false) };
        let ended = stand("a".into(), Some(status(State::Running)), Some(given_back), None);
        assert_eq!(ended.silent, None);
        assert!(ended.row()["note"].as_str().unwrap().contains("disk full"), "{}", ended.row());
        let fresh = Status { update: 0, updates: None, ..status(State::Running) };
        let fresh = stand("a".into(), Some(fresh), Some(seen(true)), None);
        assert_eq!((fresh.eta, fresh.row()["progress"].clone()), (None, "0".into()));
    }
}
