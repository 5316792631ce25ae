//! Rewinds a run to before a spike and continues with different samples.
//!
//! After a rewind, the samples from the checkpoint to the spike and those of the following `training.spike.skip`
//! updates are skipped. Learning rate and noise still follow from the update number. The numbers of skipped samples and
//! rewinds are part of [`Progress`] and hence of every checkpoint.
//!
//! A run rewinds to a regular checkpoint (a multiple of `checkpoint.every`) or to its beginning, never to a checkpoint
//! written because of a stop, so that the result does not depend on stops. A run that is killed between a rewind and
//! its next checkpoint reaches the same spike again, bit-identically, and rewinds to the same update.

use super::spikes::Spike;
use crate::checkpoint::{self, Loaded};
use crate::train::Progress;
use crate::train::end::{End, Halt};
use crate::train::run_writer::RunWriter;
use crate::train::session::Session;
use crate::train::start::progress_of;
use crate::train::step::Learner;
use crate::train::sync::broadcast;
use serde_json::Value;
use unix::status::Cause;
use unix::{Context, Result};

impl Session<'_> {
    /// Rewinds to before the spike at update number `spike_at` (from 1). Halts when there is no checkpoint to rewind
    /// to, or when the maximum number of rewinds is exceeded.
    pub fn rewind(&mut self, spike_at: u64, spike: &Spike) -> Result<(), Halt> {
        let config = &self.job.task.config;
        let rule = &config.training.spike;
        let what = format!(
            "{} of {:.4e} at update {spike_at} exceeds {:.4e}",
            spike.of, spike.value, spike.limit
        );
        if self.progress.rewinds >= rule.rewinds {
            let why = format!(
                "{what}, and training.spike.rewinds allows {} rewinds; \
                 try a lower optimizer.learning_rate or training.clip_grad_norm",
                rule.rewinds
            );
            return Err(End::Failed(Cause::Spike, why).into());
        }
        let found = self.checkpoint_before(spike_at)?;
        if found.is_none() && spike_at > config.checkpoint.every {
            let why = format!("{what}, and there is no good checkpoint before it");
            return Err(End::Failed(Cause::Spike, why).into());
        }
        let (_, mut params) = self.job.task.open()?;
        let old = &self.trainer.learner.params;
        match &found {
            Some(_) => params.frozen = old.frozen.clone(),
            None => self.job.task.init(&mut params, None)?,
        }
        let mut learner = Learner::new(params.to_device(self.job.device)?, config, self.job.ranks)?;
        let (mut progress, mut metrics) = (Progress::new(&config.training), Value::Null);
        if let Some(found) = &found {
            progress = progress_of(self.job, found)?;
            metrics = found.manifest.metrics.clone();
            learner.assign(&progress, found).context(|| found.path().display().to_string())?;
        }
        let samples = config.training.samples_per_update();
        progress.rewinds = self.progress.rewinds + 1;
        progress.skipped_samples =
            self.progress.skipped_samples + (spike_at - progress.update + rule.skip) * samples;
        progress.origin = self.progress.origin.take();
        progress.memory = self.progress.memory;
        progress.amp_on_cpu = self.progress.amp_on_cpu;
        progress.seconds = self.progress.seconds;
        progress.device_seconds = self.progress.device_seconds;
        let supersede = |writer: &mut RunWriter| writer.saver.go_back(progress.update);
        let superseded = self.writer.as_mut().map(supersede).transpose().unwrap_or_else(|error| {
            unix::warn!("checkpoints after update {} were not removed: {error}", progress.update);
            None
        });
        self.validated = (progress.update, metrics);
        (self.trainer.learner, self.progress, self.saved_at) = (learner, progress, None);
        self.trainer.restart_loader();
        let superseded = superseded.unwrap_or_default();
        self.reporter.rewind(&self.progress, spike_at, spike, &superseded, &what);
        Ok(())
    }

    /// Loads the checkpoint to rewind to, as chosen by rank 0; None for the beginning of the run.
    fn checkpoint_before(&mut self, spike_at: u64) -> Result<Option<Loaded>> {
        // The newest checkpoint may still be being written.
        if let Err(error) = self.finish_save() {
            self.reporter.unsaved(&self.progress, &error);
        }
        let before = |writer: &RunWriter| writer.saver.before(spike_at);
        let own = self.writer.as_ref().map(before).transpose()?.flatten();
        let path = own.as_ref().map(|found| found.path().to_path_buf());
        match (own, broadcast(self.job.ranks, path)?) {
            (None, Some(path)) => checkpoint::load(&path).map(Some),
            (own, _) => Ok(own),
        }
    }
}
