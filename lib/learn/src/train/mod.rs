//! The training loop. It owns the order of things and nothing else: it names no model, no loss and
//! no device.
//!
//! An update is a function of the state after the one before and of its number: samples, noise and
//! learning rate follow from (seed, update). So a run that was stopped or killed and goes on from
//! any of its checkpoints ends with the same bits as one that was never stopped.

mod attempts;
mod check;
mod compiled;
mod dry_run;
mod learner;
mod machine;
mod numerics;
mod passes;
mod progress;
mod reporter;
mod restart;
mod rewind;
mod session;
mod trouble;
mod verify;
mod watch;

pub use check::{Report, check};
pub use dry_run::{Estimate, dry_run};
pub use learner::{Learner, Step};
pub use numerics::LossScale;
pub use progress::Progress;
pub use session::{Job, Resume};
pub use watch::{Spike, Watch};

use crate::checkpoint;
use crate::config::{OnSpike, Training};
use crate::stages::Stage;
use passes::{Sum, loader, passes};
use reporter::Reporter;
use session::Session;
use std::time::Instant;
use unix::run_dir::RunDir;
use unix::{Error, Exit, Result};
use verify::Mismatch;

/// Why the loop ended.
enum End {
    Finished(&'static str),
    Stopped(String),
    /// Another start would meet the same.
    Failed(String),
    /// What this machine computes cannot be trusted.
    Machine(String),
}

/// Runs a stage to its end or to where it must stop. Exit 0 when finished, 75 when stopped with a
/// checkpoint or on a machine that errs, 1 when it diverged or spiked too often. Errors, among others:
/// 75 when another process has the run.
pub fn train<S: Stage>(job: &Job<S>) -> Result<Exit> {
    tensor::parallel::inside(|| start_to_end(job))
}

fn start_to_end<S: Stage>(job: &Job<S>) -> Result<Exit> {
    let (mut session, mut reporter) = match Session::<S>::start(job)? {
        session::Start::Finished(progress) => {
            unix::note!("finished at update {}: nothing to do", progress.update);
            return Ok(Exit::Done);
        }
        session::Start::Go(both) => *both,
    };
    let end = run(job, &mut session, &mut reporter);
    let end = match end {
        Ok(end) => end,
        // Another process has the run: not a word more in its files.
        Err(error) if error.exit == Exit::Again => return Err(error),
        Err(error) => {
            reporter.failed(&session.progress, &error.to_string());
            return Err(error);
        }
    };
    match end {
        End::Finished(why) => {
            session.progress.finished = true;
            if let Err(error) = session.save_and_wait(&mut reporter) {
                return Err(lost(&session, &mut reporter, error));
            }
            reporter.finished(&session.progress, why);
            Ok(Exit::Done)
        }
        End::Stopped(why) => {
            if let Err(error) = session.save_and_wait(&mut reporter) {
                if error.exit == Exit::Again || !has_checkpoint(job)? {
                    return Err(lost(&session, &mut reporter, error));
                }
                // It can go on from an older one, and that is what 75 says.
                reporter.unsaved(&session.progress, &error);
            }
            reporter.stopped(&session.progress, &why);
            Ok(Exit::Again)
        }
        End::Machine(why) => {
            // What was computed since the last checkpoint may be wrong; from that one another machine
            // goes on rightly, and the scheduler that reads 75 can give one.
            end_save(&mut session, &mut reporter)?;
            unix::warn!("{why}");
            if has_checkpoint(job)? {
                reporter.stopped(&session.progress, &why);
                return Ok(Exit::Again);
            }
            reporter.failed(&session.progress, &why);
            Ok(Exit::Failure)
        }
        End::Failed(why) => {
            // Nothing new is saved: the last checkpoint is better than what there is now.
            end_save(&mut session, &mut reporter)?;
            reporter.held(&session.progress, &why);
            unix::warn!("{why}");
            Ok(Exit::Failure)
        }
    }
}

/// Whether there is a checkpoint to go on from.
fn has_checkpoint<S: Stage>(job: &Job<S>) -> Result<bool> {
    let folder = RunDir::open(&job.run)?.checkpoints();
    Ok(checkpoint::list(&folder)?.iter().any(checkpoint::Entry::is_good))
}

/// The end of a run whose last state is on no disk; the error is told by whoever gets it.
fn lost<S: Stage>(session: &Session<S>, reporter: &mut Reporter, error: Error) -> Error {
    if error.exit != Exit::Again {
        reporter.failed(&session.progress, &format!("checkpoint not saved: {error}"));
    }
    error
}

/// Waits for the save that runs, for an end that does not depend on it. Errors: 75 when the run is
/// somebody else's.
fn end_save<S: Stage>(session: &mut Session<S>, reporter: &mut Reporter) -> Result<()> {
    match session.finish_save(reporter) {
        Err(error) if error.exit == Exit::Again => Err(error),
        Err(error) => {
            reporter.unsaved(&session.progress, &error);
            Ok(())
        }
        Ok(()) => Ok(()),
    }
}

fn run<S: Stage>(job: &Job<S>, session: &mut Session<S>, reporter: &mut Reporter) -> Result<End> {
    let (training, rules) = (&job.config.training, &job.config.checkpoint);
    let mut batches = loader(job, session)?;
    loop {
        session.still_ours()?;
        session.look_at_save(reporter);
        if session.progress.update == training.updates {
            return Ok(End::Finished("all updates are done"));
        }
        if training.patience.is_some_and(|p| session.progress.validations_since_best > p) {
            return Ok(End::Finished("no improvement for as long as training.patience allows"));
        }
        if let Some(why) = session.must_stop(job, reporter) {
            return Ok(End::Stopped(why));
        }
        let started = Instant::now();
        let update = session.progress.update;
        let Sum { loss, mut gradients, stall } = match passes(job, session, &mut batches)? {
            Ok(sum) => sum,
            Err(mismatch) => return Ok(distrust(job, update + 1, &mismatch, reporter)),
        };
        job.ranks.all_reduce(&mut gradients)?;
        let terms = training.accumulation * job.ranks.size() as u64;
        let divisor = terms as f64 * session.numerics().loss_scale;
        let norm = learner::mean_norm(&gradients, divisor)?;
        if let Some(spike) = session.progress.watch.spike(&training.spike, loss, norm) {
            reporter.spike(update + 1, &spike);
            if training.on_spike == OnSpike::Rewind {
                drop(gradients);
                if let Some(why) = session.rewind(job, reporter, update + 1, &spike)? {
                    return Ok(End::Failed(why));
                }
                batches = loader(job, session)?;
                continue;
            }
        }
        let step = session.learner.update(update, loss, norm, &gradients, divisor);
        drop(gradients);
        session.count(training, loss, &step);
        reporter.update(&session.progress, loss, &step, started.elapsed(), stall)?;
        if let Some(why) = diverged(training, &session.progress) {
            return Ok(End::Failed(why));
        }
        let done = session.progress.update;
        if training.hash_every > 0 && done.is_multiple_of(training.hash_every) {
            reporter.hash(&session.progress, &session.learner.hash()?);
        }
        let mut best = false;
        if done.is_multiple_of(training.validate_every) || done == training.updates {
            best = session.validate(job, reporter)?;
        }
        session.note_update(started.elapsed());
        let due = done.is_multiple_of(rules.every) || best || session.asked_to_save();
        if due && done < training.updates {
            session.try_save(reporter);
        }
    }
}

/// Why there are too many updates whose loss or gradient is not finite, when there are.
fn diverged(training: &Training, progress: &Progress) -> Option<String> {
    let limit = training.non_finite_limit;
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

/// Ends a run on a machine that errs.
fn distrust<S: Stage>(
    job: &Job<S>,
    update: u64,
    mismatch: &Mismatch,
    reporter: &mut Reporter,
) -> End {
    let (host, device) = (unix::host::name(), job.device.to_string());
    reporter.machine(update, &host, &device, mismatch);
    End::Machine(format!(
        "machine, not data: update {update} computed twice on {host} ({device}) gave different bits \
         ({}, {} gradients), and {}; go on elsewhere and have {host} tested",
        mismatch.of, mismatch.gradients, mismatch.verdict
    ))
}
