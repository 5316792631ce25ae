//! Training state (parameters, their moving average, optimizer state) and its updates.

use super::micro_batches::MicroBatches;
use super::numerics::{self, Numerics};
use super::terms::{LossTerms, TermKind, means};
use crate::checkpoint::{Loaded, parts, split};
use crate::config::Config;
use crate::forward::Forward;
use crate::optim::{Optimizer, OptimizerState, Schedule};
use crate::params::{ParamSet, Params, to_device};
use crate::task::{Batch, Task};
use crate::train::Progress;
use dist::Collective;
use std::collections::BTreeMap;
use std::rc::Rc;
use tensor::kernel::{self, PendingRead};
use tensor::product::bf16::Rounding;
use tensor::updates::decision::{
    DeviceStepControl, LossScale, PendingStepControl, StepControl, StepPolicy,
};
use tensor::updates::{ema, norm};
use tensor::{Device, Dtype, Tape, Tensor, Var};
use unix::{Error, Result};

/// A loss with its tape, ready for the backward pass.
pub struct ForwardLoss {
    tape: Tape,
    loss: Var,
    /// Sum of the weights of the batch, followed by the sum of each loss term and, where it has one, its own weight.
    numbers: Vec<Tensor>,
    variables: Vec<Var>,
    /// The backward pass rounds operands, too.
    rounding: Option<Rounding>,
}

/// Parameters, moving average and optimizer state of a run.
pub struct Learner {
    /// Trained and frozen parameters.
    pub params: ParamSet,
    /// Moving average of the trained parameters (`training.ema`).
    pub average: Option<Params>,
    /// Learning-rate factor of [`crate::optim::Plateau`].
    pub plateau_factor: f64,
    moments: OptimizerState,
    optimizer: Optimizer,
    schedule: Schedule,
    rule: StepPolicy,
    /// Whether checkpoints store the frozen parameters (`checkpoint.frozen`).
    stores_frozen: bool,
    /// With `optimizer.shard`, the rank that owns the optimizer state of each parameter.
    owners: Option<Vec<usize>>,
    /// Whether each gradient is summed over ranks for its owner only.
    sums_for_owner: bool,
    /// The step policy's decision about the last update, on the device.
    decided: DeviceStepControl,
    /// Updates between log records, and in total: loss terms are only read back for updates that are logged.
    log_every: u64,
    updates: u64,
    terms: LossTerms,
}

/// Named tensors.
type Named = Vec<(String, Tensor)>;

/// Tensors of a checkpoint, by file stem.
pub type Files = Vec<(String, Named)>;

/// Result of one update.
#[derive(Clone, Debug)]
pub struct UpdateResult {
    /// Weighted mean loss over the micro-batches.
    pub loss: f64,
    /// Mean of each loss term, by name.
    pub terms: BTreeMap<String, f64>,
    /// Global gradient norm before clipping.
    pub gradient_norm: f64,
    /// Whether the parameters were updated; false if the loss or a gradient is not finite.
    pub applied: bool,
    /// Whether gradients overflowed the range of f16.
    pub overflow: bool,
    /// Loss scale of the next update.
    pub loss_scale: LossScale,
    /// Number of optimizer steps so far.
    pub steps: u64,
    /// Learning rate of this update.
    pub learning_rate: f64,
}

/// An update that was submitted to the device and may not have completed.
#[derive(Debug)]
pub struct Pending {
    decision: PendingStepControl,
    learning_rate: f64,
    terms: Vec<TermKind>,
    /// `ForwardLoss::numbers` of each pass; empty if they are not logged.
    numbers: Vec<Vec<PendingRead>>,
}

