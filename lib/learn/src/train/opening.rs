//! How a start begins: the first rank looks at the run, takes its lease and decides; the others follow.

use super::comparison::Comparison;
use super::compiled::Compiled;
use super::inputs::not_of_checkpoint;
use super::job::{Job, identity};
use super::keeper::Keeper;
use super::learner::Learner;
use super::numerics::Numerics;
use super::portions::Portions;
use super::progress::Progress;
use super::reporter::Reporter;
use super::restart::Found;
use super::session::Session;
use super::{all_or_none, failed, machine, restart};
use crate::checkpoint::{self, Loaded, State};
use crate::optim::Schedule;
use crate::task::Task;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use unix::budget::Budget;
use unix::lease::Lease;
use unix::run_dir::RunDir;
use unix::signal::Signals;
use unix::{Context, Error, Exit, Result};

/// What a start found.
pub(super) enum Start {
    /// Nothing to do, or nothing that may be done; it was said why.
    Leave(Exit),
    /// There is work.
    Go(Box<(Session, Reporter)>),
}

/// What the first rank tells the others.
#[derive(Serialize, Deserialize)]
enum Opening {
    /// To leave with this status.
    Leave(u8),
    /// To begin from this checkpoint, or anew, as this attempt.
    From { checkpoint: Option<PathBuf>, stands_at: Option<u64> },
}

/// Begins a start. Errors: those of one rank alone, which end all; what the first rank refuses is said by
/// it, and all leave.
pub(super) fn open(job: &Job) -> Result<Start> {
    let signals = Signals::install()?;
    let mut start = match job.ranks.rank() {
        0 => lead(job, signals)?,
        _ => follow(job, signals)?,
    };
    if let Start::Go(both) = &mut start {
        let (session, reporter) = &mut **both;
        same_everywhere(job, session).inspect_err(|error| {
            reporter.failed(&session.progress, &error.to_string());
        })?;
        job.ranks.watch();
    }
    Ok(start)
}

/// The first rank's part.
fn lead(job: &Job, signals: Signals) -> Result<Start> {
    let start = first(job, signals);
    if job.ranks.size() == 1 {
        return start;
    }
    let opening = match &start {
        Ok(Start::Leave(exit)) => Opening::Leave(*exit as u8),
        Ok(Start::Go(both)) => {
            let session = &both.0;
            Opening::From { checkpoint: session.began_at.clone(), stands_at: session.stands_at }
        }
        Err(error) => Opening::Leave(error.exit as u8),
    };
    job.ranks.broadcast(serde_json::to_vec(&opening).map_err(Error::bug)?)?;
    let mut start = start.or_else(|error| {
        unix::diagnostics::say_error(&error);
        Ok::<_, Error>(Start::Leave(error.exit))
    })?;
    if let Start::Go(both) = &mut start
        && let Err(error) = all_or_none(job.ranks, Ok(()))?
    {
        let (session, reporter) = &mut **both;
        reporter.failed(&session.progress, &error.to_string());
        return Ok(Start::Leave(error.exit));
    }
    Ok(start)
}

/// The part of the others.
fn follow(job: &Job, signals: Signals) -> Result<Start> {
    // What is wrong here may be wrong on the first rank, too, which then says it for all.
    let opened = Opened::new(job);
    let told = job.ranks.broadcast(Vec::new())?;
    let (path, stands_at) = match serde_json::from_slice(&told).map_err(Error::bug)? {
        Opening::Leave(exit) => return Ok(Start::Leave(exit_of(exit))),
        Opening::From { checkpoint, stands_at } => (checkpoint, stands_at),
    };
    let session =
        opened.and_then(|opened| resume(job, signals, opened, path.as_deref(), stands_at));
    Ok(match all_or_none(job.ranks, session)? {
        Ok(session) => Start::Go(Box::new((session, Reporter::silent(&job.task.config.training)))),
        Err(error) => Start::Leave(error.exit),
    })
}

/// The session of another rank than 0, from the checkpoint at `path`.
fn resume(
    job: &Job,
    signals: Signals,
    opened: Opened,
    path: Option<&Path>,
    stands_at: Option<u64>,
) -> Result<Session> {
    let found = path.map(checkpoint::load).transpose().context(|| {
        format!(
            "on {}, and there on {}: is the run on a file system of all hosts?",
            job.ranks.host(0),
            unix::host::name()
        )
    })?;
    let progress =
        found.as_ref().map_or(Ok(Progress::default()), |f| restart::progress_of(job, f))?;
    let mut session = opened.session(job, signals, progress, found.as_ref(), None)?;
    session.stands_at = stands_at;
    Ok(session)
}

