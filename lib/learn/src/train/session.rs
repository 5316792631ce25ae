//! One attempt at a run: the state of a rank during training.

use super::end::{End, Halt};
use super::job::TrainJob;
use super::progress::Progress;
use super::report::Reporter;
use super::run_writer::RunWriter;
use super::step::{Files, InFlight, Trainer};
use super::sync::{self, Cause, Comparison, RankRequest, Stop};
use crate::checkpoint::{Condition, Saved};
use crate::score::Metrics;
use serde_json::Value;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use unix::signal::Signals;
use unix::{Error, Exit, Result};

/// Maximum time that the other ranks wait for rank 0 to finish disk operations.
const PATIENCE: Duration = Duration::from_secs(3600);

/// State of one rank during an attempt at a run.
pub(super) struct Session<'a> {
    pub job: &'a TrainJob<'a>,
    pub trainer: Trainer<'a>,
    pub progress: Progress,
    pub reporter: Reporter,
    /// Present only on rank 0.
    pub writer: Option<RunWriter>,
    pub signals: Signals,
    /// Checkpoint that this attempt resumed from.
    pub resumed_from: Option<PathBuf>,
    /// Update number and metrics of the last validation; they are stored only in a checkpoint of that update.
    pub validated: (u64, Value),
    /// Update number of the checkpoint in this run directory that holds exactly the current state.
    pub saved_at: Option<u64>,
    /// Updates submitted to the device, oldest first.
    pub in_flight: VecDeque<InFlight>,
    /// Time at which the last update was retired.
    pub retired: Instant,
    /// Duration of the longest update, including its validation.
    pub longest_update: Duration,
    /// Progress at the start of this attempt.
    pub before: Progress,
    pub warned_of_cost: bool,
    pub comparison: Comparison,
}

