//! Start of an attempt: rank 0 inspects the run directory, takes the lease and decides; the other ranks follow.

mod failure;
mod machine;
mod origin;
mod restart_count;
pub(super) mod resume;

pub use failure::startup_failed;
pub use origin::Origin;
pub(super) use resume::progress_of;

use super::guard::not_of_checkpoint;
use super::job::{TrainJob, without_operational};
use super::progress::Progress;
use super::report::{Reporter, merged};
use super::run_writer::RunWriter;
use super::session::Session;
use super::step::Trainer;
use super::sync::{Comparison, all_ok, broadcast, gather};
use super::validation;
use crate::checkpoint::{self, Loaded, State};
use crate::config::ReduceDtype;
use crate::dependency::Dependency;
use crate::task::Opened;
use resume::ResumePoint;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use unix::budget::Budget;
use unix::lease::Lease;
use unix::run_dir::RunDir;
use unix::signal::Signals;
use unix::{Context, Error, Exit, Result};

/// Outcome of the start phase.
pub(super) enum Start<'a> {
    /// Exit: there is nothing to do, or the run must not continue; the reason has been reported.
    Leave(Exit),
    /// Train with this session.
    Go(Box<Session<'a>>),
}

/// The decision that rank 0 broadcasts to the other ranks.
#[derive(Serialize, Deserialize)]
enum StartDecision {
    /// Exit with this status.
    Leave(u8),
    /// Resume from this checkpoint, or start at update 0.
    Go { checkpoint: Option<PathBuf>, saved_at: Option<u64> },
}

/// Starts an attempt. If rank 0 refuses to train, it reports the reason, and all ranks exit. An error on any rank ends
/// all ranks.
pub(super) fn start<'a>(job: &'a TrainJob) -> Result<Start<'a>> {
    let signals = Signals::install()?;
    let mut start = match job.ranks.rank() {
        0 => start_rank_0(job, signals)?,
        _ => start_worker(job, signals)?,
    };
    if let Start::Go(session) = &mut start {
        same_on_all_ranks(session).inspect_err(|error| {
            session.reporter.failed(&session.progress, &error.to_string(), error.cause);
        })?;
        job.ranks.watch();
    }
    Ok(start)
}

fn start_rank_0<'a>(job: &'a TrainJob, signals: Signals) -> Result<Start<'a>> {
    let start = decide(job, signals);
    if job.ranks.size() == 1 {
        return start;
    }
    let decision = match &start {
        Ok(Start::Leave(exit)) => StartDecision::Leave(*exit as u8),
        Ok(Start::Go(session)) => StartDecision::Go {
            checkpoint: session.resumed_from.clone(),
            saved_at: session.saved_at,
        },
        Err(error) => StartDecision::Leave(error.exit as u8),
    };
    broadcast(job.ranks, decision)?;
    let mut start = start.or_else(|error| {
        unix::diagnostics::say_error(&error);
        Ok::<_, Error>(Start::Leave(error.exit))
    })?;
    if let Start::Go(session) = &mut start
        && let Err(error) = all_ok(job.ranks, Ok(()))?
    {
        session.reporter.failed(&session.progress, &error.to_string(), error.cause);
        return Ok(Start::Leave(error.exit));
    }
    Ok(start)
}

fn start_worker<'a>(job: &'a TrainJob, signals: Signals) -> Result<Start<'a>> {
    // The same error probably occurs on rank 0, which then reports it for all ranks.
    let opened = open(job);
    let (path, saved_at) = match broadcast(job.ranks, StartDecision::Leave(0))? {
        StartDecision::Leave(exit) => return Ok(Start::Leave(Exit::of(exit))),
        StartDecision::Go { checkpoint, saved_at } => (checkpoint, saved_at),
    };
    let session = opened.and_then(|opened| {
        let found = path.as_deref().map(checkpoint::load).transpose().context(|| {
            format!(
                "found on {}, but not readable on {}: is the run on a file system that all hosts share?",
                job.ranks.host(0),
                unix::host::name()
            )
        })?;
        let (task, mut params) = opened;
        job.task.init(&mut params, found.as_ref())?;
        let progress = found.as_ref().map_or_else(
            || Ok(Progress::new(&job.task.config.training)),
            |found| progress_of(job, found),
        )?;
        let reporter = Reporter::silent(&job.task.config.training);
        let mut session =
            session(job, signals, (task, params), progress, found.as_ref(), (reporter, None))?;
        session.saved_at = saved_at;
        Ok(session)
    });
    Ok(match all_ok(job.ranks, session)? {
        Ok(session) => Start::Go(Box::new(session)),
        Err(error) => Start::Leave(error.exit),
    })
}