/// Everything that one rank by itself must look at and write before it begins.
fn first(job: &Job, signals: Signals) -> Result<Start> {
    let limit = job.task.config.training.time_limit.as_deref().map(unix::time::parse_limit);
    let budget = Budget::from_environment(limit.transpose()?.flatten());
    let run = RunDir::create_or_open(&job.run)?;
    if let Some(progress) = restart::finished(job, &run)? {
        return Ok(over(&progress));
    }
    let lease = restart::lease(&run, signals)?;
    let fence = lease.fence().clone();
    begin(job, signals, &run, lease, budget)
        .inspect_err(|error| failed::tell(&run, job.task.spec.name, &fence, error))
}

/// The same, as the one process at work on the run.
fn begin(job: &Job, signals: Signals, run: &RunDir, lease: Lease, budget: Budget) -> Result<Start> {
    let training = &job.task.config.training;
    let Found { checkpoint: found, origin } = restart::find(job, run)?;
    if origin.is_none()
        && let Some(found) = &found
        && let Some(progress) = restart::ended(job, found)?
    {
        return Ok(over(&progress));
    }
    let opened = Opened::new(job).map_err(|error| match &found {
        Some(_) => not_of_checkpoint(&job.run, error),
        None => error,
    })?;
    let facts = machine::facts(job.device);
    let (mut progress, mut accepted) = (Progress::default(), Vec::new());
    if let Some(found) = &found {
        progress = restart::progress_of(job, found)?;
        accepted = restart::changes(job, found, Some(&*opened.task))?;
        restart::say(found, &accepted, &facts);
        restart::say_of_ranks(job, found);
        if progress.update > training.updates {
            return Err(Error::config(format!(
                "training.updates is {}, and {} of them are done in {}: no run goes back",
                training.updates,
                progress.update,
                found.path().display()
            )));
        }
    }
    // Without a checkpoint there is nothing to compare with: the user's word counts.
    let changed = !accepted.is_empty() || found.is_none() && job.accept_changes;
    restart::refuse_in_vain(job, run, &lease, &progress, changed)?;
    if !accepted.is_empty() {
        progress.accept(lease.attempt(), &accepted);
    }
    progress.origin = origin.or(progress.origin.take());
    record(job, run, &lease, found.as_ref(), &accepted, &facts)?;
    write_config(run, &job.task.resolved)?;
    let reporter =
        Reporter::start(job, run, &lease, &progress, &accepted, &budget, opened.params.count())?;
    let frame = State {
        seed: job.task.config.seed,
        world: job.ranks.size() as u64,
        stage: job.task.spec.name.into(),
        config: job.task.resolved.clone(),
        monitor: job.task.spec.metric.into(),
        direction: job.task.spec.direction,
        config_hash: unix::config::hash(&identity(&job.task.resolved)),
        data_hash: opened.task.data_hash(),
        dependencies: opened.task.dependencies(),
        fence: Some(lease.fence().clone()),
        ..State::default()
    };
    let keeper = Keeper::new(job, run, lease, budget, frame, opened.task.input_files())?;
    let is_ours =
        |found: &&Loaded| accepted.is_empty() && found.path().parent() == Some(&*run.checkpoints());
    let stands_at = found.as_ref().filter(is_ours).map(|_| progress.update);
    let mut session = opened.session(job, signals, progress, found.as_ref(), Some(keeper))?;
    session.stands_at = stands_at;
    Ok(Start::Go(Box::new((session, reporter))))
}

fn over(progress: &Progress) -> Start {
    unix::note!("finished at update {}: nothing to do", progress.update);
    Start::Leave(Exit::Done)
}

/// The data and the model, before anything was trained.
struct Opened {
    task: Box<dyn Task>,
    params: crate::params::Params,
    portions: Portions,
}

impl Opened {
    fn new(job: &Job) -> Result<Self> {
        let (ranks, training) = (job.ranks, &job.task.config.training);
        let portions = Portions::new(training, ranks.rank(), ranks.size())?;
        if training.deterministic && !ranks.sums_in_tree(job.device) {
            return Err(Error::config(
                "training.deterministic: NCCL sums in an order of its own; with LONGHAUL_NCCL=0 in the \
                 environment gradients are summed by MPI in the order that this key asks for",
            ));
        }
        let (task, params) = job.task.open()?;
        Ok(Self { task, params: params.to_device(job.device)?, portions })
    }

