//! Rank 0's duties: it holds the run lease, writes checkpoints and tracks the time budget.

use super::guard::SaveFailures;
use super::job::TrainJob;
use super::progress::Progress;
use super::report::Reporter;
use super::step::Files;
use crate::checkpoint::{Done, KeepRules, Saved, Saver, State};
use crate::config::OnSpike;
use data::inputs::{InputFile, Verifier};
use serde_json::Value;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use unix::budget::Budget;
use unix::disk::Disk;
use unix::lease::{FencedDisk, Lease};
use unix::run_dir::RunDir;
use unix::{Error, Result};

/// Writes the files of a run and tracks its time budget; rank 0 only.
pub(super) struct RunWriter {
    pub saver: Saver,
    /// Verifies the input files concurrently with training.
    pub verifier: Verifier,
    pub budget: Budget,
    /// Fields shared by all checkpoints of this attempt: everything except tensors and progress.
    frame: State,
    pub longest_save: Duration,
    failures: SaveFailures,
    checkpoints: PathBuf,
    /// Must be dropped after the saver, whose thread writes until the saver is dropped.
    pub lease: Lease,
}

impl RunWriter {
    pub fn new(
        job: &TrainJob,
        run: &RunDir,
        lease: Lease,
        budget: Budget,
        frame: State,
        inputs: Vec<InputFile>,
    ) -> Result<Self> {
        let disk: Arc<dyn Disk> = Arc::new(FencedDisk::new(lease.fence().clone()));
        let verifier = Verifier::start(inputs, Some((run.inputs(), Arc::clone(&disk))))?;
        let rules = &job.task.config.checkpoint;
        let monitor = job.task.monitor();
        let keep = KeepRules {
            last: rules.keep_last,
            best: rules.keep_best,
            every: rules.keep_every,
            metric: monitor.metric,
            direction: monitor.direction,
            anchor: match job.task.config.training.on_spike {
                OnSpike::Record => 0,
                OnSpike::Rewind => rules.every,
            },
        };
        let saver = Saver::on(disk, &run.checkpoints(), keep, lease.attempt())?.with_log(run.log());
        let failures = SaveFailures::new(rules.failed_saves, Instant::now());
        let (longest_save, checkpoints) = (Duration::ZERO, run.checkpoints());
        Ok(Self { saver, verifier, budget, frame, longest_save, failures, checkpoints, lease })
    }

    /// Returns the error that ends the run if its checkpoints can no longer be saved.
    pub fn cannot_save(&self) -> Option<Error> {
        self.failures.error(&self.checkpoints)
    }

    /// Returns the reason to stop if the time limit is near.
    pub fn out_of_time(&self, longest_update: Duration) -> Option<String> {
        let over = self.budget.must_stop(longest_update, self.longest_save);
        over.then(|| format!("time is nearly over: {}", self.budget))
    }

    /// Assembles the state for a checkpoint.
    pub fn state(
        &self,
        files: Files,
        progress: &Progress,
        metrics: Option<&Value>,
    ) -> Result<State> {
        let mut state = self.frame.clone();
        state.update = progress.update;
        state.progress = serde_json::to_value(progress).map_err(Error::bug)?;
        if let Some(metrics) = metrics {
            state.metrics = metrics.clone();
        }
        state.tensors.extend(files);
        Ok(state)
    }

    /// Starts writing a checkpoint. Errors: when the save could not be started. [`RunWriter::poll`] and
    /// [`RunWriter::finish`] report the result.
    pub fn save(&mut self, state: State, reporter: &mut Reporter) -> Result<Saved> {
        let started = self.saver.save(state);
        let saved = started.inspect_err(|error| self.failures.failed(error, Instant::now()))?;
        self.ended(reporter, saved.previous.as_ref());
        Ok(saved)
    }

    /// Reports the result of the save in progress, once it has ended.
    pub fn poll(&mut self, progress: &Progress, reporter: &mut Reporter) {
        let ended = self.saver.poll();
        self.ended(reporter, ended.as_ref());
        if let Some(Err(error)) = ended {
            reporter.unsaved(progress, &error);
        }
    }

    /// Waits for the save in progress. Errors: when the save failed; the caller reports it.
    pub fn finish(&mut self, reporter: &mut Reporter) -> Result<()> {
        let started = Instant::now();
        let result = self.saver.finish().transpose();
        self.longest_save = self.longest_save.max(started.elapsed());
        self.ended(reporter, result.as_ref());
        result.map_or(Ok(()), |ended| ended.map(drop))
    }

    fn ended(&mut self, reporter: &mut Reporter, ended: Option<&Result<Done>>) {
        match ended {
            Some(Ok(done)) => {
                self.longest_save = self.longest_save.max(done.took);
                self.failures.saved(Instant::now());
                reporter.saved(done);
            }
            Some(Err(error)) => self.failures.failed(error, Instant::now()),
            None => {}
        }
    }
}
