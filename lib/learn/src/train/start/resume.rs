//! Decides, from the contents of the run directory, whether and where an attempt may resume.
//!
//! | found | action | exit |
//! |---|---|---|
//! | finished run | reports it | 0 |
//! | another process holds the lease | reports it | 75 |
//! | that process is gone, or has sent no heartbeat for too long | takes over the lease as the next attempt | |
//! | a good checkpoint | resumes | |
//! | `--resume PATH` or `never`, and no checkpoint that descends from it | applies it | |
//! | the same, and the newest checkpoint descends from it | resumes from the newest | |
//! | no checkpoint | starts at update 0, with the same seed | |
//! | no checkpoint, but the log records some | refuses, unless `--resume never` | 66 |
//! | checkpoints, but none good | refuses | 65 |
//! | different configuration or data | refuses, unless accepted | 78 |
//! | several attempts without progress, or a divergence | blocked until `--retry` or an accepted change | 1 |

use super::machine;
use super::origin::{Origin, continues};
use super::restart_count;
use crate::checkpoint::{self, Entry, Loaded};
use crate::dependency::{Dependencies, Dependency};
use crate::optim::{Phase, Schedule};
use crate::params::{FROZEN, ParamSet};
use crate::task::{Buffers, Task};
use crate::train::Progress;
use crate::train::job::{Resume, TrainJob, without_operational};
use crate::train::report;
use serde_json::{Value, json};
use unix::lease::Lease;
use unix::log::Log;
use unix::run_dir::RunDir;
use unix::signal::Signals;
use unix::status::{self, Cause, State, Status, StatusWriter};
use unix::{Error, Exit, Result};

/// Takes the lease of the run. A signal ends the wait for an owner that sends no heartbeats.
pub(in crate::train) fn lease(run: &RunDir, signals: Signals) -> Result<Lease> {
    checkpoint::hold(run, &|| signals.stop_requested().is_some())
}

/// Returns the progress of a finished run; None if it is not finished. Does not require the lease.
pub(in crate::train) fn finished(job: &TrainJob, run: &RunDir) -> Result<Option<Progress>> {
    let entries = checkpoint::list(&run.checkpoints())?;
    let Some(newest) = entries.last() else { return Ok(None) };
    let manifest = newest.manifest().filter(|manifest| continues(job, manifest));
    let says = manifest.and_then(|m| m.progress.get("finished")?.as_bool());
    if !newest.is_good() || says != Some(true) {
        return Ok(None);
    }
    // A damaged checkpoint is reported when it is loaded again later.
    let Ok(found) = checkpoint::load(&newest.path) else { return Ok(None) };
    ended(job, &found)
}

/// Returns the progress of a finished run, unless an accepted change makes the run continue.
pub(in crate::train) fn ended(job: &TrainJob, found: &Loaded) -> Result<Option<Progress>> {
    let progress = progress_of(job, found)?;
    Ok((progress.finished && changes(job, found, None)?.is_empty()).then_some(progress))
}

/// Position at which an attempt resumes.
pub(in crate::train) struct ResumePoint {
    /// Checkpoint to resume from; None to start at update 0.
    pub checkpoint: Option<Loaded>,
    /// The `--resume` option that this attempt applies.
    pub origin: Option<Origin>,
}

/// Finds the checkpoint to resume from.
pub(in crate::train) fn find(job: &TrainJob, run: &RunDir) -> Result<ResumePoint> {
    let Some(origin) = Origin::of(&job.resume) else {
        let checkpoint = checkpoint::load_newest(&run.checkpoints())?;
        checkpoint.is_none().then(|| refuse_emptied(run)).transpose()?;
        return Ok(ResumePoint { checkpoint, origin: None });
    };
    let entries = checkpoint::list(&run.checkpoints())?;
    if let Some(newest) = descendant(job, &entries) {
        let path = newest.path().display();
        unix::note!(
            "--resume was applied by an earlier attempt: resuming from its newest checkpoint, {path}"
        );
        return Ok(ResumePoint { checkpoint: Some(newest), origin: None });
    }
    let checkpoint = match &job.resume {
        Resume::From(path) => Some(checkpoint::load_at(path)?),
        _ if entries.is_empty() => None,
        _ => {
            return Err(Error::new(
                Exit::CannotCreate,
                format!(
                    "{} has checkpoints, which --resume never would ignore: choose another run directory, or \
                     --resume auto",
                    job.run.display()
                ),
            ));
        }
    };
    Ok(ResumePoint { checkpoint, origin: Some(origin) })
}

/// Loads the newest good checkpoint of the run if it descends from the `--resume` option of this attempt.
fn descendant(job: &TrainJob, entries: &[Entry]) -> Option<Loaded> {
    for entry in entries.iter().rev().filter(|entry| entry.is_good()) {
        entry.manifest().filter(|manifest| continues(job, manifest))?;
        match checkpoint::load(&entry.path) {
            Ok(loaded) => return Some(loaded),
            Err(error) => unix::warn!("skipped: {error}"),
        }
    }
    None
}

