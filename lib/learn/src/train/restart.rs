//! What a start finds in its run directory, and whether it may go on from there.
//!
//! | found | done | exit |
//! |---|---|---|
//! | finished | said | 0 |
//! | another process at work | its name said | 75 |
//! | that process gone, or without a heartbeat for too long | taken over as the next attempt | |
//! | a good checkpoint | gone on from | |
//! | `--resume PATH` or `never`, and no checkpoint that descends from it | applied | |
//! | the same, and the newest checkpoint descends from it | gone on from that one | |
//! | no checkpoint | begun, with the same seed | |
//! | no checkpoint, and a log that tells of some | refused, unless told to begin again | 66 |
//! | checkpoints, none good | refused | 65 |
//! | another configuration or other data | refused, unless accepted | 78 |
//! | several attempts without progress, or a divergence | held until told otherwise | 1 |

use super::job::{Job, Resume, identity};
use super::origin::{Origin, continues};
use super::progress::Progress;
use super::{attempts, machine};
use crate::checkpoint::{self, Entry, Loaded};
use crate::task::{Buffers, Dependency, Task};
use serde_json::{Value, json};
use unix::lease::Lease;
use unix::log::Log;
use unix::run_dir::RunDir;
use unix::signal::Signals;
use unix::status::{self, State, Status, StatusWriter};
use unix::{Error, Exit, Result};

/// Takes the lease of the run; a signal ends the waiting for an owner without a sign of life.
pub(super) fn lease(run: &RunDir, signals: Signals) -> Result<Lease> {
    checkpoint::hold(run, &|| signals.stop_requested().is_some())
}

/// The end of a run that is finished, whoever looks; needs no lease.
pub(super) fn finished(job: &Job, run: &RunDir) -> Result<Option<Progress>> {
    let entries = checkpoint::list(&run.checkpoints())?;
    let Some(newest) = entries.last() else { return Ok(None) };
    let manifest = newest.manifest().filter(|manifest| continues(job, manifest));
    let says = manifest.and_then(|m| m.progress.get("finished")?.as_bool());
    if !newest.is_good() || says != Some(true) {
        return Ok(None);
    }
    // A damaged one is told of when it is looked for again.
    let Ok(found) = checkpoint::load(&newest.path) else { return Ok(None) };
    ended(job, &found)
}

/// Where the run ended, if this is its end and no change was accepted that makes it go on.
pub(super) fn ended(job: &Job, found: &Loaded) -> Result<Option<Progress>> {
    let progress = progress_of(job, found)?;
    Ok((progress.finished && changes(job, found, None)?.is_empty()).then_some(progress))
}

/// Where a start resumes.
pub(super) struct Found {
    /// The checkpoint; none to begin at update 0.
    pub checkpoint: Option<Loaded>,
    /// What `--resume` asked for, if this start applies it.
    pub origin: Option<Origin>,
}

/// Finds the checkpoint to resume from.
pub(super) fn find(job: &Job, run: &RunDir) -> Result<Found> {
    let Some(origin) = Origin::of(&job.resume) else {
        let checkpoint = checkpoint::load_newest(&run.checkpoints())?;
        checkpoint.is_none().then(|| refuse_emptied(run)).transpose()?;
        return Ok(Found { checkpoint, origin: None });
    };
    let entries = checkpoint::list(&run.checkpoints())?;
    if let Some(newest) = descendant(job, &entries) {
        let path = newest.path().display();
        unix::note!(
            "--resume was applied by an earlier start: resuming from its newest checkpoint, {path}"
        );
        return Ok(Found { checkpoint: Some(newest), origin: None });
    }
    let checkpoint = match &job.resume {
        Resume::From(path) => Some(checkpoint::load(path)?),
        _ if entries.is_empty() => None,
        _ => {
            return Err(Error::new(
                Exit::CannotCreate,
                format!(
                    "{} has checkpoints and --resume never would leave them behind: \
                     choose another run directory, or --resume auto",
                    job.run.display()
                ),
            ));
        }
    };
    Ok(Found { checkpoint, origin: Some(origin) })
}

/// The newest good checkpoint of the run, if it descends from the `--resume` of this start.
fn descendant(job: &Job, entries: &[Entry]) -> Option<Loaded> {
    for entry in entries.iter().rev().filter(|entry| entry.is_good()) {
        entry.manifest().filter(|manifest| continues(job, manifest))?;
        match checkpoint::load(&entry.path) {
            Ok(loaded) => return Some(loaded),
            Err(error) => unix::warn!("passed over: {error}"),
        }
    }
    None
}

/// Errors (66): there are no checkpoints in the run, and there were.
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
            "{} tells of a checkpoint at update {update}, and {} has none: bring it back from a copy, or \
             begin again with --resume never",
            run.log().display(),
            run.checkpoints().display()
        ),
    ))
}

/// Where training stood, after everything that the checkpoint says twice was compared.
pub(super) fn progress_of(job: &Job, found: &Loaded) -> Result<Progress> {
    let (path, manifest) = (found.path().display(), &found.manifest);
    if manifest.stage != job.task.spec.name {
        let stage = &manifest.stage;
        return Err(Error::config(format!(
            "{path} is of stage {stage}, not {}",
            job.task.spec.name
        )));
    }
    let progress: Progress = serde_json::from_value(manifest.progress.clone())
        .map_err(|cause| Error::data(format!("{path}: progress: {cause}")))?;
    if progress.update != manifest.update {
        return Err(Error::data(format!(
            "{path}: update {} in the manifest, {} in its progress",
            manifest.update, progress.update
        )));
    }
    let configured = manifest.config.get("seed").and_then(Value::as_u64);
    if configured != Some(manifest.seed) {
        let text = format!("{path}: its seed is {}, that of its configuration", manifest.seed);
        return Err(Error::data(format!("{text} {configured:?}")));
    }
    Ok(progress)
}

