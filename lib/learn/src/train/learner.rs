//! What is trained: parameters, their moving average, the optimizer's memory; and one update of them.

use super::keeper::Files;
use super::numerics::{self, Numerics};
use super::portions::Portions;
use super::progress::Progress;
use crate::checkpoint::{Loaded, parts, split};
use crate::config::Training;
use crate::optim::{Optimizer, OptimizerState, Schedule};
use crate::params::{Params, moved};
use crate::pass::Pass;
use crate::task::{Batch, Task};
use dist::Collective;
use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use tensor::kernel::{self, Late};
use tensor::updates::decision::{Decided, Deciding, Decision, LossScale, Rule};
use tensor::updates::ema;
use tensor::{Device, Dtype, Tape, Tensor, Var};
use unix::{Error, Result};

/// A loss on its tape, and the parameters there.
pub struct Forward {
    tape: Tape,
    loss: Var,
    /// Sum of the weights of the batch, and the terms of the loss.
    numbers: Vec<Tensor>,
    variables: Vec<Var>,
}

/// What is trained.
pub struct Learner {
    /// The parameters.
    pub params: Params,
    /// Their moving average, where there is one.
    pub average: Option<Params>,
    /// The optimizer's memory.
    pub memory: OptimizerState,
    optimizer: Optimizer,
    schedule: Schedule,
    rule: Rule,
    /// Which rank remembers what of each parameter, where they share that.
    owners: Option<Vec<usize>>,
    /// On the last update.
    decided: Decided,
    /// Names of the terms of the loss, once a batch has gone through.
    terms: OnceCell<Vec<&'static str>>,
}

/// Tensors with their names.
type Named = Vec<(String, Tensor)>;

/// What one update did.
#[derive(Clone, Debug)]
pub struct Step {
    /// Mean loss of its micro-batches, weighted.
    pub loss: f64,
    /// Mean of each term of the loss.
    pub terms: BTreeMap<&'static str, f64>,
    /// Global norm of the gradient, before clipping.
    pub gradient_norm: f64,
    /// Whether the parameters were changed: not when loss or gradient is not finite.
    pub applied: bool,
    /// Whether gradients beyond the range of half precision are why they were not.
    pub overflow: bool,
    /// The scale of the loss of the next update.
    pub loss_scale: LossScale,
    /// Steps of the optimizer so far.
    pub steps: u64,
    /// Learning rate.
    pub learning_rate: f64,
}

/// An update that was given to where the parameters are, and may not be done.
#[derive(Debug)]
pub struct Pending {
    decision: Deciding,
    learning_rate: f64,
    terms: Vec<&'static str>,
    /// Weight and terms of each micro-batch, where the loss has terms.
    numbers: Vec<Vec<Late>>,
}

impl Pending {
    /// Waits until it is known what the update did, and for no later one. Errors: what went wrong there.
    pub fn wait(self) -> Result<Step> {
        let Decision { loss, norm, applied, overflow, loss_scale, steps, .. } =
            self.decision.wait()?;
        let mut sums = vec![0.0; 1 + self.terms.len()];
        for micro_batch in self.numbers {
            for (sum, number) in sums.iter_mut().zip(micro_batch) {
                *sum += number.wait()?.item();
            }
        }
        let means = sums.iter().skip(1).map(|sum| sum / sums[0]);
        Ok(Step {
            loss,
            terms: self.terms.into_iter().zip(means).collect(),
            gradient_norm: norm,
            applied,
            overflow,
            loss_scale,
            steps,
            learning_rate: self.learning_rate,
        })
    }
}

/// sum += terms, tensor by tensor.
pub fn accumulate(sum: &mut [Tensor], terms: &[Tensor]) {
    tensor::updates::sum::add_all(sum.iter_mut().zip(terms));
}

/// Before the first update of a start, by a rule.
fn start(rule: &Rule, progress: &Progress, device: Device) -> Result<Decided> {
    let loss_scale = match rule.scaled {
        true => progress.loss_scale.unwrap_or(LossScale::FIRST),
        false => LossScale::NONE,
    };
    let steps = progress.steps;
    let decision = Decision { steps, loss_scale, ..Decision::default() };
    Decided::of(&decision, rule.unit).to_device(device)
}

/// The first 64 bits, in hexadecimal, of the BLAKE3 of the BLAKE3 (in hexadecimal) of each parameter, in
/// their order: the manifest of a checkpoint has those.
pub(super) fn hash_of<'a>(parameters: impl Iterator<Item = &'a str>) -> String {
    let mut hasher = blake3::Hasher::new();
    parameters.for_each(|hash| {
        hasher.update(hash.as_bytes());
    });
    hasher.finalize().to_hex()[..16].to_string()
}