impl Pending {
    /// Waits for this update, but not for later ones. Errors: errors of the device.
    pub fn wait(self) -> Result<UpdateResult> {
        let StepControl { loss, norm, applied, overflow, loss_scale, steps, .. } =
            self.decision.wait()?;
        let mut sums = vec![0.0; self.numbers.first().map_or(0, Vec::len)];
        for pass in self.numbers {
            for (sum, number) in sums.iter_mut().zip(pass) {
                *sum += number.wait()?.item();
            }
        }
        Ok(UpdateResult {
            loss,
            terms: means(self.terms, sums),
            gradient_norm: norm,
            applied,
            overflow,
            loss_scale,
            steps,
            learning_rate: self.learning_rate,
        })
    }
}

/// Creates the step-control state before the first update of an attempt.
fn initial_step_control(
    rule: &StepPolicy,
    progress: &Progress,
    device: Device,
) -> Result<DeviceStepControl> {
    let loss_scale = match rule.scaled {
        true => progress.loss_scale.unwrap_or(LossScale::FIRST),
        false => LossScale::NONE,
    };
    let steps = progress.steps;
    let decision = StepControl { steps, loss_scale, ..StepControl::default() };
    DeviceStepControl::of(&decision, rule.unit).to_device(device)
}

impl Learner {
    /// Creates the state before the first update, on the device of the parameters. Errors: errors of the device.
    pub fn new(
        mut params: ParamSet,
        config: &Config<(), (), ()>,
        ranks: &dyn Collective,
    ) -> Result<Self> {
        let (training, optimizer) = (&config.training, &config.optimizer);
        let dtype = numerics::dtype(training.amp, training.precision, params.trained.device());
        params.frozen.prepare(dtype);
        let trained = &params.trained;
        optimizer.check_groups(&params)?;
        let lengths: Vec<usize> = trained.tensors().map(Tensor::len).collect();
        let owners = (optimizer.shard && ranks.size() > 1).then(|| parts(&lengths, ranks.size()));
        let is_ours = |i: usize| owners.as_ref().is_none_or(|owners| owners[i] == ranks.rank());
        let scaled = dtype == Dtype::F16;
        let samples = MicroBatches::new(training, ranks.rank(), ranks.size())?.samples;
        let rule = StepPolicy {
            clip: training.clip_grad_norm.unwrap_or(f64::INFINITY),
            betas: optimizer.corrected(),
            decay: training.ema.unwrap_or(0.0),
            warmup: training.ema_warmup,
            scaled,
            unit: if scaled { 1.0 / samples.next_power_of_two() as f64 } else { 1.0 },
        };
        let schedule = Schedule::new(&config.schedule, training.updates).map_err(Error::config)?;
        Ok(Self {
            decided: initial_step_control(&rule, &Progress::default(), trained.device())?,
            moments: OptimizerState::new(optimizer, trained, is_ours),
            sums_for_owner: owners.is_some() && ranks.uses_nccl(trained.device()),
            owners,
            stores_frozen: config.checkpoint.frozen,
            average: training.ema.map(|_| trained.clone()),
            plateau_factor: 1.0,
            params,
            optimizer: optimizer.clone(),
            schedule,
            rule,
            log_every: training.log_every,
            updates: training.updates,
            terms: LossTerms::default(),
        })
    }

    /// Owner rank of each parameter's gradient; empty if all ranks use all gradients.
    pub fn owners(&self) -> &[usize] {
        self.owners.as_deref().filter(|_| self.sums_for_owner).unwrap_or_default()
    }

    /// The loss scale of the next update, f32 [1], on the device of the parameters.
    pub fn loss_scale(&self) -> &Tensor {
        self.decided.loss_scale()
    }

    /// Computes, for one batch, the sum of the loss, the sum of the weights and every loss term, f32 [1] each, and the
    /// gradients of the scaled loss.
    pub fn gradients(
        &self,
        task: &dyn Task,
        batch: &Batch,
        numerics: &Numerics,
    ) -> Result<(Vec<Tensor>, Vec<Tensor>)> {
        let mut all = vec![None; self.params.trained.entries().len()];
        let forward = self.forward(task, batch, numerics)?;
        let loss = self.backward(forward, Vec::new(), |i, g| all[i] = Some(g))?;
        Ok((loss, all.into_iter().flatten().collect()))
    }

