//! The training loop. It only determines the order of operations and does not depend on a particular task, loss or
//! device.
//!
//! An update is a function of the preceding state and of the update number: samples, noise and learning rate follow
//! from (seed, update). A run that was stopped or killed and resumes from any of its checkpoints is therefore
//! bit-identical to an uninterrupted run.
//!
//! | folder | contents |
//! |---|---|
//! | `step` | one update: batches, gradients, optimizer; no files |
//! | `sync` | agreement between the ranks |
//! | `start` | start of an attempt: inspects the run directory and decides where to resume |
//! | `guard` | spikes, rewinds, faulty hardware, changed inputs, failed saves |
//! | `report` | log, status, terminal; estimates for `--check` and `--dry-run` |

mod determinism;
mod end;
mod guard;
mod job;
mod memory;
mod progress;
mod report;
mod run_writer;
mod session;
mod start;
mod step;
mod sync;
mod validation;

pub use determinism::{Determinism, verify_determinism};
pub use end::lost_a_rank;
pub use guard::{Spike, SpikeDetector};
pub use job::{Resume, TrainJob};
pub use memory::MemoryAdaptation;
pub use progress::Progress;
pub use report::{
    Absent, AbsentEstimate, CheckPoint, CheckedEstimate, DryRun, Estimate, Outcome, check, dry_run,
    estimate_absent,
};
pub use start::{Origin, startup_failed};
pub(crate) use step::numerics;
pub use step::numerics::amp_note;
pub use step::{Learner, Pending, UpdateResult};
pub use sync::{all_ok, broadcast, gather};
pub use validation::metric_names;

use crate::config::{LOSSES, OnSpike, Training};
use end::{End, Halt};
use session::Session;
use start::Start;
use std::time::Instant;
use tensor::{Device, Dtype};
use unix::status::Cause;
use unix::{Exit, Result};

/// Trains a task until it is finished or must stop. Returns 0 when finished; 75 when stopped with a checkpoint, also
/// because of faulty hardware; 1 when the run diverged or spiked too often. Errors, among others: 75 when another
/// process holds the run, 73 or 74 when too many saves failed. When the device runs out of memory, a run that may adapt
/// (`training.adapt_to_memory`) begins another attempt.
pub fn train(mut job: TrainJob) -> Result<Exit> {
    tensor::parallel::inside(|| {
        loop {
            match attempt(&job)? {
                Attempt::Ended(exit) => return Ok(exit),
                Attempt::Adapts(memory) => job.memory = memory,
            }
        }
    })
}

/// How an attempt ended.
enum Attempt {
    Ended(Exit),
    /// The device ran out of memory; another attempt needs less.
    Adapts(MemoryAdaptation),
}

fn attempt(job: &TrainJob) -> Result<Attempt> {
    let mut session = match start::start(job)? {
        Start::Leave(exit) => return Ok(Attempt::Ended(exit)),
        Start::Go(session) => session,
    };
    let halt = session.run();
    let next = session.adaptation(&halt);
    let (error, memory) = match (session.conclude(halt), next) {
        (Ok(exit), _) => return Ok(Attempt::Ended(exit)),
        (Err(error), None) => return Err(error),
        (Err(error), Some(memory)) => (error, memory),
    };
    drop(session);
    // The work that was submitted with the missing memory is lost, and so are its errors.
    let _ = tensor::kernel::finish(job.device);
    unix::warn!("{error}; training.adapt_to_memory: another attempt, {memory}");
    Ok(Attempt::Adapts(memory))
}

/// Next action after updates were retired.
enum Next {
    Continue,
    /// The run was rewound to an earlier update.
    Rewound,
}

