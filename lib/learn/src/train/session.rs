//! One start of a run: what it begins from, and what it holds while it lasts.

use super::compiled::Compiled;
use super::learner::{Learner, Step};
use super::numerics::Numerics;
use super::progress::Progress;
use super::reporter::Reporter;
use super::{machine, restart};
use crate::checkpoint::{Done, KeepRules, Loaded, Saver, State};
use crate::config::{OnSpike, Training};
use crate::optim::Schedule;
use crate::stages::{ConfigOf, Stage};
use dist::Collective;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tensor::Device;
use unix::budget::Budget;
use unix::lease::Lease;
use unix::run_dir::RunDir;
use unix::signal::Signals;
use unix::{Context, Error, Result};

/// From where a start goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resume {
    /// From the newest good checkpoint of the run, or anew when there is none.
    Auto,
    /// Anew; refused where the run has checkpoints.
    Never,
    /// From this checkpoint, of this run or another with the same configuration.
    From(PathBuf),
}

/// What is to be trained.
pub struct Job<'a, S: Stage> {
    /// The configuration.
    pub config: ConfigOf<S>,
    /// The configuration as it is written to the run, secrets left out.
    pub resolved: Value,
    /// The run directory.
    pub run: PathBuf,
    /// From where to go on.
    pub resume: Resume,
    /// Whether to go on with a configuration or data that are not those of the checkpoint.
    pub accept_changes: bool,
    /// Whether to try again what failed in a way that another start would repeat.
    pub retry: bool,
    /// Where to compute.
    pub device: Device,
    /// Why there, for people.
    pub why_device: String,
    /// The ranks of the run.
    pub ranks: &'a dyn Collective,
}

/// What a start found.
pub(super) enum Start<S: Stage> {
    /// The run is at its end already.
    Finished(Box<Progress>),
    /// There is work.
    Go(Box<(Session<S>, Reporter)>),
}

/// A run at work.
pub(super) struct Session<S: Stage> {
    pub stage: Arc<S>,
    pub learner: Learner,
    pub progress: Progress,
    pub saver: Saver,
    signals: Signals,
    budget: Budget,
    /// What a checkpoint holds beside tensors and progress.
    frame: State,
    /// The update of the last validation, and its results: they belong to no other checkpoint.
    pub validated: (u64, Value),
    /// The update of the run's own checkpoint that this start goes on from, unchanged.
    pub stands_at: Option<u64>,
    numerics: Numerics,
    pub compiled: Compiled<S::Batch>,
    longest_update: Duration,
    longest_save: Duration,
    /// Seconds spent by earlier starts.
    seconds_before: f64,
    warned_of_cost: bool,
    /// Dropped after the saver, whose thread writes until then.
    lease: Lease,
}

/// Keys that may change from start to start: they decide how the run is made, not what it becomes.
const OPERATIONAL: [&str; 13] = [
    "training.compile",
    "training.mem_budget",
    "training.attempts_without_progress",
    "training.verify_every",
    "training.hash_every",
    "training.threads",
    "training.time_limit",
    "training.prefetch",
    "training.log_every",
    "checkpoint.keep_last",
    "checkpoint.keep_best",
    "checkpoint.keep_every",
    "cost",
];

/// The configuration without what may change from start to start.
pub(super) fn identity(resolved: &Value) -> Value {
    let mut identity = resolved.clone();
    for key in OPERATIONAL {
        let (path, last) = key.rsplit_once('.').unwrap_or(("", key));
        let pointer = if path.is_empty() { String::new() } else { format!("/{path}") };
        if let Some(map) = identity.pointer_mut(&pointer).and_then(Value::as_object_mut) {
            map.remove(last);
        }
    }
    identity
}

