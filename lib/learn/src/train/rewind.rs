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

use super::job::Job;
use super::keeper::Keeper;
use super::learner::Learner;
use super::progress::Progress;
use super::reporter::Reporter;
use super::restart::progress_of;
use super::session::Session;
use super::watch::Spike;
use crate::checkpoint::{self, Loaded};
use crate::optim::Schedule;
use serde_json::Value;
use std::path::PathBuf;
use unix::{Context, Error, Result};

impl Session {
    /// Goes back before the spike at update number `spike_at` (from 1); or says why that is not
    /// possible any more.
    pub fn rewind(
        &mut self,
        job: &Job,
        reporter: &mut Reporter,
        spike_at: u64,
        spike: &Spike,
    ) -> Result<Option<String>> {
        let rule = &job.task.config.training.spike;
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
        let found = match self.place_before(job, reporter, spike_at)? {
            Ok(found) => found,
            Err(why) => return Ok(Some(format!("{told}, and {why}"))),
        };
        let schedule = Schedule::new(&job.task.config.schedule, job.task.config.training.updates);
        let schedule = schedule.map_err(Error::config)?;
        let (_, params) = job.task.open()?;
        let (params, training) = (params.to_device(job.device)?, &job.task.config.training);
        let mut learner =
            Learner::new(params, &job.task.config.optimizer, schedule, training, job.ranks)?;
        let (mut progress, mut metrics) = (Progress::default(), Value::Null);
        if let Some(found) = &found {
            progress = progress_of(job, found)?;
            metrics = found.manifest.metrics.clone();
            learner.assign(&progress, found).context(|| found.path().display().to_string())?;
        }
        let samples = job.task.config.training.samples_per_update();
        progress.rewinds = self.progress.rewinds + 1;
        progress.passed_over =
            self.progress.passed_over + (spike_at - progress.update + rule.skip) * samples;
        progress.origin = self.progress.origin.take();
        progress.seconds = self.progress.seconds;
        progress.device_seconds = self.progress.device_seconds;
        let back = |keeper: &mut Keeper| keeper.saver.go_back(progress.update);
        let superseded = self.keeper.as_mut().map(back).transpose().unwrap_or_else(|error| {
            unix::warn!("checkpoints after update {} stay: {error}", progress.update);
            None
        });
        self.validated = (progress.update, metrics);
        (self.learner, self.progress, self.stands_at) = (learner, progress, None);
        let superseded = superseded.unwrap_or_default();
        reporter.rewind(&self.progress, spike_at, spike, &superseded, &told);
        Ok(None)
    }

    /// The checkpoint before update number `spike_at`, which the first rank looks for; none for the
    /// beginning. Or why there is no way back.
    fn place_before(
        &mut self,
        job: &Job,
        reporter: &mut Reporter,
        spike_at: u64,
    ) -> Result<Result<Option<Loaded>, &'static str>> {
        // The place to go back to may be on its way to the disk.
        if let Err(error) = self.finish_save(job, reporter) {
            reporter.unsaved(&self.progress, &error);
        }
        let before = |keeper: &Keeper| keeper.saver.before(spike_at);
        let own = self.keeper.as_ref().map(before).transpose()?.flatten();
        let path = own.as_ref().map(|found| found.path().to_path_buf());
        let told = job.ranks.broadcast(serde_json::to_vec(&path).map_err(Error::bug)?)?;
        let path: Option<PathBuf> = serde_json::from_slice(&told).map_err(Error::bug)?;
        match (own, path) {
            (None, None) if spike_at > job.task.config.checkpoint.every => {
                Ok(Err("there is no good checkpoint before it"))
            }
            (None, Some(path)) => Ok(Ok(Some(checkpoint::load(&path)?))),
            (own, _) => Ok(Ok(own)),
        }
    }
}
