//! The passes of an update: batches made ahead, losses and gradients summed.

use super::learner;
use super::session::{Job, Session};
use super::verify::{self, Mismatch};
use crate::stages::{Batch, Stage};
use data::loader::{Order, Prefetch};
use std::sync::Arc;
use std::time::Duration;
use tensor::Tensor;
use unix::Result;

/// Starts the thread that makes batches, from the pass that comes next.
pub fn loader<S: Stage>(job: &Job<S>, session: &Session<S>) -> Result<Prefetch<S::Batch>> {
    let training = &job.config.training;
    let order = Order::new(job.config.seed, session.stage.samples(), training.batch_size)?;
    let (stage, device) = (Arc::clone(&session.stage), job.device);
    let accumulation = training.accumulation;
    let first = session.progress.update * accumulation;
    // What rewinds have passed over moves the samples, not what goes by the update.
    let passed_over = session.progress.passed_over / training.batch_size;
    // A pass is numbered like an update without accumulation.
    Prefetch::start(first, training.prefetch, move |pass| {
        stage.batch(pass, &order.batch(pass + passed_over))?.to_device(device)
    })
}

/// What the passes of an update give.
pub struct Sum {
    /// Mean of their losses.
    pub loss: f64,
    /// Sum of their gradients.
    pub gradients: Vec<Tensor>,
    /// How long batches were waited for.
    pub stall: Duration,
}

/// The passes of the update that comes next; computed twice when it is one to be verified.
pub fn passes<S: Stage>(
    job: &Job<S>,
    session: &mut Session<S>,
    batches: &mut Prefetch<S::Batch>,
) -> Result<Result<Sum, Mismatch>> {
    let training = &job.config.training;
    let (every, numerics) = (training.verify_every, session.numerics());
    let (stage, params) = (&*session.stage, &session.learner.params);
    let compiled = &mut session.compiled;
    let verified = every > 0 && (session.progress.update + 1).is_multiple_of(every);
    let (mut loss, mut sum, mut stall) = (0.0, None, Duration::ZERO);
    for _ in 0..training.accumulation {
        let batch = batches.next()?;
        stall += batches.stall();
        let computed = match verified {
            true => {
                compiled.forget();
                verify::twice(stage, params, &batch, &numerics)?
            }
            false => {
                let keep = training.accumulation > 1;
                Ok(compiled.gradients(stage, params, batch, &numerics, keep)?)
            }
        };
        let (value, gradients) = match computed {
            Ok(computed) => computed,
            Err(mismatch) => return Ok(Err(mismatch)),
        };
        loss += value / training.accumulation as f64;
        match &mut sum {
            None => sum = Some(gradients),
            Some(sum) => learner::accumulate(sum, &gradients),
        }
    }
    Ok(Ok(Sum { loss, gradients: sum.unwrap_or_default(), stall }))
}
