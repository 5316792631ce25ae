//! The passes of an update: batches made ahead, gradients summed over passes, portions and ranks.

use super::exchange::Exchange;
use super::job::Job;
use super::portions::Tree;
use super::session::Session;
use super::verify::{self, Mismatch};
use crate::params::Params;
use crate::task::Batch;
use data::loader::{Ahead, Mixture, Prefetch};
use dist::{Collective, Times};
use std::sync::Arc;
use std::time::Duration;
use tensor::{Dtype, Tensor};
use unix::{Error, Result};

/// Starts the threads that make batches, from the pass that comes next.
pub fn loader(job: &Job, session: &Session) -> Result<Prefetch<Batch>> {
    let training = &job.task.config.training;
    let order = Mixture::new(job.task.config.seed, &session.task.sources(), training.batch_size)?;
    let (task, device, portions) = (Arc::clone(&session.task), job.device, session.portions);
    let accumulation = training.accumulation;
    let first = session.progress.update * portions.mine * accumulation;
    // What rewinds have passed over moves the samples, not what goes by the update.
    let passed_over = session.progress.passed_over / training.batch_size;
    let ahead = Ahead { batches: training.prefetch, workers: training.workers };
    Prefetch::start(first, ahead, move |count| {
        // A pass is numbered like an update without accumulation.
        let (pass, place) = portions.computation(count, accumulation);
        let samples = order.part(pass + passed_over, place, portions.samples);
        task.batch(pass, place, &samples)?.to_device(device)
    })
}

/// What the passes of an update give.
pub struct Sum {
    /// The numbers of their losses ([`Learner::gradients`]), those of all ranks.
    pub losses: Vec<Vec<Tensor>>,
    /// Sum of their gradients.
    pub gradients: Vec<Tensor>,
    /// How long batches were waited for.
    pub stall: Duration,
    /// What summing over ranks took.
    pub times: Times,
}

/// The passes of the update that comes next; computed twice when it is one to be verified, and then the
/// rank whose computations differ is told.
pub fn passes(
    job: &Job,
    session: &mut Session,
    batches: &mut Prefetch<Batch>,
) -> Result<Result<Sum, (usize, Mismatch)>> {
    let training = &job.task.config.training;
    let (every, numerics) = (training.verify_every, &session.numerics);
    let verified = every > 0 && (session.next_update() + 1).is_multiple_of(every);
    let (task, learner) = (&*session.task, &session.learner);
    let compiled = &mut session.compiled;
    let many = job.ranks.size() > 1;
    let count = session.portions.mine * training.accumulation;
    let (mut tree, mut losses, mut mismatch) = (Tree::default(), Vec::new(), None);
    let mut stall = Duration::ZERO;
    // Gradients that are whole on this rank, with the places of their parameters.
    let mut whole = Vec::new();
    for number in 1..=count {
        let batch = batches.next()?;
        stall += batches.stall();
        if many && number == count && !verified && !compiled.is_enabled() {
            // While the backward pass still runs, what it has found is summed over the ranks, where it was made.
            let mut given = Ok(());
            let forward = learner.forward(task, &batch, numerics)?;
            let rooms = session.exchange.as_mut().map(Exchange::rooms).transpose()?;
            let loss = learner.backward(forward, rooms.unwrap_or_default(), |i, gradient| {
                let sum = tree.finish(i, gradient);
                match &mut session.exchange {
                    Some(exchange) if given.is_ok() => given = exchange.give(i, sum),
                    _ => whole.push((i, sum)),
                }
            })?;
            given?;
            losses.push(loss);
            // All of it was taken out.
            tree = Tree::default();
            break;
        }
        let computed = match verified {
            true => {
                compiled.forget();
                verify::twice(task, learner, &batch, numerics)?
            }
            false => Ok(compiled.gradients(task, learner, batch, numerics, count > 1)?),
        };
        let (loss, gradients) = match computed {
            Ok(computed) => computed,
            Err(found) => {
                mismatch = Some(found);
                break;
            }
        };
        losses.push(loss);
        tree.add(gradients);
        if number.is_multiple_of(training.accumulation) {
            tree.close();
        }
    }
    if verified && let Some(found) = first_mismatch(job.ranks, mismatch)? {
        return Ok(Err(found));
    }
    if !many {
        let (gradients, times) = (tree.whole(), Times::default());
        return Ok(Ok(Sum { losses, gradients, stall, times }));
    }
    whole.extend(tree.whole().into_iter().enumerate().rev());
    let all = session.portions.all * training.accumulation;
    let before = session.portions.first * training.accumulation;
    let width = losses.first().map_or(1, Vec::len);
    let numbers = losses.into_iter().flatten().collect();
    let numbers = among(numbers, before as usize * width, all as usize * width);
    let params = &learner.params;
    whole.extend((params.entries().len()..).zip(numbers));
    let exchange = match &mut session.exchange {
        Some(exchange) => exchange,
        none => none.insert(exchange(job, params, &whole)?),
    };
    for (i, tensor) in whole {
        exchange.give(i, tensor)?;
    }
    let mut gradients = exchange.take()?;
    let numbers = gradients.split_off(params.entries().len());
    let losses = numbers.chunks(width).map(<[Tensor]>::to_vec).collect();
    Ok(Ok(Sum { losses, gradients, stall, times: exchange.times() }))
}

/// The first rank that has a mismatch.
fn first_mismatch(
    ranks: &dyn Collective,
    own: Option<Mismatch>,
) -> Result<Option<(usize, Mismatch)>> {
    for (rank, told) in
        ranks.gather(&serde_json::to_vec(&own).map_err(Error::bug)?)?.iter().enumerate()
    {
        let found: Option<Mismatch> = serde_json::from_slice(told).map_err(Error::bug)?;
        if let Some(found) = found {
            return Ok(Some((rank, found)));
        }
    }
    Ok(None)
}

/// The numbers of the losses of this rank, from number `before` on of `all`; in the place of others zeros, to
/// which others add theirs.
fn among(own: Vec<Tensor>, before: usize, all: usize) -> Vec<Tensor> {
    let Some(first) = own.first() else { return own };
    let zeros = || Tensor::zeros_on(first.device(), first.shape(), Dtype::F32);
    let mut losses: Vec<Tensor> = (0..all).map(|_| zeros()).collect();
    losses.splice(before..before + own.len(), own);
    losses
}

/// What sums gradients and losses, which come in the order in which they came now.
fn exchange(job: &Job, params: &Params, whole: &[(usize, Tensor)]) -> Result<Exchange> {
    let mut shapes: Vec<Vec<usize>> = params.tensors().map(|t| t.shape().to_vec()).collect();
    shapes.resize(whole.len(), vec![1]);
    let order: Vec<usize> = whole.iter().map(|(i, _)| *i).collect();
    Exchange::new(job.ranks, job.device, &shapes, &order)
}