/// In what the configuration, and where the stage is opened its data, differ from those of the
/// checkpoint. Errors: 78 when they do and that was not accepted; 65 when it lacks constants.
pub(super) fn changes(job: &Job, found: &Loaded, task: Option<&dyn Task>) -> Result<Vec<String>> {
    let (was, is) = (identity(&found.manifest.config), identity(&job.task.resolved));
    let mut changes = Vec::new();
    difference("", &was, &is, &mut changes);
    if let Some(task) = task {
        let (was, is) = (&found.manifest.data_hash, task.data_hash());
        if *was != is {
            changes.push(format!("data: hash was {was}, now {is}"));
        }
        for (name, Dependency { hash: is, .. }) in task.dependencies() {
            let was = found.manifest.dependencies.get(&name);
            let was = was.map_or("missing", |dependency| &dependency.hash);
            if was != is {
                changes.push(format!("data: {name} was {was}, now {is}"));
            }
        }
        let saved = found.tensors("buffers").unwrap_or_default();
        changes.extend(other_constants(&saved, &task.buffers(), found)?);
    }
    if changes.is_empty() || job.accept_changes {
        return Ok(changes);
    }
    let first = format!(
        "{} was made with another configuration or other data: start a new run directory for it, or \
         continue with --accept-config-change",
        found.path().display()
    );
    Err(Error::list(Exit::Config, first, &changes))
}

/// Buffers whose values differ. Errors: 65 when the checkpoint lacks one.
fn other_constants(saved: &Buffers, ours: &Buffers, found: &Loaded) -> Result<Vec<String>> {
    let mut differ = Vec::new();
    for (name, is) in ours {
        let Some((_, was)) = saved.iter().find(|(n, _)| n == name) else {
            return Err(Error::data(format!("{} has no constant {name}", found.path().display())));
        };
        if was.shape() != is.shape() || was.to_f64() != is.to_f64() {
            differ.push(format!("data: the constant {name} has other values"));
        }
    }
    Ok(differ)
}

/// Keys whose values differ, as "key: was, now is".
fn difference(key: &str, was: &Value, is: &Value, out: &mut Vec<String>) {
    if let (Value::Object(was), Value::Object(is)) = (was, is) {
        let mut keys: Vec<&String> = was.keys().chain(is.keys()).collect();
        keys.sort();
        keys.dedup();
        for k in keys {
            let at = if key.is_empty() { k.clone() } else { format!("{key}.{k}") };
            let null = &Value::Null;
            difference(&at, was.get(k).unwrap_or(null), is.get(k).unwrap_or(null), out);
        }
    } else if was != is {
        out.push(format!("{key}: was {was}, now {is}"));
    }
}

/// Says what was accepted, and that bits may differ when another program or machine goes on.
pub(super) fn say(found: &Loaded, accepted: &[String], facts: &Value) {
    for change in accepted {
        unix::warn!("accepted: {change}");
    }
    if let Some(differs) = machine::differences(found, facts) {
        unix::warn!("bits may differ from those of an uninterrupted run: {differs}");
    }
}

/// Says that bits may differ when another number of ranks goes on, unless that makes no difference.
pub(super) fn say_of_ranks(job: &Job, found: &Loaded) {
    let (was, is) = (found.manifest.world, job.ranks.size() as u64);
    if was != is && !job.task.config.training.deterministic {
        unix::warn!(
            "bits may differ from those of an uninterrupted run: {was} ranks, now {is} \
             (training.deterministic would make them the same)"
        );
    }
}

/// Refuses a run that would only fail again: one that diverged, and one that made no progress in several
/// attempts. `--retry` or an accepted change lets it try again. Errors: 1.
pub(super) fn refuse_in_vain(
    job: &Job,
    run: &RunDir,
    lease: &Lease,
    progress: &Progress,
    changed: bool,
) -> Result<()> {
    if job.retry || changed {
        return Ok(());
    }
    let before = status::read(&run.status()).unwrap_or_else(|error| {
        unix::warn!("{error}");
        None
    });
    if let Some(held) = &before
        && held.state == State::Failed
        && held.held
    {
        return Err(in_vain(job, held.reason.as_deref().unwrap_or("it failed before")));
    }
    let limit = job.task.config.training.attempts_without_progress;
    let count = attempts::without_progress(&run.log(), (progress.passed_over, progress.update))?;
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
    hold(job, run, lease, progress, &reason)?;
    Err(in_vain(job, &reason))
}

fn in_vain(job: &Job, reason: &str) -> Error {
    let text = format!(
        "{}: {reason}; nothing was done. Look into its log, mend the cause, then start it with --retry, \
         or with a changed configuration and --accept-config-change",
        job.run.display()
    );
    Error::new(Exit::Failure, text)
}

/// Writes down that the run failed, before anything of it is made.
fn hold(job: &Job, run: &RunDir, lease: &Lease, progress: &Progress, reason: &str) -> Result<()> {
    let (attempt, fence) = (lease.attempt(), lease.fence().clone());
    let mut log = Log::open(&run.log(), attempt)?.fenced(fence.clone());
    log.write(
        "stop",
        &json!({"update": progress.update, "state": State::Failed, "reason": reason}),
    )?;
    StatusWriter::new(run.status()).fenced(fence).write(&Status {
        stage: job.task.spec.name.into(),
        state: State::Failed,
        update: progress.update,
        updates: Some(job.task.config.training.updates),
        best: progress.best.clone(),
        cost: progress.cost(),
        attempt,
        reason: Some(reason.into()),
        held: true,
        in_vain: 0,
        time: String::new(),
    })
}
