//! What is trained: parameters, their moving average, the optimizer's memory; and one update of them.

use super::numerics::Numerics;
use crate::config::Training;
use crate::optim::{Optimizer, OptimizerState, Schedule};
use crate::params::{Params, moved};
use crate::pass::Pass;
use crate::stages::Stage;
use std::rc::Rc;
use tensor::updates::{ema, norm};
use tensor::{Device, Dtype, Tape, Tensor};
use unix::{Error, Result};

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
    decay: f64,
    clip: Option<f64>,
}

/// Tensors with their names.
type Named = Vec<(String, Tensor)>;

/// What one update did.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// Whether the parameters were changed: not when loss or gradient is not finite.
    pub applied: bool,
    /// Global norm of the gradient, before clipping.
    pub gradient_norm: f64,
    /// Learning rate.
    pub learning_rate: f64,
}

/// Loss of one batch, and its gradients times the loss scale.
pub fn gradients<S: Stage>(
    stage: &S,
    params: &Params,
    batch: &S::Batch,
    numerics: &Numerics,
) -> Result<(f64, Vec<Tensor>)> {
    let (loss, gradients) = loss_and_gradients(stage, params, batch, numerics)?;
    // A device has all its work before it is waited for.
    Ok((loss.to_host()?.item(), gradients))
}

/// [`gradients`], with the loss where it was computed.
pub fn loss_and_gradients<S: Stage>(
    stage: &S,
    params: &Params,
    batch: &S::Batch,
    numerics: &Numerics,
) -> Result<(Tensor, Vec<Tensor>)> {
    let tape = Tape::new();
    let pass = Pass::training(&tape, params)
        .computing_in(numerics.dtype)?
        .recomputing(Rc::clone(&numerics.recompute));
    let loss = stage.loss(&pass, batch)?;
    let variables = pass.variables().to_vec();
    drop(pass);
    numerics.recompute.end_pass();
    let mut found = tape.backward_scaled(&loss, numerics.loss_scale)?;
    let device = params.device();
    let gradients = variables
        .iter()
        .map(|v| found.take(v).unwrap_or_else(|| Tensor::zeros_on(device, v.shape(), Dtype::F32)))
        .collect();
    Ok((loss.value().clone(), gradients))
}

/// sum += terms, tensor by tensor.
pub fn accumulate(sum: &mut [Tensor], terms: &[Tensor]) {
    tensor::updates::sum::add_all(sum.iter_mut().zip(terms));
}

/// Global norm of the mean of gradients, given their sum and its divisor. Errors: those of their device.
pub fn mean_norm(sum: &[Tensor], divisor: f64) -> Result<f64> {
    Ok(norm::global_norm(sum)? / divisor)
}

impl Learner {
    /// The state before the first update.
    pub fn new(
        params: Params,
        optimizer: &Optimizer,
        schedule: Schedule,
        training: &Training,
    ) -> Self {
        Self {
            memory: OptimizerState::new(optimizer, &params),
            average: training.ema.map(|_| params.clone()),
            params,
            optimizer: optimizer.clone(),
            schedule,
            decay: training.ema.unwrap_or(0.0),
            clip: training.clip,
        }
    }

    /// One update (counted from 0) with a sum of gradients that is to be divided by `divisor` (their
    /// number and the loss scale), after which it has the norm `gradient_norm` ([`mean_norm`]).
    pub fn update(
        &mut self,
        update: u64,
        loss: f64,
        gradient_norm: f64,
        gradients: &[Tensor],
        divisor: f64,
    ) -> Step {
        let mean = 1.0 / divisor;
        let factor = self.schedule.factor(update);
        let learning_rate = self.optimizer.learning_rate * factor;
        let applied = loss.is_finite() && gradient_norm.is_finite();
        if applied {
            let clip = self.clip.map_or(1.0, |max| norm::clip_scale(gradient_norm, max));
            self.memory.step(&self.optimizer, factor, clip * mean, &mut self.params, gradients);
            self.follow();
        }
        Step { applied, gradient_norm, learning_rate }
    }

    /// The average follows the parameters. Its decay grows with the steps done, as
    /// (1 + n)/(10 + n), until it is the configured one: the first parameters are soon forgotten.
    fn follow(&mut self) {
        let n = self.memory.steps as f64;
        let decay = self.decay.min((1.0 + n) / (10.0 + n));
        if let Some(average) = &mut self.average {
            ema::apply_all(decay, self.params.tensors().zip(average.tensors_mut()));
        }
    }

    /// The parameters that are judged: the average where there is one.
    pub fn judged(&self) -> &Params {
        self.average.as_ref().unwrap_or(&self.params)
    }

    /// The first 64 bits of the BLAKE3 of all parameters, in hexadecimal: ranks, and runs of the
    /// same configuration, have the same.
    pub fn hash(&self) -> Result<String> {
        let mut hasher = blake3::Hasher::new();
        for tensor in self.params.tensors() {
            hasher.update(tensor.to_host()?.as_bytes());
        }
        Ok(hasher.finalize().to_hex()[..16].to_string())
    }

    /// Named tensors of a checkpoint, by file, on the host.
    pub fn files(&self) -> Result<Vec<(&'static str, Named)>> {
        let memory = self.memory.entries(&self.optimizer, &self.params);
        let mut files = vec![
            ("model", moved(self.params.entries(), Device::Cpu)?),
            ("optim-0-of-1", moved(&memory, Device::Cpu)?),
        ];
        if let Some(average) = &self.average {
            files.push(("ema", moved(average.entries(), Device::Cpu)?));
        }
        Ok(files)
    }

    /// Takes over what [`Learner::files`] gave.
    pub fn assign(
        &mut self,
        steps: u64,
        file: impl Fn(&str) -> Option<Vec<(String, Tensor)>>,
    ) -> Result<()> {
        let need = |name: &str| {
            file(name)
                .ok_or_else(|| Error::data(format!("the checkpoint has no {name}.safetensors")))
        };
        self.params.assign(&need("model")?)?;
        self.memory.assign(&self.optimizer, &self.params, steps, &need("optim-0-of-1")?)?;
        if let Some(average) = &mut self.average {
            average.assign(&need("ema")?)?;
        }
        Ok(())
    }
}