impl Learner {
    /// The state before the first update. Errors: those of the device where the parameters are.
    pub fn new(
        params: Params,
        optimizer: &Optimizer,
        schedule: Schedule,
        training: &Training,
        ranks: &dyn Collective,
    ) -> Result<Self> {
        let lengths: Vec<usize> = params.tensors().map(Tensor::len).collect();
        let owners = (optimizer.shard && ranks.size() > 1).then(|| parts(&lengths, ranks.size()));
        let is_ours = |i: usize| owners.as_ref().is_none_or(|owners| owners[i] == ranks.rank());
        let scaled = numerics::dtype(training, params.device()) == Dtype::F16;
        let samples = Portions::new(training, ranks.rank(), ranks.size())?.samples;
        let rule = Rule {
            clip: training.clip.unwrap_or(f64::INFINITY),
            betas: optimizer.corrected(),
            decay: training.ema.unwrap_or(0.0),
            warmup: training.ema_warmup,
            scaled,
            unit: if scaled { 1.0 / samples.next_power_of_two() as f64 } else { 1.0 },
        };
        Ok(Self {
            decided: start(&rule, &Progress::default(), params.device())?,
            memory: OptimizerState::new(optimizer, &params, is_ours),
            owners,
            average: training.ema.map(|_| params.clone()),
            params,
            optimizer: optimizer.clone(),
            schedule,
            rule,
            terms: OnceCell::new(),
        })
    }

    /// What the loss of the next update is multiplied with before it is differentiated, f32 [1], where the
    /// parameters are.
    pub fn loss_scale(&self) -> &Tensor {
        self.decided.loss_scale()
    }

    /// The numbers of the loss of one batch, f32 [1] each: sum of the loss, sum of the weights, every term; and the
    /// gradients of the first times the loss scale. All are where they were computed.
    pub fn gradients(
        &self,
        task: &dyn Task,
        batch: &Batch,
        numerics: &Numerics,
    ) -> Result<(Vec<Tensor>, Vec<Tensor>)> {
        let mut all = vec![None; self.params.entries().len()];
        let forward = self.forward(task, batch, numerics)?;
        let loss = self.backward(forward, Vec::new(), |i, g| all[i] = Some(g))?;
        Ok((loss, all.into_iter().flatten().collect()))
    }

    /// The loss of one batch, ready to be differentiated.
    pub fn forward(&self, task: &dyn Task, batch: &Batch, numerics: &Numerics) -> Result<Forward> {
        let tape = Tape::new();
        let pass = Pass::training(&tape, &self.params)
            .computing_in(numerics.dtype)?
            .recomputing(Rc::clone(&numerics.recompute));
        let loss = task.loss(&pass, batch)?;
        let variables = pass.variables().to_vec();
        drop(pass);
        numerics.recompute.end_pass();
        let (names, terms): (Vec<_>, Vec<_>) = loss.terms.into_iter().unzip();
        if *self.terms.get_or_init(|| names.clone()) != names {
            return Err(Error::bug("a loss whose terms change from batch to batch"));
        }
        let numbers = std::iter::once(batch.weight().clone()).chain(terms).collect();
        Ok(Forward { tape, loss: loss.sum, numbers, variables })
    }

    /// The numbers of the loss; and each gradient of it, as [`Learner::gradients`] has it, as soon as it is known, with the
    /// place of its parameter. It is in the tensor of `rooms` at that place where it could be made there.
    pub fn backward(
        &self,
        forward: Forward,
        rooms: Vec<Tensor>,
        mut whole: impl FnMut(usize, Tensor),
    ) -> Result<Vec<Tensor>> {
        let Forward { tape, loss, numbers, variables } = forward;
        let zeros = |v: &Var| Tensor::zeros_on(self.params.device(), v.shape(), Dtype::F32);
        tape.backward_each(&loss, self.loss_scale(), &variables, rooms, |i, gradient| {
            whole(i, gradient.unwrap_or_else(|| zeros(&variables[i])));
        })?;
        Ok(std::iter::once(loss.value().clone()).chain(numbers).collect())
    }

