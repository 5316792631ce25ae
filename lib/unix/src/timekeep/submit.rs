//! Submits runs to SLURM, and resubmits them when they have stopped.
//!
//! `RUN/submit.json` ([`super::record`]) holds the command and its jobs; a new command replaces the old one as soon as
//! its job has been submitted. Only one process at a time submits jobs for a run: it holds a lease
//! (`RUN/submit.lease`), so two instances of `timekeep cron` may run at the same time, even on different hosts. If one
//! of them is killed after submitting a job but before recording it, the run gets a second job, which finds the first
//! one running and tries again later, or finds the run finished.

use std::path::Path;

use serde::Serialize;

use super::pipeline::step;
pub use super::record::{Job, Submission};
use super::record::{read, write};
use super::runs::{self, Run, RunState};
use crate::lease::Lease;
use crate::publish::create_folder;
use crate::run_dir::RunDir;
use crate::slurm::{self, Queued};
use crate::{Context, Error, Exit, Result, note, secrets, site, time, warn};

/// Maximum number of consecutive jobs without a new update.
const MAX_FRUITLESS_JOBS: usize = 3;
/// Maximum number of jobs that are recorded.
const MAX_REMEMBERED_JOBS: usize = 20;

/// Value of [`Done::done`] if a job was submitted.
pub const SUBMITTED: &str = "submitted";
/// Value of [`Done::done`] if no job was submitted, because none was needed or would have helped.
pub const LEFT: &str = "left";
/// The reason why cron ignores a run that was removed with --forget.
const FORGOTTEN: &str =
    "ignored by cron since timekeep submit --forget, until it is submitted again";

/// The action taken for a run, which is also the record of `timekeep submit` and `timekeep cron`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Done {
    /// Run directory.
    pub run: String,
    /// [`SUBMITTED`] or [`LEFT`].
    pub done: &'static str,
    /// The new job, or the existing one.
    pub job: Option<String>,
    /// The reason for the action.
    pub why: String,
}

/// Submits a run if necessary and records the command and the job. Creates the directory. A run that is the step
/// `FILE:NAME` of a pipeline is submitted unless the step is up to date. Errors: 75 when another process is submitting
/// the run or SLURM does not answer, 78 for an invalid site file, 73, 66, 65, 2, 1.
pub fn submit(
    path: &Path,
    command: &[String],
    site: Option<&Path>,
    step: Option<&str>,
) -> Result<Done> {
    secrets::register_words(command);
    let site = site.map(|site| site.canonicalize().map_err(|cause| Error::open(site, cause)));
    let site = site.transpose()?;
    // Report errors in the site file now, even if nothing is submitted.
    site.as_deref().map(site::read).transpose()?;
    if let Some(other) = other_run(path, command) {
        warn!("the command uses --run {other}, so its state does not appear in {}", path.display());
    }
    create_folder(path)?;
    let run = RunDir::open(path)?;
    let lease = hold(&run)?;
    let folder = std::env::current_dir().map_err(|cause| Error::io(Path::new("."), cause))?;
    let mut before = read(&run)?;
    let mut queue = match &before {
        Some(before) if !before.jobs.is_empty() => queue()?,
        _ => Vec::new(),
    };
    if let Some(before) = &mut before {
        cancel_obsolete(&run, before, &mut queue, dependency(command), &lease)?;
    }
    let mut found = runs::state_of(&run)?;
    match step {
        Some(step) if step::is_done(step)? => found.state = RunState::Finished,
        // The run finished before its inputs changed.
        Some(_) if found.state == RunState::Finished => found.state = RunState::Stopped,
        _ => {}
    }
    // Ignore jobs that have left the queue, because the user asked for a new one.
    let jobs = before.iter().flat_map(|before| before.jobs.clone());
    let jobs: Vec<Job> = jobs.filter(|job| find(&queue, &job.id).is_some()).collect();
    if let Some((job, why)) = needless(&found, &jobs, &queue) {
        let same = before.as_ref().is_none_or(|before| before.command == command);
        if let Some(before) = before.filter(|before| before.forgotten) {
            write(&run, &Submission { forgotten: false, ..before }, &lease)?;
        }
        let stays = if same { "" } else { "; the earlier command is kept" };
        return Ok(done(path, LEFT, job, &format!("{why}{stays}")));
    }
    let (command, variables) = (command.to_vec(), site::exported());
    let submission = Submission { command, folder, site, variables, jobs, forgotten: false };
    now(path, &run, submission, &found, &lease)
}

