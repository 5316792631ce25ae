//! Gradients of an update, summed over its micro-batches and slices and across all ranks.

use super::Trainer;
use super::compiled::Model;
use super::exchange::{Exchange, Layout};
use super::micro_batches::Tree;
use super::parts::AheadBatches;
use dist::Times;
use std::time::Duration;
use tensor::{Device, Dtype, Tensor};
use unix::Result;

/// Gradients and losses of an update.
pub struct StepGradients {
    /// For each pass of each rank: the sum of the loss, the sum of the weights, and the loss terms, f32 [1] each.
    pub losses: Vec<Vec<Tensor>>,
    /// Summed gradients, one per trained parameter.
    pub gradients: Vec<Tensor>,
    /// Time spent waiting for batches.
    pub data_wait: Duration,
    /// Communication times of the all-reduce.
    pub times: Times,
}

/// Takes the gradients of a pass, one parameter at a time. With several ranks, the last pass completes the sums of this
/// rank and submits them for the all-reduce, while the rest of the backward pass runs.
pub struct Sink<'a> {
    tree: &'a mut Tree,
    /// Whether this pass completes the sums of this rank.
    is_last: bool,
    /// None before the first update or with one rank.
    exchange: &'a mut Option<Exchange>,
    /// Gradients that were not submitted, with their parameter indices.
    taken: Vec<(usize, Tensor)>,
    submitted: Result<()>,
}

impl Sink<'_> {
    /// Returns the gradient buffers by parameter, as in [`Exchange::buffers`]; empty without an exchange.
    pub fn buffers(&mut self) -> Result<Vec<Tensor>> {
        let buffers = self.exchange.as_mut().map(Exchange::buffers).transpose()?;
        Ok(buffers.unwrap_or_default())
    }

    /// Returns a function that tells whether a bucket can be submitted once the gradient of a parameter is complete;
    /// call it in the order in which gradients are completed.
    pub fn bucket_boundaries(&self) -> impl FnMut(usize) -> bool + use<> {
        let mut completes = self.exchange.as_ref().map(Exchange::completes);
        move |parameter| completes.as_mut().is_some_and(|completes| completes(parameter))
    }

    /// Takes the gradient of a parameter.
    pub fn take(&mut self, parameter: usize, gradient: Tensor) {
        match self.exchange {
            Some(exchange) if self.is_last => {
                let sum = self.tree.finish(parameter, gradient);
                if self.submitted.is_ok() {
                    self.submitted = exchange.submit(parameter, sum);
                }
            }
            _ if self.is_last => {
                self.taken.push((parameter, self.tree.finish(parameter, gradient)))
            }
            _ => self.taken.push((parameter, gradient)),
        }
    }
}

/// Computes the gradients of update number `update`. With several ranks, the all-reduce overlaps with the last backward
/// pass.
pub fn accumulate_gradients(
    trainer: &mut Trainer,
    update: u64,
    skipped: u64,
) -> Result<StepGradients> {
    let accumulation = trainer.config.training.accumulation;
    let passes = trainer.micro_batches.passes(accumulation);
    let is_alone = trainer.ranks.size() == 1;
    let (mut tree, mut losses) = (Tree::default(), Vec::new());
    let mut data_wait = Duration::ZERO;
    let (mut complete, mut batches) = (Vec::new(), AheadBatches::default());
    for pass in 1..=passes {
        let (batch, waited) = batches.next(trainer, (update, skipped), passes)?;
        data_wait += waited;
        let Trainer { task, learner, numerics, compiled, exchange, .. } = trainer;
        let is_last = pass == passes && !is_alone;
        let model = Model { task: &**task, learner, numerics };
        let mut sink =
            Sink { tree: &mut tree, is_last, exchange, taken: Vec::new(), submitted: Ok(()) };
        losses.push(compiled.pass(model, batch, pass < passes, &mut sink)?);
        sink.submitted?;
        let mut taken = sink.taken;
        if is_last {
            complete = taken;
            break;
        }
        taken.sort_by_key(|(parameter, _)| *parameter);
        tree.add(taken.into_iter().map(|(_, gradient)| gradient).collect());
        if pass.is_multiple_of(accumulation) {
            tree.close();
        }
    }
    if is_alone {
        let times = Times::default();
        return Ok(StepGradients { losses, gradients: tree.whole(), data_wait, times });
    }
    sum_over_ranks(trainer, losses, complete, data_wait)
}

/// Completes the all-reduce. `complete` holds the gradients that were not submitted during the backward pass.
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
            let layout = Layout {
                shapes: &shapes,
                order,
                gradients: parameters,
                owners: trainer.learner.owners(),
                dtype: trainer.config.training.reduce_dtype.dtype(),
            };
            none.insert(Exchange::new(trainer.ranks, trainer.device, layout)?)
        }
    };
    for (i, tensor) in complete {
        exchange.submit(i, tensor)?;
    }
    let mut gradients = exchange.wait()?;
    let numbers = gradients.split_off(parameters);
    // Copied, because the losses are read later, when the memory of their bucket has been reused.
    let losses = numbers.chunks(width).map(|pass| pass.iter().map(Tensor::copied).collect());
    let losses = losses.collect();
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