impl Session<'_> {
    /// Checks that rank 0 still holds the lease of the run. Errors: 75 when it does not.
    pub fn check_lease(&self) -> Result<()> {
        self.writer.as_ref().map_or(Ok(()), |writer| writer.lease.fence().check())
    }

    /// Returns the error with which this process exits: `error`, unless the run directory has disappeared from its
    /// path. In that case the status is 74, because a requeued job (75) would start a new run there.
    pub fn lost_run(&self, error: Error) -> Error {
        match (&self.writer, self.check_lease()) {
            (Some(writer), Err(lost)) if writer.lease.fence().is_gone() => {
                Error::new(Exit::Io, lost)
            }
            _ => error,
        }
    }

    /// Combines the requests of all ranks to stop or to save.
    pub fn requests(&mut self) -> Result<RankRequest> {
        let stop = |cause| move |why| Stop { cause, why };
        let lost = self.check_lease().err().map(|error| self.lost_run(error));
        let writer = self.writer.as_ref();
        let machine = self.comparison.found().map(stop(Cause::Machine));
        let unsaved = writer.and_then(RunWriter::cannot_save).map(|error| error.to_string());
        let time = writer.and_then(|writer| writer.out_of_time(self.longest_update));
        let signal = self.signals.stop_requested().map(|name| format!("signal {name}"));
        let asked = signal.or(time).or_else(|| self.over_budget());
        let changed = self.changed_input();
        let stop = lost
            .map(|error| Stop { cause: Cause::Lost(error.exit as u8), why: error.to_string() })
            .or(changed.map(|(exit, why)| Stop { cause: Cause::Changed(exit), why }))
            .or(machine)
            .or(unsaved.map(stop(Cause::Unsaved)))
            .or(asked.map(stop(Cause::Asked)));
        let save = self.signals.take_checkpoint_request();
        sync::reduce_requests(self.job.ranks, RankRequest { stop, save })
    }

    fn over_budget(&mut self) -> Option<String> {
        let cost = &self.job.task.config.cost;
        let budget = cost.budget.filter(|_| self.writer.is_some())?;
        let spent = self.progress.seconds / 3600.0 * self.job.rate_per_hour();
        if spent >= 0.9 * budget && !self.warned_of_cost {
            self.warned_of_cost = true;
            let text = format!("cost {spent:.2} of a budget of {budget:.2}");
            self.reporter.warn(self.progress.update, &text);
        }
        (cost.stop_at_budget && spent >= budget)
            .then(|| format!("the budget of {budget} is spent (cost.stop_at_budget)"))
    }

    /// Records the metrics of a validation; returns whether the monitored metric is the best so far.
    pub fn record_validation(&mut self, metrics: Metrics, took: Duration) -> Result<bool> {
        let monitor = self.job.task.monitor();
        self.job.task.check_monitor(&metrics)?;
        let value = metrics.get(&monitor.metric).copied().unwrap_or(f64::NAN);
        let best = self.progress.record_metric(&monitor, value);
        if let Some(rule) = &self.job.task.config.plateau {
            self.progress.plateau.note(rule, monitor.direction, value);
            self.trainer.learner.plateau_factor = self.progress.plateau.factor;
        }
        let results = serde_json::to_value(&metrics).map_err(Error::bug)?;
        self.validated = (self.progress.update, results);
        self.reporter.validation(&self.progress, &metrics, best, took);
        Ok(best)
    }

    /// Logs a hash of the parameters every `training.hash_every` updates and compares it across ranks.
    pub fn log_hash(&mut self) -> Result<(), Halt> {
        let (every, done) = (self.job.task.config.training.hash_every, self.progress.update);
        if every > 0 && done.is_multiple_of(every) {
            self.reporter.hash(&self.progress, &self.trainer.learner.hash()?);
            self.compare_ranks()?;
        }
        Ok(())
    }

    /// Halts when the parameters of any rank differ from those of rank 0. Also called before every save, so that no
    /// checkpoint contains gradients from a diverging rank.
    pub fn compare_ranks(&self) -> Result<(), Halt> {
        if !sync::is_comparing(self.job) {
            return Ok(());
        }
        let ranks = self.job.ranks;
        let all = ranks.all_gather_bytes(self.trainer.learner.hash()?.as_bytes())?;
        match sync::differing_rank(&all, &sync::hosts(ranks), self.progress.update) {
            Some(why) => Err(End::Machine(why).into()),
            None => Ok(()),
        }
    }

    /// Returns all tensors of a checkpoint on rank 0, to which the other ranks send their parts.
    fn files(&self) -> Result<Option<Files>> {
        let files = self.trainer.learner.files(self.job.ranks)?;
        Ok(files.map(|mut files| {
            files.push(("buffers".into(), self.trainer.task.buffers()));
            files
        }))
    }

    /// Reserves the memory for checkpoint snapshots.
    pub fn reserve(&mut self) -> Result<()> {
        // Sharded optimizer state is gathered from all ranks, and is not available before all of them have started.
        if self.job.task.config.optimizer.shard && self.job.ranks.size() > 1 {
            return Ok(());
        }
        let files = self.files()?;
        if let (Some(writer), Some(files)) = (&mut self.writer, files) {
            let state = writer.state(files, &self.progress, None)?;
            writer.saver.reserve(&state)?;
        }
        Ok(())
    }

    /// Starts writing a checkpoint of the current state on rank 0. Errors: when the save could not be started.
    fn save(
        &mut self,
        files: Option<Files>,
        condition: Option<Condition>,
    ) -> Result<Option<Saved>> {
        let (Some(writer), Some(files)) = (&mut self.writer, files) else { return Ok(None) };
        let _busy = self.job.ranks.busy(PATIENCE);
        let metrics = (self.validated.0 == self.progress.update).then_some(&self.validated.1);
        let mut state = writer.state(files, &self.progress, metrics)?;
        state.condition = condition;
        writer.save(state, &mut self.reporter).map(Some)
    }

    /// Saves a checkpoint during training; if the save fails, the run continues with a warning. The checkpoint is
    /// published once all ranks are known to have the same parameters. Errors: errors of the device and the ranks.
    pub fn try_save(&mut self) -> Result<()> {
        let started = Instant::now();
        let files = self.files()?;
        let (sender, condition) = self.comparison.condition(self.job, self.progress.update).unzip();
        let saved = self.save(files, condition).unwrap_or_else(|error| {
            self.reporter.unsaved(&self.progress, &error);
            None
        });
        if let Some(sender) = sender {
            // The hash on rank 0 is computed by the thread that writes the checkpoint.
            let own = match self.writer {
                Some(_) => String::new(),
                None => self.trainer.learner.hash()?,
            };
            // If no save was started, there is no receiver.
            drop(sender.send(self.job.ranks.all_gather_bytes(own.as_bytes())?));
        }
        if let Some(saved) = saved {
            self.reporter.checkpoint(&self.progress, &saved, started.elapsed());
        }
        Ok(())
    }

    /// Waits for the save in progress. Errors: when the save failed; the caller reports it.
    pub fn finish_save(&mut self) -> Result<()> {
        let Some(writer) = &mut self.writer else { return Ok(()) };
        let _busy = self.job.ranks.busy(PATIENCE);
        writer.finish(&mut self.reporter)
    }

    /// Whether a checkpoint of the run holds exactly the current state.
    pub fn is_saved(&self) -> bool {
        self.saved_at == Some(self.progress.update)
    }

    /// Saves the current state, unless a checkpoint already holds it, and waits until it is on disk.
    pub fn save_and_wait(&mut self) -> Result<()> {
        if !self.is_saved() || self.progress.finished {
            let started = Instant::now();
            let files = self.files()?;
            if let Some(saved) = self.save(files, None)? {
                self.reporter.checkpoint(&self.progress, &saved, started.elapsed());
            }
        }
        self.finish_save()
    }
}
