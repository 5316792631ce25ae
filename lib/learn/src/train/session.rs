//! One start of a run: what it begins from, and what it holds while it lasts.

use super::learner::{Learner, Step};
use super::progress::Progress;
use super::reporter::Reporter;
use crate::checkpoint::{self, KeepRules, Loaded, Saved, Saver, State};
use crate::optim::Schedule;
use crate::stages::{ConfigOf, Stage};
use dist::Collective;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use unix::budget::Budget;
use unix::run_dir::RunDir;
use unix::signal::Signals;
use unix::{Context, Error, Exit, Result};

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
    /// Name of the device, for the records.
    pub device: String,
    /// The ranks of the run.
    pub ranks: &'a dyn Collective,
}

/// What a start found.
pub(super) enum Start<S: Stage> {
    /// The run is at its end already.
    Finished(Progress),
    /// There is work.
    Go(Box<(Session<S>, Reporter)>),
}

/// A run at work.
pub(super) struct Session<S: Stage> {
    pub stage: Arc<S>,
    pub learner: Learner,
    pub progress: Progress,
    saver: Saver,
    signals: Signals,
    budget: Budget,
    /// What a checkpoint holds beside tensors and progress.
    frame: State,
    metrics: Value,
    longest_update: Duration,
    longest_save: Duration,
    /// Seconds spent by earlier starts.
    seconds_before: f64,
    warned_of_cost: bool,
}

/// Keys that may change from start to start: they decide how the run is made, not what it becomes.
const OPERATIONAL: [&str; 8] = [
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
        let found = find(job, &run)?;
        if let Some(found) = &found {
            let progress: Progress = progress_of(found)?;
            if progress.finished && job.resume == Resume::Auto {
                check_same(job, found, None)?;
                return Ok(Start::Finished(progress));
            }
        }
        let (stage, params) = S::open(&job.config)?;
        let training = &job.config.training;
        let schedule =
            Schedule::new(&job.config.schedule, training.updates).map_err(Error::config)?;
        let mut learner = Learner::new(params, &job.config.optimizer, schedule, training);
        let data_hash = stage.data_hash();
        let mut progress = Progress::default();
        if let Some(found) = &found {
            check_same(job, found, Some(&data_hash))?;
            progress = progress_of(found)?;
            learner
                .assign(progress.steps, |name| found.tensors(name))
                .context(|| found.path().display().to_string())?;
        }
        let config_hash = crate::config::hash(&identity(&job.resolved));
        let attempt = run.record_start(&serde_json::json!({
            "stage": S::NAME,
            "device": job.device,
            "ranks": job.ranks.size(),
            "training_threads": tensor::parallel::threads(),
            "resumed_from": found.as_ref().map(|f| f.path().display().to_string()),
        }))?;
        write_config(&run, &job.resolved)?;
        let rules = &job.config.checkpoint;
        let keep = KeepRules {
            last: rules.keep_last,
            best: rules.keep_best,
            every: rules.keep_every,
            metric: S::METRIC.into(),
        };
        let reporter = Reporter::start::<S>(job, &run, attempt, &progress, &budget, &learner)?;
        let mut session = Self {
            stage: Arc::new(stage),
            seconds_before: progress.seconds,
            learner,
            progress,
            saver: Saver::new(&run.checkpoints(), keep, attempt)?.with_log(run.log()),
            signals,
            budget,
            frame: State {
                seed: job.config.seed,
                stage: S::NAME.into(),
                config: job.resolved.clone(),
                config_hash,
                data_hash,
                ..State::default()
            },
            metrics: Value::Null,
            longest_update: Duration::ZERO,
            longest_save: Duration::ZERO,
            warned_of_cost: false,
        };
        let state = session.state()?;
        session.saver.reserve(&state)?;
        Ok(Start::Go(Box::new((session, reporter))))
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

    /// Counts an update.
    pub fn count(&mut self, step: &Step, samples: u64) {
        let p = &mut self.progress;
        p.update += 1;
        p.samples += samples;
        p.steps = self.learner.memory.steps;
        p.seconds = self.seconds_before + unix::time::process_start().elapsed().as_secs_f64();
        if step.applied {
            p.skipped_in_row = 0;
        } else {
            p.skipped += 1;
            p.skipped_in_row += 1;
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
        self.metrics = serde_json::to_value(&metrics).map_err(Error::bug)?;
        reporter.validation(&self.progress, &metrics, best, started.elapsed())?;
        Ok(best)
    }

    /// Everything that training needs to go on from here.
    fn state(&self) -> Result<State> {
        let mut state = self.frame.clone();
        state.update = self.progress.update;
        state.progress = serde_json::to_value(&self.progress).map_err(Error::bug)?;
        state.metrics = self.metrics.clone();
        for (file, tensors) in self.learner.files() {
            state.tensors.insert(file.into(), tensors);
        }
        state.tensors.insert("constants".into(), self.stage.constants());
        Ok(state)
    }

    /// Begins a checkpoint of what is; a save that fails costs a warning, not the run.
    pub fn save(&mut self, reporter: &mut Reporter) -> Result<()> {
        let state = self.state()?;
        let started = Instant::now();
        let saved = self.saver.save(state);
        if let Ok(Saved { previous: Some(Ok(done)), .. }) = &saved {
            self.longest_save = self.longest_save.max(done.took);
        }
        reporter.checkpoint(&self.progress, &saved, started.elapsed())?;
        Ok(())
    }

    /// Waits for the save that runs. Errors: when the newest state is on no disk.
    pub fn finish_save(&mut self, reporter: &mut Reporter) -> Result<()> {
        let started = Instant::now();
        let result = self.saver.finish();
        self.longest_save = self.longest_save.max(started.elapsed());
        reporter.saved(&self.progress, &result)?;
        result.map(|_| ())
    }
}

/// The checkpoint to go on from.
fn find<S: Stage>(job: &Job<S>, run: &RunDir) -> Result<Option<Loaded>> {
    match &job.resume {
        Resume::From(path) => Ok(Some(checkpoint::load(path)?)),
        Resume::Auto => checkpoint::load_newest(&run.checkpoints()),
        Resume::Never if checkpoint::list(&run.checkpoints())?.is_empty() => Ok(None),
        Resume::Never => Err(Error::new(
            Exit::CannotCreate,
            format!(
                "{} has checkpoints and --resume never would leave them behind: \
                 choose another run directory, or --resume auto",
                job.run.display()
            ),
        )),
    }
}

fn progress_of(found: &Loaded) -> Result<Progress> {
    serde_json::from_value(found.manifest.progress.clone())
        .map_err(|cause| Error::data(format!("{}: progress: {cause}", found.path().display())))
}

/// Refuses to go on with another configuration or other data, and shows the difference.
fn check_same<S: Stage>(job: &Job<S>, found: &Loaded, data_hash: Option<&str>) -> Result<()> {
    let (was, is) = (identity(&found.manifest.config), identity(&job.resolved));
    let mut differences = Vec::new();
    difference("", &was, &is, &mut differences);
    if !differences.is_empty() {
        return Err(Error::config(format!(
            "{} was made with another configuration:\n  {}\n\
             start a new run directory for it",
            found.path().display(),
            differences.join("\n  ")
        )));
    }
    if data_hash.is_some_and(|hash| hash != found.manifest.data_hash) {
        return Err(Error::config(format!(
            "{} was trained on other data (hash {}, now {}): start a new run directory",
            found.path().display(),
            found.manifest.data_hash,
            data_hash.unwrap_or_default()
        )));
    }
    Ok(())
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