    /// Computes the loss of one batch, ready for the backward pass.
    pub fn forward(
        &self,
        task: &dyn Task,
        batch: &Batch,
        numerics: &Numerics,
    ) -> Result<ForwardLoss> {
        let rounding = numerics.products.set();
        numerics.recompute.begin_pass(batch.variant());
        let tape = Tape::new();
        let forward = Forward::training(&tape, &self.params)
            .with_counter(batch.counter())
            .with_average(self.average.as_ref())
            .computing_in(numerics.dtype)?
            .recomputing(Rc::clone(&numerics.recompute));
        let loss = task.loss(&forward, batch)?;
        let variables = forward.variables().to_vec();
        drop(forward);
        numerics.recompute.end_pass();
        let numbers = self.terms.numbers(task, batch, loss.terms)?;
        Ok(ForwardLoss { tape, loss: loss.sum, numbers, variables, rounding })
    }

    /// Runs the backward pass of a loss: calls `ready` with the index and gradient of each parameter as soon as the
    /// gradient is complete, and returns the same losses as [`Learner::gradients`]. Gradients are computed in `buffers`
    /// where given.
    pub fn backward(
        &self,
        forward: ForwardLoss,
        buffers: Vec<Tensor>,
        mut ready: impl FnMut(usize, Tensor),
    ) -> Result<Vec<Tensor>> {
        let ForwardLoss { tape, loss, numbers, variables, rounding: _rounding } = forward;
        let device = self.params.trained.device();
        let zeros = |v: &Var| Tensor::zeros_on(device, v.shape(), Dtype::F32);
        tape.backward_each(&loss, self.loss_scale(), &variables, buffers, |i, gradient| {
            ready(i, gradient.unwrap_or_else(|| zeros(&variables[i])));
        })?;
        Ok(std::iter::once(loss.value().clone()).chain(numbers).collect())
    }

    /// Submits update number `update` (from 0), given the `losses` of every micro-batch, as returned by
    /// [`Learner::gradients`], and the summed gradients. Parameters that match a pattern of `frozen` stay as they are.
    /// Does not wait for the device, except when sending sharded
    /// parameters to other ranks via the host.
    pub fn update(
        &mut self,
        update: u64,
        losses: &[Vec<Tensor>],
        gradients: &[Tensor],
        frozen: &[&str],
        ranks: &dyn Collective,
    ) -> Result<Pending> {
        let factor = self.schedule.factor(update) * self.plateau_factor;
        let learning_rate = self.optimizer.learning_rate * factor;
        let [sums, weights] =
            [0, 1].map(|i| losses.iter().map(|l| l[i].clone()).collect::<Vec<Tensor>>());
        let device = self.params.trained.device();
        let squares = match self.owners() {
            [] => norm::squares(device, gradients),
            owners => {
                let own = gradients.iter().zip(owners).filter(|(_, owner)| **owner == ranks.rank());
                let mut square = norm::square(device, own.map(|(gradient, _)| gradient));
                ranks.all_reduce(&mut square)?;
                square
            }
        };
        self.rule.decide_on_device(&mut self.decided, &sums, &weights, &squares, learning_rate);
        let decided = &self.decided;
        let trained = &mut self.params.trained;
        self.moments.step(&self.optimizer, factor, frozen, decided, trained, gradients);
        if let Some(owners) = &self.owners {
            let owned = owners.iter().copied().zip(trained.tensors_mut());
            ranks.all_gather(&mut owned.collect::<Vec<_>>())?;
        }
        if unix::fail::flips("update.parameters") {
            let first = trained.tensors_mut().next().filter(|t| t.device() == Device::Cpu);
            let element = first.and_then(|tensor| tensor.write::<f32>().first_mut());
            element.into_iter().for_each(|x| *x = f32::from_bits(x.to_bits() ^ 1));
        }
        if let Some(average) = &mut self.average {
            ema::apply_all(decided, trained.tensors().zip(average.tensors_mut()));
        }
        let is_logged = (update + 1).is_multiple_of(self.log_every) || update + 1 == self.updates;
        let terms = if is_logged { self.terms.kinds() } else { Vec::new() };
        let later = |loss: &Vec<Tensor>| loss[1..].iter().map(kernel::read_async).collect();
        let numbers =
            if terms.is_empty() { Vec::new() } else { losses.iter().map(later).collect() };
        Ok(Pending { decision: decided.read_async(), learning_rate, terms, numbers })
    }

