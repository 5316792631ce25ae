//! The training loop. It owns the order of things and nothing else: it names no model, no loss and
//! no device.
//!
//! An update is a function of the state after the one before and of its number: samples, noise and
//! learning rate follow from (seed, update). So a run that was stopped or killed and goes on from
//! any of its checkpoints ends with the same bits as one that was never stopped.

mod attempts;
mod check;
mod dry_run;
mod learner;
mod machine;
mod progress;
mod reporter;
mod restart;
mod session;
mod trouble;

pub use check::{Report, check};
pub use dry_run::{Estimate, dry_run};
pub use learner::{Learner, Step};
pub use progress::Progress;
pub use session::{Job, Resume};

use crate::stages::Stage;
use data::loader::{Order, Prefetch};
use reporter::Reporter;
use session::Session;
use std::sync::Arc;
use std::time::Instant;
use unix::{Exit, Result};

/// Why the loop ended.
enum End {
    Finished(&'static str),
    Stopped(String),
    Diverged(String),
}

/// Runs a stage to its end or to where it must stop. Exit 0 when finished, 75 when stopped with a
/// checkpoint, 1 when it diverged. Errors, among others: 75 when another process has the run.
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
            session.save(&mut reporter)?;
            session.finish_save(&mut reporter)?;
            reporter.finished(&session.progress, why);
            Ok(Exit::Done)
        }
        End::Stopped(why) => {
            session.save(&mut reporter)?;
            session.finish_save(&mut reporter)?;
            reporter.stopped(&session.progress, &why);
            Ok(Exit::Again)
        }
        End::Diverged(why) => {
            // Nothing new is saved: the last checkpoint is better than what there is now.
            session.finish_save(&mut reporter)?;
            reporter.held(&session.progress, &why);
            unix::warn!("{why}");
            Ok(Exit::Failure)
        }
    }
}

/// Starts the thread that makes batches, from the pass that comes next.
fn loader<S: Stage>(job: &Job<S>, session: &Session<S>) -> Result<Prefetch<S::Batch>> {
    let training = &job.config.training;
    let order = Order::new(job.config.seed, session.stage.samples(), training.batch_size)?;
    let stage = Arc::clone(&session.stage);
    let accumulation = training.accumulation;
    let first = session.progress.update * accumulation;
    // A pass is numbered like an update without accumulation.
    Prefetch::start(first, training.prefetch, move |pass| stage.batch(pass, &order.batch(pass)))
}

fn run<S: Stage>(job: &Job<S>, session: &mut Session<S>, reporter: &mut Reporter) -> Result<End> {
    let (training, rules) = (&job.config.training, &job.config.checkpoint);
    let mut batches = loader(job, session)?;
    loop {
        session.still_ours()?;
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
        let (mut loss, mut sum, mut stall) = (0.0, None, std::time::Duration::ZERO);
        for _ in 0..training.accumulation {
            let batch = batches.next()?;
            stall += batches.stall();
            let (value, gradients) =
                learner::gradients(&*session.stage, &session.learner.params, &batch)?;
            loss += value / training.accumulation as f64;
            match &mut sum {
                None => sum = Some(gradients),
                Some(sum) => learner::accumulate(sum, &gradients),
            }
        }
        let mut gradients = sum.unwrap_or_default();
        job.ranks.all_reduce(&mut gradients)?;
        let terms = training.accumulation * job.ranks.size() as u64;
        let step = session.learner.update(update, loss, &gradients, terms);
        drop(gradients);
        session.count(&step, training.samples_per_update());
        reporter.update(&session.progress, loss, &step, started.elapsed(), stall)?;
        if session.progress.skipped_in_row >= training.non_finite_limit {
            return Ok(End::Diverged(format!(
                "diverged: loss or gradient not finite in {} updates in a row up to update {}; \
                 try a lower optimizer.learning_rate or training.clip",
                training.non_finite_limit, session.progress.update
            )));
        }
        let done = session.progress.update;
        let mut best = false;
        if done.is_multiple_of(training.validate_every) || done == training.updates {
            best = session.validate(job, reporter)?;
        }
        session.note_update(started.elapsed());
        let due = done.is_multiple_of(rules.every) || best || session.asked_to_save();
        if due && done < training.updates {
            session.save(reporter)?;
        }
    }
}