/// On rank 0: inspects the run directory, takes the lease, and decides.
fn decide<'a>(job: &'a TrainJob, signals: Signals) -> Result<Start<'a>> {
    let limit = job.task.config.training.time_limit.as_deref().map(unix::time::parse_limit);
    let budget = Budget::from_environment(limit.transpose()?.flatten());
    let run = RunDir::create_or_open(&job.run)?;
    if let Some(progress) = resume::finished(job, &run)? {
        return Ok(nothing_to_do(&progress));
    }
    let lease = resume::lease(&run, signals)?;
    let (fence, task) = (lease.fence().clone(), job.task.spec.name);
    let (folder, held) = (job.run.clone(), fence.clone());
    unix::limits::at_out_of_memory(move |error| {
        if let Ok(run) = RunDir::open(&folder) {
            failure::record(&run, task, &held, error);
        }
    });
    resume_or_init(job, signals, &run, lease, budget)
        .inspect_err(|error| failure::record(&run, task, &fence, error))
}

/// The part of [`decide`] that runs while holding the lease.
fn resume_or_init<'a>(
    job: &'a TrainJob,
    signals: Signals,
    run: &RunDir,
    lease: Lease,
    budget: Budget,
) -> Result<Start<'a>> {
    let training = &job.task.config.training;
    let ResumePoint { checkpoint: found, origin } = resume::find(job, run)?;
    if origin.is_none()
        && let Some(found) = &found
        && let Some(progress) = resume::ended(job, found)?
    {
        return Ok(nothing_to_do(&progress));
    }
    let (task, mut params) = open(job).map_err(|error| match &found {
        Some(_) => not_of_checkpoint(&job.run, error),
        None => error,
    })?;
    job.task.init(&mut params, found.as_ref())?;
    let frozen = resume::frozen_parameters(job, &params)?;
    let mut progress = match &found {
        Some(found) => progress_of(job, found)?,
        None => Progress::new(training),
    };
    let facts = machine::facts(job.device, training, &progress)?;
    let mut accepted = Vec::new();
    if let Some(found) = &found {
        accepted = resume::changes(job, found, Some((&*task, &frozen)))?;
        resume::report(job, found, &accepted, &facts);
        resume::require_updates(job, &progress, found)?;
    }
    let configured = progress.memory;
    progress.memory = configured.and(job.memory);
    if !progress.memory.is_none() {
        let memory = progress.memory;
        unix::note!("training.adapt_to_memory: {memory}, because the device ran out of memory");
    }
    let is_adapted = progress.memory != configured;
    // Without a checkpoint there is nothing to compare with; --accept-config-change then counts as an accepted change.
    let changed = !accepted.is_empty() || found.is_none() && job.accept_changes;
    resume::refuse_blocked(job, run, &lease, &progress, changed || is_adapted)?;
    if training.monitor.is_some() {
        job.task.check_monitor(&validation::probe(&*task, &params, training)?)?;
    }
    if !accepted.is_empty() {
        progress.accept(lease.attempt(), &accepted);
    }
    progress.origin = origin.or(progress.origin.take());
    record(job, run, &lease, found.as_ref(), &accepted, &facts)?;
    let config = unix::config::to_yaml(&job.task.resolved)?;
    unix::publish::publish_bytes(&run.config(), config.as_bytes())?;
    let parameters = params.trained.count();
    params.summary().iter().for_each(|text| unix::note!("{text}"));
    if job.task.config.cost.budget.is_some() && job.rate_per_hour() == 0.0 {
        unix::warn!(
            "cost.budget has no effect: cost.rate_per_hour is 0, and no price of this device is known"
        );
    }
    if training.adapt_to_memory && job.ranks.size() > 1 {
        unix::warn!("training.adapt_to_memory has no effect with several ranks");
    }
    let samples = task.sources().iter().map(|(count, _)| *count as usize).sum();
    let counts = [parameters, samples];
    let reporter = Reporter::start(job, run, &lease, &progress, &accepted, &budget, counts)?;
    let mut dependencies = task.dependencies();
    dependencies.extend(frozen);
    let recorded = |(name, found): (String, Dependency)| (name, found.recorded_in(run.path()));
    let dependencies = dependencies.into_iter().map(recorded).collect();
    let monitor = job.task.monitor();
    let frame = State {
        seed: job.task.config.seed,
        world: job.ranks.size() as u64,
        task: job.task.spec.name.into(),
        config: job.task.resolved.clone(),
        monitor: monitor.metric,
        direction: monitor.direction,
        config_hash: unix::config::hash(&without_operational(&job.task.resolved)),
        data_hash: task.data_hash(),
        dependencies,
        fence: Some(lease.fence().clone()),
        ..State::default()
    };
    let writer = RunWriter::new(job, run, lease, budget, frame, task.input_files())?;
    let is_unchanged =
        |found: &&Loaded| accepted.is_empty() && found.path().parent() == Some(&*run.checkpoints());
    let saved_at = found.as_ref().filter(is_unchanged).map(|_| progress.update);
    let output = (reporter, Some(writer));
    let mut session = session(job, signals, (task, params), progress, found.as_ref(), output)?;
    session.saved_at = saved_at;
    Ok(Start::Go(Box::new(session)))
}