    /// Returns the parameters to evaluate: the moving average if there is one.
    pub fn evaluation_params(&self) -> ParamSet {
        let trained = self.average.as_ref().unwrap_or(&self.params.trained);
        ParamSet { trained: trained.clone(), frozen: self.params.frozen.clone() }
    }

    /// Returns the [`hash_of`](crate::params::hash_of) the trained parameters; equal on all ranks, and for repeated
    /// runs with the same configuration.
    pub fn hash(&self) -> Result<String> {
        self.params.trained.hash()
    }

    /// Returns the tensors of a checkpoint by file, on the host of rank 0; None on the other ranks.
    pub fn files(&self, ranks: &dyn Collective) -> Result<Option<Files>> {
        let trained = &self.params.trained;
        let moments = match &self.owners {
            None if ranks.rank() > 0 => return Ok(None),
            None => to_device(&self.moments.entries(&self.optimizer, trained), Device::Cpu)?,
            Some(owners) => self.gather_moments(owners, ranks)?,
        };
        if ranks.rank() > 0 {
            return Ok(None);
        }
        let mut files = vec![("model".to_string(), to_device(trained.entries(), Device::Cpu)?)];
        if let Some(average) = &self.average {
            files.push(("ema".into(), to_device(average.entries(), Device::Cpu)?));
        }
        if self.stores_frozen && !self.params.frozen.entries().is_empty() {
            files.push(("frozen".into(), to_device(self.params.frozen.entries(), Device::Cpu)?));
        }
        let shards = if self.owners.is_some() { ranks.size() } else { 1 };
        files.extend(split(moments, shards));
        Ok(Some(files))
    }

    /// Gathers the optimizer state of all ranks on rank 0, one parameter at a time to limit the memory used on the
    /// other ranks.
    fn gather_moments(&self, owners: &[usize], ranks: &dyn Collective) -> Result<Named> {
        let mut all = Vec::new();
        for (i, owner) in owners.iter().enumerate() {
            let entries = self.moments.entry(&self.optimizer, &self.params.trained, i);
            let mut entries = to_device(&entries, Device::Cpu)?;
            let mut owned: Vec<_> = entries.iter_mut().map(|(_, t)| (*owner, t)).collect();
            ranks.all_gather(&mut owned)?;
            if ranks.rank() == 0 {
                all.extend(entries);
            }
        }
        Ok(all)
    }

    /// Restores the state from a checkpoint, which may have been written by any number of ranks.
    pub fn assign(&mut self, progress: &Progress, found: &Loaded) -> Result<()> {
        let lacks = |what: &str| Error::data(format!("the checkpoint has no {what}.safetensors"));
        let need = |name: &str| found.tensors(name).ok_or_else(|| lacks(name));
        let trained = &mut self.params.trained;
        trained.assign(&need("model")?)?;
        let moments = found.optimizer().ok_or_else(|| lacks("optim-0-of-1"))?;
        self.moments.assign(&self.optimizer, trained, &moments)?;
        self.decided = initial_step_control(&self.rule, progress, trained.device())?;
        if let Some(average) = &mut self.average {
            average.assign(&need("ema")?)?;
        }
        self.plateau_factor = progress.plateau.factor;
        Ok(())
    }
}