/// Refuses a run without checkpoints whose log records some. Errors: 66.
fn refuse_emptied(run: &RunDir) -> Result<()> {
    if !run.log().exists() {
        return Ok(());
    }
    let log = unix::log::read(&run.log())?;
    let saved =
        log.records.iter().filter(|record| record.get("kind").is_some_and(|kind| kind == "saved"));
    let Some(update) = saved.filter_map(|record| record.get("update")?.as_u64()).max() else {
        return Ok(());
    };
    Err(Error::new(
        Exit::NoInput,
        format!(
            "{} records a checkpoint at update {update}, but {} has none: restore it from a copy, or \
             start again with --resume never",
            run.log().display(),
            run.checkpoints().display()
        ),
    ))
}

/// Decodes the progress in a checkpoint, which must agree with its manifest.
pub(in crate::train) fn progress_of(job: &TrainJob, found: &Loaded) -> Result<Progress> {
    let (path, manifest) = (found.path().display(), &found.manifest);
    if manifest.task != job.task.spec.name {
        let task = &manifest.task;
        return Err(Error::config(format!(
            "{path} is a checkpoint of task {task}, not {}",
            job.task.spec.name
        )));
    }
    let mut progress: Progress = serde_json::from_value(manifest.progress.clone())
        .map_err(|cause| Error::data(format!("{path}: progress: {cause}")))?;
    if progress.update != manifest.update {
        return Err(Error::data(format!(
            "{path}: update {} in the manifest, {} in its progress",
            manifest.update, progress.update
        )));
    }
    let configured = manifest.config.get("seed").and_then(Value::as_u64);
    if configured != Some(manifest.seed) {
        let text = format!("{path}: the seed is {} in the manifest, ", manifest.seed);
        return Err(Error::data(format!("{text}{configured:?} in its configuration")));
    }
    // Where amp was on, only the checkpoint knows what it did on the CPU.
    let was_on = manifest.config.pointer("/training/amp") == Some(&Value::Bool(true));
    progress.amp_on_cpu |= job.task.config.training.amp && !was_on;
    Ok(progress)
}

/// Lists the differences in configuration, data and [frozen parameters](frozen_parameters) between an opened task and
/// the checkpoint. Errors: 78 when there are differences that were not accepted; 65 when a buffer is missing.
pub(in crate::train) fn changes(
    job: &TrainJob,
    found: &Loaded,
    opened: Option<(&dyn Task, &Dependencies)>,
) -> Result<Vec<String>> {
    let (was, is) =
        (without_operational(&found.manifest.config), without_operational(&job.task.resolved));
    let differences = checkpoint::value_differences("", &was, &is);
    let change = |(key, was, is)| format!("{key}: was {was}, now {is}");
    let mut changes: Vec<String> = differences.into_iter().map(change).collect();
    changes.sort();
    if let Some((task, frozen)) = opened {
        let (was, is) = (&found.manifest.data_hash, task.data_hash());
        if *was != is {
            changes.push(format!("data: hash was {was}, now {is}"));
        }
        // Frozen parameters that are stored in the checkpoint cannot have changed.
        let frozen = match found.tensors("frozen") {
            Some(_) => Dependencies::new(),
            None => frozen.clone(),
        };
        for (name, Dependency { hash: is, .. }) in task.dependencies().into_iter().chain(frozen) {
            let was = found.manifest.dependencies.get(&name);
            let was = was.map_or("missing", |dependency| &dependency.hash);
            if was != is {
                changes.push(format!("{name}: hash was {was}, now {is}"));
            }
        }
        let saved = found.tensors("buffers").unwrap_or_default();
        changes.extend(changed_buffers(&saved, &task.buffers(), found)?);
    }
    if changes.is_empty() || job.accept_changes {
        return Ok(changes);
    }
    let first = format!(
        "{} was made with another configuration or other data: use a new run directory, or continue \
         with --accept-config-change",
        found.path().display()
    );
    Err(Error::list(Exit::Config, first, &changes))
}

/// Checks that the run does not end before the checkpoint. Errors: 78.
pub(in crate::train) fn require_updates(
    job: &TrainJob,
    progress: &Progress,
    found: &Loaded,
) -> Result<()> {
    let updates = job.task.config.training.updates;
    if progress.update <= updates {
        return Ok(());
    }
    Err(Error::config(format!(
        "training.updates ({updates}) is below the {} already completed in {}; raise it or start a new run",
        progress.update,
        found.path().display()
    )))
}

/// Describes the frozen parameters as a dependency, which a checkpoint records instead of storing them; None if there
/// are none.
pub(in crate::train) fn frozen_parameters(
    job: &TrainJob,
    params: &ParamSet,
) -> Result<Dependencies> {
    if params.frozen.entries().is_empty() {
        return Ok(Dependencies::new());
    }
    let path = job.task.config.init.as_ref().map(|init| init.from.clone());
    let dependency = Dependency::new(path, params.frozen.hash()?);
    Ok(Dependencies::from([(FROZEN.into(), dependency)]))
}