/// Cancels jobs of the run that wait for a job that will not succeed: that job failed, or it was itself resubmitted and
/// the new command depends on the new job. Removes the cancelled jobs from `queue` and records the cancellation now,
/// because the submission that follows may fail. Errors: 1, naming the job; those of [`write`].
fn cancel_obsolete(
    run: &RunDir,
    submission: &mut Submission,
    queue: &mut Vec<Queued>,
    dependency_now: Option<&str>,
    lease: &Lease,
) -> Result<()> {
    let waits_for_another =
        dependency_now.is_some() && dependency_now != dependency(&submission.command);
    let is_obsolete =
        |queued: &Queued| queued.never_starts() || waits_for_another && queued.state == "PENDING";
    let path = run.path().display();
    for at in 0..submission.jobs.len() {
        let id = submission.jobs[at].id.clone();
        // An array has one line per task, and a running task keeps the whole array.
        if find(queue, &id).is_none()
            || !queue.iter().all(|job| !is_of(job, &id) || is_obsolete(job))
        {
            continue;
        }
        slurm::cancel(&id).map_err(|why| {
            Error::failure(format!(
                "{path}: job {id} waits for a job that will not succeed, and cannot be cancelled: {why}; \
                 `scancel {id}`, then repeat this command"
            ))
        })?;
        note!("{path}: cancelled job {id}, which waits for a job that will not succeed");
        queue.retain(|job| !is_of(job, &id));
        submission.jobs[at].cancelled = true;
        write(run, submission, lease)?;
    }
    Ok(())
}

/// Returns the value of `--dependency` in an sbatch command.
fn dependency(command: &[String]) -> Option<&str> {
    command.iter().find_map(|word| word.strip_prefix("--dependency="))
}

/// Makes `timekeep cron` ignore a run until it is submitted again. The jobs of the run are not changed. Errors: 66 for
/// a run that was never submitted, 75, 73, 65.
pub fn forget(path: &Path) -> Result<Done> {
    let run = RunDir::open(path)?;
    let lease = hold(&run)?;
    let never =
        || Error::open(&run.submission(), "this run was never submitted with timekeep submit");
    let submission = read(&run)?.ok_or_else(never)?;
    write(&run, &Submission { forgotten: true, ..submission }, &lease)?;
    Ok(done(path, LEFT, None, FORGOTTEN))
}

/// Resubmits the run if it has stopped, which `timekeep cron` does for each of its runs. `queue` lists all jobs and is
/// shared by all runs, because most need no job; before a submission, the queue and the state of the last job are
/// queried again. Errors: those of [`submit`].
pub fn resubmit(path: &Path, queue: &[Queued]) -> Result<Done> {
    let left = |job, why: &str| Ok(done(path, LEFT, job, why));
    if path.exists() && !runs::is_run(path) {
        // `cron runs/*` also matches other files.
        return left(None, "not a run directory");
    }
    let run = RunDir::open(path)?;
    let found = runs::look(path)?;
    if matches!(found.state, RunState::Failed | RunState::Held) {
        let reason = found.reason.as_deref().unwrap_or("no reason given");
        let held = found.job.as_deref().and_then(|id| find(queue, id)).filter(|job| job.is_held());
        let held = held.map_or(String::new(), |job| format!("; {}", job.describe()));
        return left(found.job.clone(), &format!("failed: {reason}{held}"));
    }
    let Some(submission) = read(&run)? else {
        return match needless(&found, &[], queue) {
            Some((job, why)) => left(job, &why),
            None => left(None, "no submit.json: submit it once with timekeep submit"),
        };
    };
    if let Some((job, why)) = unwanted(&found, &submission, queue) {
        return left(job, &why);
    }
    let lease = match hold(&run) {
        Err(error) if error.exit == Exit::Again => {
            return left(None, "being submitted by another process");
        }
        other => other?,
    };
    // Since the first check, another process may have submitted the run, or a job may have started.
    let Some(mut submission) = read(&run)? else {
        return left(None, "its submit.json was removed just now");
    };
    let (queue, found) = (self::queue()?, runs::look(path)?);
    let last = submission.jobs.last_mut();
    // A job that SLURM has forgotten counts as not cancelled.
    if let Some(job) = last.filter(|job| !job.cancelled && slurm::was_cancelled(&job.id)) {
        job.cancelled = true;
        write(&run, &submission, &lease)?;
    }
    match unwanted(&found, &submission, &queue) {
        Some((job, why)) => left(job, &why),
        None => now(path, &run, submission, &found, &lease),
    }
}