impl<S: Stage> Session<S> {
    pub fn start(job: &Job<S>) -> Result<Start<S>> {
        let signals = Signals::install()?;
        let limit = job.config.training.time_limit.as_deref().map(unix::time::parse_limit);
        let budget = Budget::from_environment(limit.transpose()?.flatten());
        let run = RunDir::create_or_open(&job.run)?;
        if let Some(progress) = restart::finished(job, &run)? {
            return Ok(Start::Finished(Box::new(progress)));
        }
        let lease = restart::lease(&run, signals)?;
        let found = restart::find(job, &run)?;
        if let Some(found) = &found
            && let Some(progress) = restart::ended(job, found)?
        {
            return Ok(Start::Finished(Box::new(progress)));
        }
        let (stage, params) = S::open(&job.config)?;
        let training = &job.config.training;
        let schedule =
            Schedule::new(&job.config.schedule, training.updates).map_err(Error::config)?;
        let params = params.to_device(job.device)?;
        let mut learner = Learner::new(params, &job.config.optimizer, schedule, training);
        let data_hash = stage.data_hash();
        let facts = machine::facts(job.device);
        let (mut progress, mut accepted) = (Progress::default(), Vec::new());
        if let Some(found) = &found {
            progress = restart::progress_of::<S>(found)?;
            accepted = restart::changes(job, found, Some(&stage))?;
            learner
                .assign(progress.steps, |name| found.tensors(name))
                .context(|| found.path().display().to_string())?;
            restart::say(found, &accepted, &facts);
            if progress.update > training.updates {
                return Err(Error::config(format!(
                    "training.updates is {}, and {} of them are done in {}: no run goes back",
                    training.updates,
                    progress.update,
                    found.path().display()
                )));
            }
        }
        let metrics = found.as_ref().map_or(Value::Null, |found| found.manifest.metrics.clone());
        let validated = (progress.update, metrics);
        let is_ours = |found: &&Loaded| {
            accepted.is_empty() && found.path().parent() == Some(&*run.checkpoints())
        };
        let stands_at = found.as_ref().filter(is_ours).map(|_| progress.update);
        // Without a checkpoint there is nothing to compare with: the user's word counts.
        let changed = !accepted.is_empty() || found.is_none() && job.accept_changes;
        restart::refuse_in_vain(job, &run, &lease, &progress, changed)?;
        if !accepted.is_empty() {
            progress.accept(lease.attempt(), &accepted);
        }
        let config_hash = crate::config::hash(&identity(&job.resolved));
        let attempt = lease.attempt();
        let mut entry = serde_json::json!({
            "stage": S::NAME,
            "ranks": job.ranks.size(),
            "training_threads": tensor::parallel::threads(),
            "resumed_from": found.as_ref().map(|f| f.path().display().to_string()),
            "accepted": accepted,
        });
        if let (Some(entry), Some(facts)) = (entry.as_object_mut(), facts.as_object()) {
            entry.extend(facts.clone());
        }
        run.record_start(attempt, &entry)?;
        write_config(&run, &job.resolved)?;
        let rules = &job.config.checkpoint;
        let keep = KeepRules {
            last: rules.keep_last,
            best: rules.keep_best,
            every: rules.keep_every,
            metric: S::METRIC.into(),
        };
        let reporter =
            Reporter::start::<S>(job, &run, &lease, &progress, &accepted, &budget, &learner)?;
        let anchor = match training.on_spike {
            OnSpike::Record => 0,
            OnSpike::Rewind => rules.every,
        };
        let mut session = Self {
            stage: Arc::new(stage),
            seconds_before: progress.seconds,
            learner,
            progress,
            saver: Saver::new(&run.checkpoints(), keep, attempt)?
                .anchored(anchor)
                .with_log(run.log()),
            signals,
            budget,
            frame: State {
                seed: job.config.seed,
                stage: S::NAME.into(),
                config: job.resolved.clone(),
                config_hash,
                data_hash,
                fence: Some(lease.fence().clone()),
                ..State::default()
            },
            validated,
            stands_at,
            numerics: Numerics::new(training, job.device),
            compiled: Compiled::new(training.compile, job.device),
            longest_update: Duration::ZERO,
            longest_save: Duration::ZERO,
            warned_of_cost: false,
            lease,
        };
        let state = session.state()?;
        session.saver.reserve(&state)?;
        Ok(Start::Go(Box::new((session, reporter))))
    }

    /// Whether this process still is the one writer of the run. Errors: 75 when it is not.
    pub fn still_ours(&self) -> Result<()> {
        self.lease.fence().check()
    }

    /// Why the run must stop now, if it must. Rank 0 decides for all.
    pub fn must_stop(&mut self, job: &Job<S>, reporter: &mut Reporter) -> Option<String> {
        let signal = self.signals.stop_requested().map(|name| format!("signal {name}"));
        let time = self.budget.must_stop(self.longest_update, self.longest_save);
        let time = time.then(|| format!("time is nearly over: {}", self.budget));
        signal.or(time).or_else(|| self.over_budget(job, reporter))
    }

    fn over_budget(&mut self, job: &Job<S>, reporter: &mut Reporter) -> Option<String> {
        let cost = &job.config.cost;
        let budget = cost.budget?;
        let spent = self.progress.seconds / 3600.0 * cost.rate_per_hour;
        if spent >= 0.9 * budget && !self.warned_of_cost {
            self.warned_of_cost = true;
            reporter
                .warn(self.progress.update, &format!("cost {spent:.2} of a budget of {budget:.2}"));
        }
        (cost.stop_at_budget && spent >= budget)
            .then(|| format!("the budget of {budget} is spent (cost.stop_at_budget)"))
    }

    /// What the next pass computes in.
    pub fn numerics(&self) -> Numerics {
        self.numerics.at(&self.progress)
    }