    fn session(
        self,
        job: &Job,
        signals: Signals,
        progress: Progress,
        found: Option<&Loaded>,
        keeper: Option<Keeper>,
    ) -> Result<Session> {
        let training = &job.task.config.training;
        let schedule =
            Schedule::new(&job.task.config.schedule, training.updates).map_err(Error::config)?;
        let optimizer = &job.task.config.optimizer;
        let mut learner = Learner::new(self.params, optimizer, schedule, training, job.ranks)?;
        if let Some(found) = found {
            learner.assign(&progress, found).context(|| found.path().display().to_string())?;
        }
        let metrics = found.map_or(Value::Null, |found| found.manifest.metrics.clone());
        let mut session = Session {
            task: Arc::from(self.task),
            learner,
            portions: self.portions,
            exchange: None,
            keeper,
            signals,
            began_at: found.map(|found| found.path().to_path_buf()),
            validated: (progress.update, metrics),
            stands_at: None,
            numerics: Numerics::new(training, job.device),
            under_way: VecDeque::new(),
            settled: Instant::now(),
            compiled: Compiled::new(training.compile, job.device),
            longest_update: Duration::ZERO,
            before: progress.clone(),
            warned_of_cost: false,
            comparison: Comparison::default(),
            progress,
        };
        session.reserve(job)?;
        Ok(session)
    }
}

/// Writes down that this start was made, from where, and by what.
fn record(
    job: &Job,
    run: &RunDir,
    lease: &Lease,
    found: Option<&Loaded>,
    accepted: &[String],
    facts: &Value,
) -> Result<()> {
    let hosts: Vec<String> = (0..job.ranks.size()).map(|rank| job.ranks.host(rank)).collect();
    let mut entry = serde_json::json!({
        "stage": job.task.spec.name,
        "ranks": job.ranks.size(),
        "hosts": hosts,
        "training_threads": tensor::parallel::threads(),
        "resumed_from": found.map(|f| f.path().display().to_string()),
        "accepted": accepted,
    });
    if let (Some(entry), Some(facts)) = (entry.as_object_mut(), facts.as_object()) {
        entry.extend(facts.clone());
    }
    run.record_start(lease.attempt(), &entry)
}

/// Errors (78): a rank has another configuration or other data, or found another state.
fn same_everywhere(job: &Job, session: &Session) -> Result<()> {
    if job.ranks.size() == 1 {
        return Ok(());
    }
    let config = unix::config::hash(&identity(&job.task.resolved));
    let own = [config, session.task.data_hash(), session.learner.hash()?];
    let all = job.ranks.gather(&serde_json::to_vec(&own).map_err(Error::bug)?)?;
    let what = ["configuration", "data", "parameters"];
    for (rank, told) in all.iter().enumerate() {
        let theirs: [String; 3] = serde_json::from_slice(told).map_err(Error::bug)?;
        let first: [String; 3] = serde_json::from_slice(&all[0]).map_err(Error::bug)?;
        if let Some(at) = (0..what.len()).find(|at| theirs[*at] != first[*at]) {
            return Err(Error::config(format!(
                "rank {rank} on {} begins with another {} than rank 0 on {}",
                job.ranks.host(rank),
                what[at],
                job.ranks.host(0)
            )));
        }
    }
    Ok(())
}

/// The status that another rank leaves with.
pub(super) fn exit_of(number: u8) -> Exit {
    use Exit::*;
    let all = [Done, Failure, Usage, Data, NoInput, Bug, CannotCreate, Io, Again, Config];
    all.into_iter().find(|exit| *exit as u8 == number).unwrap_or(Failure)
}

/// Largest configuration that is compared, in bytes.
const MAX_CONFIG: u64 = 64 << 20;

/// Writes the resolved configuration; that of an earlier start stays beside, numbered, if it differs.
fn write_config(run: &RunDir, resolved: &Value) -> Result<()> {
    let text = unix::config::to_yaml(resolved)?;
    let path = run.config();
    match unix::small::read(&path, MAX_CONFIG) {
        Ok(before) if before == text.as_bytes() => return Ok(()),
        Ok(_) => keep_aside(&path)?,
        Err(_) => {}
    }
    unix::publish::publish_bytes(&path, text.as_bytes())
}

fn keep_aside(path: &Path) -> Result<()> {
    let aside = (1..)
        .map(|n| path.with_extension(format!("{n}.yaml")))
        .find(|p| !p.exists())
        .unwrap_or_else(|| path.with_extension("old.yaml"));
    std::fs::rename(path, aside).map_err(|cause| Error::io(path, cause))
}