/// Returns the jobs of this user. Errors: 75 if they are unknown, because nothing may then be submitted.
pub fn queue() -> Result<Vec<Queued>> {
    slurm::queue().map_err(|why| Error::new(Exit::Again, format!("{why}; nothing was submitted")))
}

fn hold(run: &RunDir) -> Result<Lease> {
    Lease::take(&run.submitting(), || Ok(1), &|| false)
}

/// Submits a job and records it. The caller must hold the lease.
fn now(
    path: &Path,
    run: &RunDir,
    mut submission: Submission,
    found: &Run,
    lease: &Lease,
) -> Result<Done> {
    let site = submission.site.as_deref().map(site::read).transpose();
    let mut variables = submission.variables.clone();
    variables.extend(site.context(|| path.display())?.unwrap_or_default());
    let id = slurm::submit(&submission.command, &submission.folder, &variables)
        .map_err(|why| Error::new(Exit::Failure, format!("{}: {why}", path.display())))?;
    let (time, update) = (time::now_utc(), found.update);
    submission.jobs.push(Job { id: id.clone(), time, update, cancelled: false });
    let old = submission.jobs.len().saturating_sub(MAX_REMEMBERED_JOBS);
    submission.jobs.drain(..old);
    write(run, &submission, lease)
        .context(|| format!("job {id} was submitted but could not be recorded"))?;
    let why = match found.state {
        RunState::New => "new".into(),
        _ => format!("stopped at update {}", found.update),
    };
    Ok(done(path, SUBMITTED, Some(id), &why))
}

/// Like [`needless`], with the reasons that apply only to cron.
fn unwanted(
    found: &Run,
    submission: &Submission,
    queue: &[Queued],
) -> Option<(Option<String>, String)> {
    let jobs = &submission.jobs;
    needless(found, jobs, queue).or_else(|| {
        if submission.forgotten {
            return Some((None, FORGOTTEN.into()));
        }
        let id = jobs.last().filter(|last| last.cancelled)?.id.clone();
        let why = format!("job {id} was cancelled: resume the run with timekeep submit");
        Some((Some(id), why))
    })
}

/// Returns the run that a command names with `--run`, if it is not `path`.
fn other_run<'a>(path: &Path, command: &'a [String]) -> Option<&'a str> {
    let named = command.iter().enumerate().rev().find_map(|(at, word)| match word.as_str() {
        "--run" => command.get(at + 1).map(String::as_str),
        word => word.strip_prefix("--run="),
    })?;
    let is_same = std::path::absolute(named).ok() == std::path::absolute(path).ok();
    (!is_same && !Path::new(named).components().eq(path.components())).then_some(named)
}

/// Returns the existing job of the run, if any, and the reason not to submit another; `None` if one should be
/// submitted.
fn needless(found: &Run, jobs: &[Job], queue: &[Queued]) -> Option<(Option<String>, String)> {
    if found.state == RunState::Finished {
        return Some((None, "finished".into()));
    }
    // The run's newest attempt may have a job that was not submitted by timekeep.
    let ids = jobs.iter().rev().map(|job| &job.id).chain(&found.job);
    if let Some((id, queued)) = ids.into_iter().find_map(|id| Some((id, find(queue, id)?))) {
        return Some((Some(id.clone()), queued.describe()));
    }
    if found.state == RunState::Running {
        return Some((found.job.clone(), "running".into()));
    }
    // A job that starts has not made progress yet: it may fail every time.
    let fruitless_attempts = jobs.iter().rev().take_while(|job| job.update == found.update).count();
    let last = jobs.last().filter(|_| fruitless_attempts >= MAX_FRUITLESS_JOBS)?.id.clone();
    let why = format!(
        "{fruitless_attempts} jobs made no progress: read their output (newest: job {last}), then submit it again \
         with timekeep submit"
    );
    Some((Some(last), why))
}

/// Finds the queue entry of a job: the job itself, or a part of its array.
pub(super) fn find<'a>(queue: &'a [Queued], id: &str) -> Option<&'a Queued> {
    queue.iter().find(|queued| is_of(queued, id))
}

