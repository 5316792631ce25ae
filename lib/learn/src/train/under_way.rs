//! Updates that were given to the device and whose outcome is not known yet. While the device is at one, the
//! host makes the next one ready; of the one before it learns whatever it tells and judges, so that nothing
//! stands still. What depends on the outcome waits for it: [`Session::must_know`].

use super::job::Job;
use super::learner::{Pending, Step};
use super::passes::{Sum, passes};
use super::reporter::Reporter;
use super::session::Session;
use super::spent::Spent;
use super::verify::Mismatch;
use crate::config::{OnSpike, Training};
use crate::task::Batch;
use data::loader::Prefetch;
use dist::Times;
use std::time::{Duration, Instant};
use tensor::{Device, Dtype};
use unix::Result;

/// An update under way.
pub(super) struct UnderWay {
    pending: Pending,
    started: Instant,
    stall: Duration,
    times: Times,
}

/// How the run goes on after updates were settled.
pub(super) enum Course {
    /// With the next update.
    On,
    /// From an earlier one, with other samples.
    Back,
    /// Not at all: another start would meet the same.
    Failed(String),
}

impl Session {
    /// The update that is given next, counted from 0.
    pub fn next_update(&self) -> u64 {
        self.progress.update + self.under_way.len() as u64
    }

    /// Gives the next update to the device; or says which rank computed what twice and differs.
    pub fn give(
        &mut self,
        job: &Job,
        batches: &mut Prefetch<Batch>,
    ) -> Result<Option<(usize, Mismatch)>> {
        let started = Instant::now();
        let Sum { losses, gradients, stall, times } = match passes(job, self, batches)? {
            Ok(sum) => sum,
            Err(mismatch) => return Ok(Some(mismatch)),
        };
        let update = self.next_update();
        let pending = self.learner.update(update, &losses, &gradients, job.ranks)?;
        self.under_way.push_back(UnderWay { pending, started, stall, times });
        Ok(None)
    }

    /// Whether what comes after the updates given so far depends on the outcome of the last one.
    pub fn must_know(&self, job: &Job) -> bool {
        let (training, done) = (&job.task.config.training, self.next_update());
        let due = |every: u64| every > 0 && done.is_multiple_of(every);
        let what_comes = done == training.updates
            || due(training.validate_every)
            || due(training.hash_every)
            || due(job.task.config.checkpoint.every);
        // The host itself is done when it has given an update.
        what_comes || job.device == Device::Cpu
    }

    /// Takes note of the updates under way, the oldest first, but for the newest `leave`.
    pub fn settle(&mut self, job: &Job, reporter: &mut Reporter, leave: usize) -> Result<Course> {
        let training = &job.task.config.training;
        while self.under_way.len() > leave {
            let Some(UnderWay { pending, started, stall, times }) = self.under_way.pop_front()
            else {
                break;
            };
            let step = pending.wait()?;
            let update = self.progress.update + 1;
            let watch = &self.progress.watch;
            if let Some(spike) = watch.spike(&training.spike, step.loss, step.gradient_norm) {
                reporter.spike(update, &spike);
                if training.on_spike == OnSpike::Rewind {
                    // What was given since goes the way of all that is done again.
                    self.under_way.clear();
                    return Ok(match self.rewind(job, reporter, update, &spike)? {
                        Some(why) => Course::Failed(why),
                        None => Course::Back,
                    });
                }
            }
            self.count(training, job.ranks.size(), &step);
            // From the one before, when that was still under way as this one was given.
            let took = started.max(self.settled).elapsed();
            self.settled = Instant::now();
            reporter.update(&self.progress, &step, &Spent { took, stall, times })?;
            if let Some(why) = self.diverged(training) {
                return Ok(Course::Failed(why));
            }
        }
        Ok(Course::On)
    }

    /// Counts an update.
    fn count(&mut self, training: &Training, ranks: usize, step: &Step) {
        let p = &mut self.progress;
        if self.numerics.dtype == Dtype::F16 {
            p.loss_scale = Some(step.loss_scale);
        }
        p.update += 1;
        p.samples += training.samples_per_update();
        let applied = step.applied.then_some((step.loss, step.gradient_norm));
        if !step.overflow {
            p.watch.note(&training.spike, p.update, applied);
        }
        p.steps = step.steps;
        let elapsed = unix::time::process_start().elapsed().as_secs_f64();
        p.seconds = self.before.seconds + elapsed;
        if ranks > 1 || self.before.device_seconds.is_some() {
            let before = self.before.device_seconds.unwrap_or(self.before.seconds);
            p.device_seconds = Some(before + elapsed * ranks as f64);
        }
        if step.applied {
            p.skipped_in_row = 0;
        } else {
            p.skipped += 1;
            p.skipped_in_row += u64::from(!step.overflow);
        }
    }

    /// Why there are too many updates whose loss or gradient is not finite, when there are.
    fn diverged(&self, training: &Training) -> Option<String> {
        let (progress, limit) = (&self.progress, training.non_finite_limit);
        let often = if progress.skipped_in_row >= limit {
            format!("{limit} updates in a row")
        } else {
            format!("{} of 1000 updates", progress.watch.skips_too_often(progress.update)?)
        };
        Some(format!(
            "diverged: loss or gradient not finite in {often} up to update {}; \
             try a lower optimizer.learning_rate or training.clip",
            progress.update
        ))
    }
}