fn nothing_to_do<'a>(progress: &Progress) -> Start<'a> {
    unix::note!("finished at update {}: nothing to do", progress.update);
    Start::Leave(Exit::Done)
}

/// Opens the data and builds the model with its initial parameters.
fn open(job: &TrainJob) -> Result<Opened> {
    let training = &job.task.config.training;
    if job.ranks.size() > 1
        && training.reduce_dtype != ReduceDtype::F32
        && !job.ranks.uses_nccl(job.device)
    {
        let device = job.device;
        return Err(Error::config(format!(
            "training.reduce_dtype: without NCCL, gradients on {device} are summed over ranks as f32"
        )));
    }
    if training.deterministic && job.ranks.uses_nccl(job.device) {
        return Err(Error::config(
            "training.deterministic: NCCL does not sum in a fixed order; set LONGHAUL_NCCL=0 in the \
             environment to sum gradients with MPI instead, in the order that this key requires",
        ));
    }
    job.task.open()
}

/// Creates a session in the state of the checkpoint `found`.
fn session<'a>(
    job: &'a TrainJob,
    signals: Signals,
    opened: Opened,
    progress: Progress,
    found: Option<&Loaded>,
    (reporter, writer): (Reporter, Option<RunWriter>),
) -> Result<Session<'a>> {
    let mut trainer = Trainer::new(&job.task, job.device, job.ranks, opened, &progress)?;
    if let Some(found) = found {
        let learner = &mut trainer.learner;
        learner.assign(&progress, found).context(|| found.path().display().to_string())?;
    }
    let metrics = found.map_or(Value::Null, |found| found.manifest.metrics.clone());
    let mut session = Session {
        job,
        trainer,
        reporter,
        writer,
        signals,
        resumed_from: found.map(|found| found.path().to_path_buf()),
        validated: (progress.update, metrics),
        saved_at: None,
        in_flight: VecDeque::new(),
        retired: Instant::now(),
        longest_update: Duration::ZERO,
        before: progress.clone(),
        warned_of_cost: false,
        comparison: Comparison::default(),
        progress,
    };
    session.reserve()?;
    Ok(session)
}

/// Records in `env.json` where this attempt resumes and on which hosts it runs.
fn record(
    job: &TrainJob,
    run: &RunDir,
    lease: &Lease,
    found: Option<&Loaded>,
    accepted: &[String],
    facts: &Value,
) -> Result<()> {
    let hosts: Vec<String> = (0..job.ranks.size()).map(|rank| job.ranks.host(rank)).collect();
    let entry = serde_json::json!({
        "task": job.task.spec.name,
        "ranks": job.ranks.size(),
        "hosts": hosts,
        "training_threads": tensor::parallel::threads(),
        "resumed_from": found.map(|f| f.path().display().to_string()),
        "accepted": accepted,
    });
    run.record_start(lease.attempt(), &merged(entry, facts))
}

/// Checks that configuration, data, parameters and the gradient summation are the same on all ranks. Errors: 78 when
/// they are not.
fn same_on_all_ranks(session: &Session) -> Result<()> {
    let job = session.job;
    if job.ranks.size() == 1 {
        return Ok(());
    }
    let config = unix::config::hash(&without_operational(&job.task.resolved));
    let sums = if job.ranks.uses_nccl(job.device) { "NCCL" } else { "host" };
    let learner = &session.trainer.learner;
    let own = [config, session.trainer.task.data_hash(), learner.hash()?, sums.into()];
    let all = gather(job.ranks, own)?;
    let what = ["configuration", "data", "parameters", "way to sum gradients (LONGHAUL_NCCL)"];
    for (rank, theirs) in all.iter().enumerate() {
        if let Some(at) = (0..what.len()).find(|at| theirs[*at] != all[0][*at]) {
            return Err(Error::config(format!(
                "rank {rank} on {} starts with a different {} than rank 0 on {}",
                job.ranks.host(rank),
                what[at],
                job.ranks.host(0)
            )));
        }
    }
    Ok(())
}