/// Whether a queue entry is the job `id` or a part of it: `120_4` is a task of array 120, and `120+1` a component of a
/// heterogeneous job.
fn is_of(queued: &Queued, id: &str) -> bool {
    let base = queued.id.split(['_', '+']).next().unwrap_or_default();
    // The pending part of an array may be listed as `120_[5-9]`, which may include any task.
    queued.id == id || base == id || queued.id.contains('[') && id.split('_').next() == Some(base)
}

/// Returns the record of a directory for which no job is submitted.
pub fn left(path: &Path, why: &str) -> Done {
    done(path, LEFT, None, why)
}

fn done(path: &Path, done: &'static str, job: Option<String>, why: &str) -> Done {
    Done { run: path.display().to_string(), done, job, why: why.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Creates a run in `state` that has completed `update` updates in its first attempt.
    fn run(folder: &Path, state: &str, update: u64) -> Run {
        let status = json!({"task": "codec", "state": state, "update": update, "attempt": 1});
        std::fs::write(folder.join("status.json"), status.to_string()).unwrap();
        runs::look(folder).unwrap_or_else(|_| {
            std::fs::create_dir(folder.join("ckpt")).unwrap();
            runs::look(folder).unwrap()
        })
    }

    fn job(id: &str, update: u64) -> Job {
        Job { id: id.into(), time: String::new(), update, cancelled: false }
    }

    #[test]
    fn what_runs_waits_or_is_finished_needs_no_job() {
        let folder = tempfile::tempdir().unwrap();
        let stopped = run(folder.path(), "stopped", 5);
        let queue = [queued("7")];
        assert_eq!(needless(&stopped, &[], &queue), None);
        assert_eq!(needless(&stopped, &[job("6", 0)], &queue), None);
        let (id, why) = needless(&stopped, &[job("7", 0), job("6", 0)], &queue).unwrap();
        assert_eq!((id.as_deref(), why.as_str()), (Some("7"), "in the queue: PENDING (Priority)"));
        let finished = run(folder.path(), "finished", 5);
        assert_eq!(needless(&finished, &[job("7", 0)], &queue).unwrap().1, "finished");
    }

    #[test]
    fn jobs_that_do_nothing_are_not_followed_by_others() {
        let folder = tempfile::tempdir().unwrap();
        let stopped = run(folder.path(), "stopped", 5);
        let jobs = [job("1", 0), job("2", 5), job("3", 5), job("4", 5)];
        assert_eq!(needless(&stopped, &jobs[..3], &[]), None);
        let (id, why) = needless(&stopped, &jobs, &[]).unwrap();
        assert_eq!(id.as_deref(), Some("4"));
        assert!(why.starts_with("3 jobs made no progress"), "{why}");
        assert_eq!(needless(&run(folder.path(), "stopped", 6), &jobs, &[]), None);
    }

    #[test]
    fn another_run_in_the_command_is_noticed() {
        let of = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| word.to_string()).collect();
            other_run(Path::new("runs/a"), &words).map(str::to_string)
        };
        assert_eq!(of(&["sbatch", "x", "--run", "runs/b"]).as_deref(), Some("runs/b"));
        assert_eq!(of(&["sbatch", "x", "--run=runs/b"]).as_deref(), Some("runs/b"));
        let here = std::path::absolute("runs/a").unwrap().display().to_string();
        for same in [&["--run", "runs/a/"][..], &["--run=./runs/a"], &["--run", &here], &["--run"]]
        {
            assert_eq!(of(same), None, "{same:?}");
        }
    }

    fn queued(id: &str) -> Queued {
        Queued { id: id.into(), state: "PENDING".into(), reason: "Priority".into() }
    }

    #[test]
    fn a_job_is_found_with_its_array() {
        let queue = ["7", "120_4", "130_[5-9%2]", "9+0"].map(queued);
        let id = |id: &str| find(&queue, id).map(|queued| queued.id.as_str());
        assert_eq!(id("7"), Some("7"));
        assert_eq!(id("120_4"), Some("120_4"));
        assert_eq!(id("120_5"), None);
        assert_eq!(id("120"), Some("120_4"), "an array submitted as a whole");
        assert_eq!(id("130_6"), Some("130_[5-9%2]"));
        assert_eq!(id("9"), Some("9+0"));
        assert_eq!(id("12"), None);
    }
}