impl Session<'_> {
    /// How to go on after the device ran out of memory; None for any other end, or if nothing is left to do.
    fn adaptation(&self, halt: &Halt) -> Option<MemoryAdaptation> {
        let training = &self.job.task.config.training;
        let is_lacking =
            matches!(halt, Halt::Error(error) if error.cause == Some(Cause::OutOfMemory));
        let may = training.adapt_to_memory && is_lacking && self.job.ranks.size() == 1;
        may.then(|| self.progress.memory.next(&self.trainer, training.mem_budget)).flatten()
    }

    /// Runs updates until something ends the run. A new run first waits until its inputs are verified.
    fn run(&mut self) -> Halt {
        if self.resumed_from.is_none() {
            if let Err(halt) = self.verify_inputs(false) {
                return halt;
            }
            self.retired = Instant::now();
        }
        loop {
            if let Err(halt) = self.update() {
                return halt;
            }
        }
    }

    /// Runs one update. It is submitted to the device first; while the device computes, the result of the previous
    /// update is read back. Only steps that depend on the update's own result wait for it.
    fn update(&mut self) -> Result<(), Halt> {
        let training = &self.job.task.config.training;
        if let Some(writer) = &mut self.writer {
            writer.poll(&self.progress, &mut self.reporter);
        }
        if self.progress.update == training.updates {
            return Err(End::Finished("all updates are done").into());
        }
        if self.is_below_loss() {
            return Err(End::Finished("the mean loss is below training.stop_below_loss").into());
        }
        let validations = self.progress.update / training.validate_every;
        if training.has_lost_patience(validations, self.progress.validations_since_best) {
            let why = "no improvement for as long as training.early_stopping_patience allows";
            return Err(End::Finished(why).into());
        }
        let mut requests = self.requests()?;
        // Nothing may be written any more, not even the results of updates in flight.
        if let Some(lost) = requests.stop.take_if(|stop| stop.is_lost()) {
            return Err(lost.into());
        }
        let started = Instant::now();
        let (number, skipped) = (self.next_update(), self.progress.skipped_samples);
        if requests.stop.is_none() {
            self.verify_machine(number)?;
            self.in_flight.push_back(self.trainer.step(number, skipped)?);
        }
        let needs_sync = requests.stop.is_some() || requests.save || self.needs_sync();
        if let Next::Rewound = self.retire(usize::from(!needs_sync))? {
            return Ok(());
        }
        if let Some(stop) = requests.stop {
            return Err(stop.into());
        }
        match needs_sync {
            true => self.validate_and_save(requests.save, started),
            false => {
                self.longest_update = self.longest_update.max(started.elapsed());
                Ok(())
            }
        }
    }

    /// Whether the mean loss of the last updates ends the run.
    fn is_below_loss(&self) -> bool {
        let limit = self.job.task.config.training.stop_below_loss;
        let mean = self.progress.spikes.mean_loss(LOSSES);
        limit.zip(mean).is_some_and(|(limit, mean)| mean < limit)
    }

    /// Number of the next update to submit, from 0.
    fn next_update(&self) -> u64 {
        self.progress.update + self.in_flight.len() as u64
    }

    /// Whether the next step depends on the result of the last submitted update.
    fn needs_sync(&self) -> bool {
        let (training, done) = (&self.job.task.config.training, self.next_update());
        let due = |every: u64| every > 0 && done.is_multiple_of(every);
        done == training.updates
            || training.stop_below_loss.is_some()
            || due(training.validate_every)
            || due(training.hash_every)
            || due(self.job.task.config.checkpoint.every)
            // On the host, an update is complete once submitted.
            || self.job.device == Device::Cpu
    }

    /// Reads back the results of updates in flight, oldest first, leaving the newest `leave` in flight.
    fn retire(&mut self, leave: usize) -> Result<Next, Halt> {
        let training = &self.job.task.config.training;
        while self.in_flight.len() > leave {
            let Some(update) = self.in_flight.pop_front() else { break };
            let (step, timing) = update.wait(self.retired)?;
            self.retired = Instant::now();
            let number = self.progress.update + 1;
            let detector = &self.progress.spikes;
            if let Some(spike) = detector.spike(&training.spike, step.loss, step.gradient_norm) {
                self.reporter.spike(number, &spike);
                if training.on_spike == OnSpike::Rewind {
                    self.in_flight.clear();
                    self.rewind(number, &spike)?;
                    return Ok(Next::Rewound);
                }
            }
            self.count(training, &step);
            self.reporter.update(&self.progress, &step, &timing);
            if let Some(text) = self.trainer.task.warning(&step.terms) {
                self.reporter.warn_once(number, text);
            }
            if let Some(why) = self.diverged(training) {
                return Err(End::Failed(Cause::Diverged, why).into());
            }
        }
        Ok(Next::Continue)
    }

    /// Records the result of an update in the progress.
    fn count(&mut self, training: &Training, step: &UpdateResult) {
        let p = &mut self.progress;
        if self.trainer.numerics.dtype == Dtype::F16 {
            p.loss_scale = Some(step.loss_scale);
        }
        p.update += 1;
        p.samples += training.samples_per_update();
        let applied = step.applied.then_some((step.loss, step.gradient_norm));
        if !step.overflow {
            p.spikes.note(&training.spike, p.update, applied);
        }
        p.steps = step.steps;
        let elapsed = unix::time::process_start().elapsed().as_secs_f64();
        p.seconds = self.before.seconds + elapsed;
        let ranks = self.job.ranks.size();
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

    /// Returns the reason if the run has diverged: too many updates with a non-finite loss or gradient.
    fn diverged(&self, training: &Training) -> Option<String> {
        let (progress, limit) = (&self.progress, training.non_finite_limit);
        let often = if progress.skipped_in_row >= limit {
            format!("{limit} updates in a row")
        } else {
            format!("{} of 1000 updates", progress.spikes.skips_too_often(progress.update)?)
        };
        Some(format!(
            "diverged: loss or gradient not finite in {often} up to update {}; \
             try a lower optimizer.learning_rate or training.clip_grad_norm",
            progress.update
        ))
    }

    /// Hashes, validates and saves, where due after the last update, which began at `started`. `asked`: a save was
    /// requested.
    fn validate_and_save(&mut self, asked: bool, started: Instant) -> Result<(), Halt> {
        let config = &self.job.task.config;
        let (training, done) = (&config.training, self.progress.update);
        self.log_hash()?;
        let validation = Instant::now();
        let validates = done.is_multiple_of(training.validate_every)
            || done == training.updates
            || self.is_below_loss();
        let metrics = validates.then(|| self.trainer.validate()).transpose()?;
        let took = validation.elapsed();
        // Excludes the time spent verifying the inputs, which later updates do not repeat.
        self.longest_update = self.longest_update.max(started.elapsed());
        let saves = done.is_multiple_of(config.checkpoint.every) || asked;
        if validates || saves {
            self.verify_inputs(false)?;
        }
        let best = match metrics {
            Some(metrics) => self.record_validation(metrics, took)?,
            None => false,
        };
        if (saves || best) && done < training.updates {
            self.try_save()?;
        }
        Ok(())
    }
}