    /// Gives one update (counted from 0) to where the parameters are, with the numbers of the loss of each of its
    /// micro-batches and a sum of gradients that is to be divided by the sum of their weights and by the loss
    /// scale. On a device nothing is waited for, unless ranks send each other their parts of the parameters.
    pub fn update(
        &mut self,
        update: u64,
        losses: &[Vec<Tensor>],
        gradients: &[Tensor],
        ranks: &dyn Collective,
    ) -> Result<Pending> {
        let factor = self.schedule.factor(update);
        let learning_rate = self.optimizer.learning_rate * factor;
        let [sums, weights] =
            [0, 1].map(|i| losses.iter().map(|l| l[i].clone()).collect::<Vec<Tensor>>());
        self.rule.decide_there(&mut self.decided, &sums, &weights, gradients, learning_rate);
        let decided = &self.decided;
        self.memory.step(&self.optimizer, factor, decided, &mut self.params, gradients);
        if let Some(owners) = &self.owners {
            let owned = owners.iter().copied().zip(self.params.tensors_mut());
            ranks.share(&mut owned.collect::<Vec<_>>())?;
        }
        if unix::fail::flips("update.parameters") {
            let first = self.params.tensors_mut().next().filter(|t| t.device() == Device::Cpu);
            let element = first.and_then(|tensor| tensor.write::<f32>().first_mut());
            element.into_iter().for_each(|x| *x = f32::from_bits(x.to_bits() ^ 1));
        }
        if let Some(average) = &mut self.average {
            ema::apply_all(decided, self.params.tensors().zip(average.tensors_mut()));
        }
        let terms = self.terms.get().cloned().unwrap_or_default();
        let later = |loss: &Vec<Tensor>| loss[1..].iter().map(kernel::later).collect();
        let numbers =
            if terms.is_empty() { Vec::new() } else { losses.iter().map(later).collect() };
        Ok(Pending { decision: decided.later(), learning_rate, terms, numbers })
    }

    /// The parameters that are judged: the average where there is one.
    pub fn judged(&self) -> &Params {
        self.average.as_ref().unwrap_or(&self.params)
    }

    /// [`hash_of`] the parameters: ranks, and runs of the same configuration, have the same.
    pub fn hash(&self) -> Result<String> {
        let of = |tensor: &Tensor| Ok(blake3::hash(tensor.to_host()?.as_bytes()).to_hex());
        let hashes = self.params.tensors().map(of).collect::<Result<Vec<_>>>()?;
        Ok(hash_of(hashes.iter().map(|hash| hash.as_str())))
    }

    /// Named tensors of a checkpoint, by file, on the host of the first rank; none on the others.
    pub fn files(&self, ranks: &dyn Collective) -> Result<Option<Files>> {
        let memory = match &self.owners {
            None if ranks.rank() > 0 => return Ok(None),
            None => moved(&self.memory.entries(&self.optimizer, &self.params), Device::Cpu)?,
            Some(owners) => self.collected(owners, ranks)?,
        };
        if ranks.rank() > 0 {
            return Ok(None);
        }
        let mut files = vec![("model".to_string(), moved(self.params.entries(), Device::Cpu)?)];
        if let Some(average) = &self.average {
            files.push(("ema".into(), moved(average.entries(), Device::Cpu)?));
        }
        let shards = if self.owners.is_some() { ranks.size() } else { 1 };
        files.extend(split(memory, shards));
        Ok(Some(files))
    }

    /// What all ranks remember, on the first; parameter by parameter, for the memory of the others.
    fn collected(&self, owners: &[usize], ranks: &dyn Collective) -> Result<Named> {
        let mut all = Vec::new();
        for (i, owner) in owners.iter().enumerate() {
            let mut entries =
                moved(&self.memory.entry(&self.optimizer, &self.params, i), Device::Cpu)?;
            let mut owned: Vec<_> = entries.iter_mut().map(|(_, t)| (*owner, t)).collect();
            ranks.share(&mut owned)?;
            if ranks.rank() == 0 {
                all.extend(entries);
            }
        }
        Ok(all)
    }

    /// Takes over a checkpoint, of any number of ranks, where the run stood so.
    pub fn assign(&mut self, progress: &Progress, found: &Loaded) -> Result<()> {
        let lacks = |what: &str| Error::data(format!("the checkpoint has no {what}.safetensors"));
        let need = |name: &str| found.tensors(name).ok_or_else(|| lacks(name));
        self.params.assign(&need("model")?)?;
        let memory = found.optimizer().ok_or_else(|| lacks("optim-0-of-1"))?;
        self.memory.assign(&self.optimizer, &self.params, &memory)?;
        self.decided = start(&self.rule, progress, self.params.device())?;
        if let Some(average) = &mut self.average {
            average.assign(&need("ema")?)?;
        }
        Ok(())
    }
}