    /// Counts an update.
    pub fn count(&mut self, training: &Training, loss: f64, step: &Step) {
        let p = &mut self.progress;
        let overflow = self.numerics.follow(p, loss, step.applied);
        p.update += 1;
        p.samples += training.samples_per_update();
        let applied = step.applied.then_some((loss, step.gradient_norm));
        if !overflow {
            p.watch.note(&training.spike, p.update, applied);
        }
        p.steps = self.learner.memory.steps;
        p.seconds = self.seconds_before + unix::time::process_start().elapsed().as_secs_f64();
        if step.applied {
            p.skipped_in_row = 0;
        } else {
            p.skipped += 1;
            p.skipped_in_row += u64::from(!overflow);
        }
    }

    /// Remembers the longest update, its validation included.
    pub fn note_update(&mut self, took: Duration) {
        self.longest_update = self.longest_update.max(took);
    }

    /// Whether a signal asked for a checkpoint.
    pub fn asked_to_save(&self) -> bool {
        self.signals.take_checkpoint_request()
    }

    /// Validates; whether the result is the best so far.
    pub fn validate(&mut self, job: &Job<S>, reporter: &mut Reporter) -> Result<bool> {
        let started = Instant::now();
        let samples = job.config.training.validation_samples;
        let metrics = self.stage.validate(self.learner.judged(), samples)?;
        let value = metrics.get(S::METRIC).copied().unwrap_or(f64::NAN);
        let best = self.progress.judge(S::METRIC, value);
        let results = serde_json::to_value(&metrics).map_err(Error::bug)?;
        self.validated = (self.progress.update, results);
        reporter.validation(&self.progress, &metrics, best, started.elapsed())?;
        Ok(best)
    }

    /// Everything that training needs to go on from here.
    fn state(&self) -> Result<State> {
        let mut state = self.frame.clone();
        state.update = self.progress.update;
        state.progress = serde_json::to_value(&self.progress).map_err(Error::bug)?;
        if self.validated.0 == self.progress.update {
            state.metrics = self.validated.1.clone();
        }
        for (file, tensors) in self.learner.files()? {
            state.tensors.insert(file.into(), tensors);
        }
        state.tensors.insert("constants".into(), self.stage.constants());
        Ok(state)
    }

    /// Begins a checkpoint of what is. Errors: when it could not even be begun; how it ended tell
    /// [`Session::look_at_save`] and [`Session::finish_save`].
    fn save(&mut self, reporter: &mut Reporter) -> Result<()> {
        let state = self.state()?;
        let started = Instant::now();
        let saved = self.saver.save(state)?;
        let stall = started.elapsed();
        self.ended(reporter, saved.previous.as_ref());
        reporter.checkpoint(&self.progress, &saved, stall);
        Ok(())
    }

    /// A checkpoint in the midst of training: one that fails costs a warning, not the run.
    pub fn try_save(&mut self, reporter: &mut Reporter) {
        if let Err(error) = self.save(reporter) {
            reporter.unsaved(&self.progress, &error);
        }
    }

    /// Tells how the save beside training ended, once it has.
    pub fn look_at_save(&mut self, reporter: &mut Reporter) {
        let ended = self.saver.poll();
        self.ended(reporter, ended.as_ref());
        if let Some(Err(error)) = ended {
            reporter.unsaved(&self.progress, &error);
        }
    }

    /// Waits for the save that runs. Errors: when it failed; that is for the caller to tell.
    pub fn finish_save(&mut self, reporter: &mut Reporter) -> Result<()> {
        let started = Instant::now();
        let result = self.saver.finish().transpose();
        self.longest_save = self.longest_save.max(started.elapsed());
        self.ended(reporter, result.as_ref());
        result.map_or(Ok(()), |ended| ended.map(drop))
    }

    /// Saves what is and waits until that is on the disk; nothing is done where it is there already.
    pub fn save_and_wait(&mut self, reporter: &mut Reporter) -> Result<()> {
        if self.stands_at != Some(self.progress.update) || self.progress.finished {
            self.save(reporter)?;
        }
        self.finish_save(reporter)
    }

    fn ended(&mut self, reporter: &mut Reporter, ended: Option<&Result<Done>>) {
        if let Some(Ok(done)) = ended {
            self.longest_save = self.longest_save.max(done.took);
            reporter.saved(done);
        }
    }
}

/// Writes the resolved configuration; that of an earlier start stays beside, numbered, if it differs.
fn write_config(run: &RunDir, resolved: &Value) -> Result<()> {
    let text = crate::config::to_yaml(resolved)?;
    let path = run.config();
    match std::fs::read_to_string(&path) {
        Ok(before) if before == text => return Ok(()),
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
