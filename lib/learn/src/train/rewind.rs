//! Going back before a spike, and on with other samples.
//!
//! The rule is one of data positions: after a rewind the samples from the checkpoint to the spike,
//! and those of `training.spike.skip` updates after it, are passed over. Learning rate, noise and
//! horizons go by the update as ever. How many samples were passed over, and how often the run went
//! back, is part of [`Progress`](super::Progress) and hence of every checkpoint.
//!
//! Where a run goes back to is a regular checkpoint (a multiple of `checkpoint.every`), or its
//! beginning: never one that a stop has made, so that the result does not depend on stops. A run
//! that is killed after it went back and before its next checkpoint comes to the same spike again,
//! with the same bits, and goes back to the same place.

use super::learner::Learner;
use super::progress::Progress;
use super::reporter::Reporter;
use super::restart::progress_of;
use super::session::{Job, Session};
use super::watch::Spike;
use crate::optim::Schedule;
use crate::stages::Stage;
use serde_json::Value;
use unix::{Context, Error, Result};

impl<S: Stage> Session<S> {
    /// Goes back before the spike at update number `spike_at` (from 1); or says why that is not
    /// possible any more.
    pub fn rewind(
        &mut self,
        job: &Job<S>,
        reporter: &mut Reporter,
        spike_at: u64,
        spike: &Spike,
    ) -> Result<Option<String>> {
        let rule = &job.config.training.spike;
        let told = format!(
            "{} of {:.4e} at update {spike_at} lies above {:.4e}",
            spike.of, spike.value, spike.limit
        );
        if self.progress.rewinds >= rule.rewinds {
            return Ok(Some(format!(
                "{told}, and training.spike.rewinds allows {} rewinds; \
                 try a lower optimizer.learning_rate or training.clip",
                rule.rewinds
            )));
        }
        // The place to go back to may be on its way to the disk.
        if let Err(error) = self.finish_save(reporter) {
            reporter.unsaved(&self.progress, &error);
        }
        let found = self.saver.before(spike_at)?;
        let every = job.config.checkpoint.every;
        if found.is_none() && spike_at > every {
            return Ok(Some(format!("{told}, and there is no good checkpoint before it")));
        }
        let schedule = Schedule::new(&job.config.schedule, job.config.training.updates);
        let schedule = schedule.map_err(Error::config)?;
        let (_, params) = S::open(&job.config)?;
        let params = params.to_device(job.device)?;
        let mut learner =
            Learner::new(params, &job.config.optimizer, schedule, &job.config.training);
        let (mut progress, mut metrics) = (Progress::default(), Value::Null);
        if let Some(found) = &found {
            progress = progress_of::<S>(found)?;
            metrics = found.manifest.metrics.clone();
            learner
                .assign(progress.steps, |name| found.tensors(name))
                .context(|| found.path().display().to_string())?;
        }
        let samples = job.config.training.samples_per_update();
        progress.rewinds = self.progress.rewinds + 1;
        progress.passed_over =
            self.progress.passed_over + (spike_at - progress.update + rule.skip) * samples;
        progress.seconds = self.progress.seconds;
        let superseded = self.saver.go_back(progress.update).unwrap_or_else(|error| {
            unix::warn!("checkpoints after update {} stay: {error}", progress.update);
            Vec::new()
        });
        self.validated = (progress.update, metrics);
        (self.learner, self.progress, self.stands_at) = (learner, progress, None);
        reporter.rewind(&self.progress, spike_at, spike, &superseded, &told);
        Ok(None)
    }
}
