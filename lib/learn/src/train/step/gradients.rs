//! The gradients of an update, summed over its micro-batches and slices and over all ranks.

use super::Trainer;
use super::exchange::Exchange;
use super::micro_batches::Tree;
use dist::Times;
use std::time::Duration;
use tensor::{Device, Dtype, Tensor};
use unix::Result;

/// Gradients and losses of an update.
pub struct StepGradients {
    /// For each pass of all ranks: sum of the loss, sum of the weights, and the terms of the loss, f32 [1] each.
    pub losses: Vec<Vec<Tensor>>,
    /// Summed gradients, one per trained parameter.
    pub gradients: Vec<Tensor>,
    /// Time spent waiting for batches.
    pub data_wait: Duration,
    /// Communication times of the sums over ranks.
    pub times: Times,
}

/// Computes the gradients of update number `update`. With several ranks, the sums over ranks overlap with the last
/// backward pass.
pub fn accumulate_gradients(
    trainer: &mut Trainer,
    update: u64,
    skipped: u64,
) -> Result<StepGradients> {
    let accumulation = trainer.config.training.accumulation;
    let passes = trainer.micro_batches.passes(accumulation);
    let ranks = trainer.ranks;
    let (mut tree, mut losses) = (Tree::default(), Vec::new());
    let mut data_wait = Duration::ZERO;
    // Gradients whose sum on this rank is complete, with the index of their parameter.
    let mut complete = Vec::new();
    for pass in 1..=passes {
        let (batch, waited) = trainer.next_batch(update, skipped)?;
        data_wait += waited;
        let Trainer { task, learner, numerics, compiled, exchange, .. } = trainer;
        if ranks.size() > 1 && pass == passes && !compiled.is_enabled() {
            let mut submitted = Ok(());
            let forward = learner.forward(&**task, &batch, numerics)?;
            let buffers = exchange.as_mut().map(Exchange::buffers).transpose()?;
            let loss = learner.backward(forward, buffers.unwrap_or_default(), |i, gradient| {
                let sum = tree.finish(i, gradient);
                match exchange {
                    Some(exchange) if submitted.is_ok() => submitted = exchange.submit(i, sum),
                    _ => complete.push((i, sum)),
                }
            })?;
            submitted?;
            losses.push(loss);
            // All of it was taken out.
            tree = Tree::default();
            break;
        }
        let (loss, gradients) =
            compiled.gradients(&**task, learner, batch, numerics, passes > 1)?;
        losses.push(loss);
        tree.add(gradients);
        if pass.is_multiple_of(accumulation) {
            tree.close();
        }
    }
    if ranks.size() == 1 {
        let times = Times::default();
        return Ok(StepGradients { losses, gradients: tree.whole(), data_wait, times });
    }
    complete.extend(tree.whole().into_iter().enumerate().rev());
    sum_over_ranks(trainer, losses, complete, data_wait)
}

/// Sums with the other ranks. `complete` are the gradients that were not submitted during the backward pass.
fn sum_over_ranks(
    trainer: &mut Trainer,
    losses: Vec<Vec<Tensor>>,
    mut complete: Vec<(usize, Tensor)>,
    data_wait: Duration,
) -> Result<StepGradients> {
    let accumulation = trainer.config.training.accumulation;
    let [total, before] = [trainer.micro_batches.total, trainer.micro_batches.first]
        .map(|slices| (slices * accumulation) as usize);
    let width = losses.first().map_or(1, Vec::len);
    let numbers = losses.into_iter().flatten().collect();
    let numbers = zero_padded(numbers, before * width, total * width);
    let params = &trainer.learner.params.trained;
    let parameters = params.entries().len();
    complete.extend((parameters..).zip(numbers));
    let exchange = match &mut trainer.exchange {
        Some(exchange) => exchange,
        none => {
            let mut shapes: Vec<Vec<usize>> =
                params.tensors().map(|t| t.shape().to_vec()).collect();
            shapes.resize(complete.len(), vec![1]);
            let order: Vec<usize> = complete.iter().map(|(i, _)| *i).collect();
            none.insert(Exchange::new(trainer.ranks, trainer.device, &shapes, &order)?)
        }
    };
    for (i, tensor) in complete {
        exchange.submit(i, tensor)?;
    }
    let mut gradients = exchange.wait()?;
    let numbers = gradients.split_off(parameters);
    let losses = numbers.chunks(width).map(<[Tensor]>::to_vec).collect();
    Ok(StepGradients { losses, gradients, data_wait, times: exchange.times() })
}

/// Places `own` at index `before` among `total` tensors; the others are zeros, to which the other ranks add their
/// values.
fn zero_padded(own: Vec<Tensor>, before: usize, total: usize) -> Vec<Tensor> {
    let device = own.first().map_or(Device::Cpu, Tensor::device);
    let zeros = || Tensor::zeros_on(device, &[1], Dtype::F32);
    let mut all: Vec<Tensor> = (0..total).map(|_| zeros()).collect();
    all.splice(before..before + own.len(), own);
    all
}
