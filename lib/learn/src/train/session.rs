//! A run at work: what one rank holds while a start lasts.

use super::agreement::{Cause, Stop, Wish, agree};
use super::comparison::{self, Comparison};
use super::compiled::Compiled;
use super::exchange::Exchange;
use super::job::Job;
use super::keeper::{Files, Keeper};
use super::learner::Learner;
use super::numerics::Numerics;
use super::portions::Portions;
use super::progress::Progress;
use super::reporter::Reporter;
use super::under_way::UnderWay;
use super::validation::validate;
use crate::checkpoint::{Condition, Saved};
use crate::score::Metrics;
use crate::task::Task;
use serde_json::Value;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use unix::signal::Signals;
use unix::{Error, Exit, Result};

/// For how long the others may have to wait for the first rank's disk.
const PATIENCE: Duration = Duration::from_secs(3600);

/// A run at work.
pub(super) struct Session {
    pub task: Arc<dyn Task>,
    pub learner: Learner,
    pub progress: Progress,
    pub portions: Portions,
    /// Sums over ranks; none yet, or one rank.
    pub exchange: Option<Exchange>,
    /// On the first rank.
    pub keeper: Option<Keeper>,
    pub signals: Signals,
    /// The checkpoint that this start goes on from.
    pub began_at: Option<PathBuf>,
    /// The update of the last validation, and its results: they belong to no other checkpoint.
    pub validated: (u64, Value),
    /// The update of the run's own checkpoint that this start goes on from, unchanged.
    pub stands_at: Option<u64>,
    pub numerics: Numerics,
    /// Updates given to the device, the oldest first.
    pub under_way: VecDeque<UnderWay>,
    /// When the last one was settled.
    pub settled: Instant,
    pub compiled: Compiled,
    pub longest_update: Duration,
    /// Where the run stood when this start began.
    pub before: Progress,
    pub warned_of_cost: bool,
    pub comparison: Comparison,
}

impl Session {
    /// Whether the first rank still is the one writer of the run. Errors: 75 when it is not.
    pub fn still_ours(&self) -> Result<()> {
        self.keeper.as_ref().map_or(Ok(()), Keeper::still_ours)
    }

    /// The error that ends this process: `error`, unless the run directory is gone from its path. That exits
    /// with 74, because a requeued job (75) would begin another run there.
    pub fn lost_run(&self, error: Error) -> Error {
        match (&self.keeper, self.still_ours()) {
            (Some(keeper), Err(lost)) if keeper.is_gone() => Error::new(Exit::Io, lost),
            _ => error,
        }
    }

    /// What is to be done after this update, as all ranks see it.
    pub fn agree(&mut self, job: &Job, reporter: &mut Reporter) -> Result<Wish> {
        let stop = |cause| move |why| Stop { cause, why };
        let lost = self.still_ours().err().map(|error| self.lost_run(error));
        let keeper = self.keeper.as_ref();
        let machine = self.comparison.found().map(stop(Cause::Machine));
        let unsaved = keeper.and_then(Keeper::cannot_save).map(|error| error.to_string());
        let time = keeper.and_then(|keeper| keeper.out_of_time(self.longest_update));
        let signal = self.signals.stop_requested().map(|name| format!("signal {name}"));
        let asked = signal.or(time).or_else(|| self.over_budget(job, reporter));
        let changed = self.changed_input(job, reporter);
        let stop = lost
            .map(|error| Stop { cause: Cause::Lost(error.exit as u8), why: error.to_string() })
            .or(changed.map(|(exit, why)| Stop { cause: Cause::Changed(exit), why }))
            .or(machine)
            .or(unsaved.map(stop(Cause::Unsaved)))
            .or(asked.map(stop(Cause::Asked)));
        agree(job.ranks, Wish { stop, save: self.signals.take_checkpoint_request() })
    }

    fn over_budget(&mut self, job: &Job, reporter: &mut Reporter) -> Option<String> {
        let cost = &job.task.config.cost;
        let budget = cost.budget.filter(|_| self.keeper.is_some())?;
        let spent = self.progress.seconds / 3600.0 * cost.rate_per_hour;
        if spent >= 0.9 * budget && !self.warned_of_cost {
            self.warned_of_cost = true;
            reporter
                .warn(self.progress.update, &format!("cost {spent:.2} of a budget of {budget:.2}"));
        }
        (cost.stop_at_budget && spent >= budget)
            .then(|| format!("the budget of {budget} is spent (cost.stop_at_budget)"))
    }

    /// Remembers the longest update, its validation included.
    pub fn note_update(&mut self, took: Duration) {
        self.longest_update = self.longest_update.max(took);
    }

    /// Metrics of the validation split.
    pub fn measure(&self, job: &Job) -> Result<Metrics> {
        let samples = job.task.config.training.validation_samples;
        validate(&*self.task, self.learner.judged(), samples, job.ranks)
    }