/// Returns the names of the buffers whose values differ. Errors: 65 when the checkpoint lacks one.
fn changed_buffers(saved: &Buffers, ours: &Buffers, found: &Loaded) -> Result<Vec<String>> {
    let mut differ = Vec::new();
    for (name, is) in ours {
        let Some((_, was)) = saved.iter().find(|(n, _)| n == name) else {
            return Err(Error::data(format!("{} has no buffer {name}", found.path().display())));
        };
        if was.shape() != is.shape() || was.to_f64() != is.to_f64() {
            differ.push(format!("data: the buffer {name} has different values"));
        }
    }
    Ok(differ)
}

/// Reports accepted changes, and reasons why the result may not be bit-identical to an uninterrupted run.
pub(in crate::train) fn report(job: &TrainJob, found: &Loaded, accepted: &[String], facts: &Value) {
    for change in accepted {
        unix::warn!("accepted: {change}");
    }
    if !accepted.is_empty()
        && let Some((was, is)) = learning_rates(job, found)
    {
        unix::warn!(
            "the learning rate changes from {was:.3e} in update {} to {is:.3e} in the next, because the schedule depends \
             on training.updates, schedule and optimizer.learning_rate",
            found.manifest.update
        );
    }
    let (was, is) = (found.manifest.world, job.ranks.size() as u64);
    let ranks = (was != is && !job.task.config.training.deterministic).then(|| {
        format!("{was} ranks, now {is} (training.deterministic would make them the same)")
    });
    for difference in machine::differences(found, facts).into_iter().chain(ranks) {
        unix::warn!("bits may differ from those of an uninterrupted run: {difference}");
    }
}

/// Returns the learning rates of the last and the next update if a changed schedule makes the rate jump by over 1 %.
fn learning_rates(job: &TrainJob, found: &Loaded) -> Option<(f64, f64)> {
    let done = found.manifest.update;
    let rate = |config: &Value, update: u64| {
        let phases: Vec<Phase> = serde_json::from_value(config.get("schedule")?.clone()).ok()?;
        let total = config["training"]["updates"].as_u64()?;
        let schedule = Schedule::new(&phases, total).ok()?;
        let base = config["optimizer"]["learning_rate"].as_f64()?;
        Some(base * schedule.factor(update.min(total.saturating_sub(1))))
    };
    let (before, now) = (&found.manifest.config, &job.task.resolved);
    let (was, is) = (rate(before, done)?, rate(now, done)?);
    let jumps = (was - is).abs() > 0.01 * was.abs().max(is.abs());
    jumps.then_some((rate(before, done.checked_sub(1)?)?, is))
}

/// Refuses a run that would only fail again: one that diverged, or made no progress in several attempts. `--retry` or
/// an accepted change permits another attempt. Errors: 1.
pub(in crate::train) fn refuse_blocked(
    job: &TrainJob,
    run: &RunDir,
    lease: &Lease,
    progress: &Progress,
    changed: bool,
) -> Result<()> {
    if job.retry || changed {
        return Ok(());
    }
    let before = status::read(&run.status()).unwrap_or_else(|error| {
        unix::warn!("{error}; the attempt replaces it, as if the run were not blocked");
        None
    });
    if let Some(before) = &before
        && before.state == State::Failed
        && before.blocked
    {
        return Err(blocked_error(job, before.reason.as_deref().unwrap_or("it failed before")));
    }
    let limit = job.task.config.training.attempts_without_progress;
    let count =
        restart_count::without_progress(&run.log(), (progress.skipped_samples, progress.update))?;
    if count < limit {
        return Ok(());
    }
    let last = before.and_then(|status| Some(format!("; the last one: {}", status.reason?)));
    let reason = format!(
        "no progress: the last {count} attempts resumed at update {} and got no further than attempts \
         before them (training.attempts_without_progress){}",
        progress.update,
        last.unwrap_or_default()
    );
    block(job, run, lease, progress, &reason)?;
    Err(blocked_error(job, &reason))
}

fn blocked_error(job: &TrainJob, reason: &str) -> Error {
    let text = format!(
        "{}: {reason}; nothing was done. Check the log, fix the cause, then start the run with --retry, \
         or with a changed configuration and --accept-config-change",
        job.run.display()
    );
    Error::new(Exit::Failure, text)
}

/// Records that the run has failed and is blocked until `--retry` or an accepted change. Called before this attempt
/// makes an update.
fn block(
    job: &TrainJob,
    run: &RunDir,
    lease: &Lease,
    progress: &Progress,
    reason: &str,
) -> Result<()> {
    let (attempt, fence) = (lease.attempt(), lease.fence().clone());
    let mut log = Log::open(&run.log(), attempt)?.fenced(fence.clone());
    let fields = json!({"update": progress.update, "state": State::Failed, "reason": reason});
    log.write("stop", &fields)?;
    StatusWriter::new(run.status()).fenced(fence).write(&Status {
        reason: Some(reason.into()),
        cause: Some(Cause::NoProgress),
        blocked: true,
        ..report::status(job, State::Failed, progress, attempt)
    })
}