    /// Records the metrics of a validation; whether they are the best so far.
    pub fn record_validation(
        &mut self,
        job: &Job,
        metrics: Metrics,
        took: Duration,
        reporter: &mut Reporter,
    ) -> Result<bool> {
        let spec = job.task.spec;
        let value = metrics.get(spec.metric).copied().unwrap_or(f64::NAN);
        let best = self.progress.judge(spec.metric, spec.direction, value);
        let results = serde_json::to_value(&metrics).map_err(Error::bug)?;
        self.validated = (self.progress.update, results);
        reporter.validation(&self.progress, &metrics, best, took)?;
        Ok(best)
    }

    /// At updates where it is due, tells a hash of the parameters; or which rank has others.
    pub fn tell_hash(&self, job: &Job, reporter: &mut Reporter) -> Result<Option<String>> {
        let (every, done) = (job.task.config.training.hash_every, self.progress.update);
        if every == 0 || !done.is_multiple_of(every) {
            return Ok(None);
        }
        reporter.hash(&self.progress, &self.learner.hash()?);
        self.ranks_differ(job)
    }

    /// Which rank has other parameters than the first, where they are compared: also before every save, so
    /// that no checkpoint holds what such a rank has added to the gradients.
    pub fn ranks_differ(&self, job: &Job) -> Result<Option<String>> {
        if !comparison::is_wanted(job) {
            return Ok(None);
        }
        let all = job.ranks.gather(self.learner.hash()?.as_bytes())?;
        Ok(comparison::differ(&all, &comparison::hosts(job.ranks), self.progress.update))
    }

    /// All tensors of a checkpoint, on the first rank; what the others have of them they send it.
    fn files(&self, job: &Job) -> Result<Option<Files>> {
        let files = self.learner.files(job.ranks)?;
        Ok(files.map(|mut files| {
            files.push(("buffers".into(), self.task.buffers()));
            files
        }))
    }

    /// Takes the memory for checkpoints ahead.
    pub fn reserve(&mut self, job: &Job) -> Result<()> {
        // Shards of the optimizer come from all ranks, and not before all of them are here.
        if job.task.config.optimizer.shard && job.ranks.size() > 1 {
            return Ok(());
        }
        let files = self.files(job)?;
        if let (Some(keeper), Some(files)) = (&mut self.keeper, files) {
            let state = keeper.state(files, &self.progress, None)?;
            keeper.saver.reserve(&state)?;
        }
        Ok(())
    }

    /// Begins a checkpoint of what is, on the first rank. Errors: when it could not even be begun.
    fn save(
        &mut self,
        job: &Job,
        files: Option<Files>,
        condition: Option<Condition>,
        reporter: &mut Reporter,
    ) -> Result<Option<Saved>> {
        let (Some(keeper), Some(files)) = (&mut self.keeper, files) else { return Ok(None) };
        let _busy = job.ranks.busy(PATIENCE);
        let metrics = (self.validated.0 == self.progress.update).then_some(&self.validated.1);
        let mut state = keeper.state(files, &self.progress, metrics)?;
        state.condition = condition;
        keeper.save(state, reporter).map(Some)
    }

    /// A checkpoint in the midst of training: one that fails costs a warning, not the run. It gets its name
    /// when all ranks turn out to have the same parameters. Errors: those of the device and the ranks.
    pub fn try_save(&mut self, job: &Job, reporter: &mut Reporter) -> Result<()> {
        let started = Instant::now();
        let files = self.files(job)?;
        let (tell, condition) = self.comparison.condition(job, self.progress.update).unzip();
        let saved = self.save(job, files, condition, reporter).unwrap_or_else(|error| {
            reporter.unsaved(&self.progress, &error);
            None
        });
        if let Some(tell) = tell {
            // The first rank's is found by the thread that writes, which hashes all.
            let own = match self.keeper {
                Some(_) => String::new(),
                None => self.learner.hash()?,
            };
            // Nobody listens where no save was begun.
            drop(tell.send(job.ranks.gather(own.as_bytes())?));
        }
        if let Some(saved) = saved {
            reporter.checkpoint(&self.progress, &saved, started.elapsed());
        }
        Ok(())
    }

    /// Reports how the save that runs concurrently with training ended, once it has.
    pub fn look_at_save(&mut self, reporter: &mut Reporter) {
        if let Some(keeper) = &mut self.keeper {
            keeper.look(&self.progress, reporter);
        }
    }

    /// Waits for the save that runs. Errors: when it failed; that is for the caller to tell.
    pub fn finish_save(&mut self, job: &Job, reporter: &mut Reporter) -> Result<()> {
        let Some(keeper) = &mut self.keeper else { return Ok(()) };
        let _busy = job.ranks.busy(PATIENCE);
        keeper.finish(reporter)
    }

    /// Whether the run has a checkpoint of this very state: no update was made since the start.
    pub fn is_saved(&self) -> bool {
        self.stands_at == Some(self.progress.update)
    }

    /// Saves what is and waits until that is on the disk; nothing is done where it is there already.
    pub fn save_and_wait(&mut self, job: &Job, reporter: &mut Reporter) -> Result<()> {
        if !self.is_saved() || self.progress.finished {
            let started = Instant::now();
            let files = self.files(job)?;
            if let Some(saved) = self.save(job, files, None, reporter)? {
                reporter.checkpoint(&self.progress, &saved, started.elapsed());
            }
        }
        self.finish_save(job, reporter)
    }
}
