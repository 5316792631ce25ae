use super::optimizer::{Method, Moment, Optimizer};
use crate::params::Params;
use tensor::updates::decision::DeviceStepControl;
use tensor::updates::{Parameter, adafactor, adamw, adamw8bit, lamb, lion, muon, sgd};
use tensor::{Dtype, Tensor};
use unix::text::matches;
use unix::{Error, Result};

/// Optimizer state of each parameter, with its learning-rate factor and weight decay.
pub struct OptimizerState {
    moments: Vec<Vec<Tensor>>,
    factors: Vec<(f64, f64)>,
}

/// Combines a parameter with the tensors that its update rule needs.
fn parameter<'a, const N: usize>(
    (((value, gradient), moments), (rate, weight_decay)): ParamUpdate<'a>,
) -> Parameter<'a, N> {
    let Ok(moments) = <&mut [Tensor; N]>::try_from(moments.as_mut_slice()) else {
        unreachable!("the state was made for this method")
    };
    let (rate, weight_decay) = (*rate, *weight_decay);
    Parameter { rate, weight_decay, gradient, value, moments: moments.each_mut() }
}

/// Value, gradient, state, and learning-rate factor with weight decay of one parameter.
type ParamUpdate<'a> = (((&'a mut Tensor, &'a Tensor), &'a mut Vec<Tensor>), &'a (f64, f64));

impl OptimizerState {
    /// Creates the state before the first step. Parameters that this rank does not own have no state and are left
    /// unchanged.
    pub fn new(optimizer: &Optimizer, params: &Params, is_ours: impl Fn(usize) -> bool) -> Self {
        let zeros = |t: &Tensor| -> Vec<Tensor> {
            let moments = optimizer.moments(t).into_iter();
            moments.map(|own| Tensor::zeros_on(t.device(), &own.shape, own.dtype)).collect()
        };
        let of = |(i, t)| if is_ours(i) { zeros(t) } else { Vec::new() };
        let entries = params.entries().iter().zip(params.depths());
        let factors = entries.map(|((name, value), depth)| optimizer.of_param(name, value, *depth));
        Self { moments: params.tensors().enumerate().map(of).collect(), factors: factors.collect() }
    }

    /// Applies one step as decided by the step policy; `gradients` are in parameter order. The learning rate of
    /// parameters whose names match one of the patterns `frozen` is 0.
    pub fn step(
        &mut self,
        optimizer: &Optimizer,
        factor: f64,
        frozen: &[&str],
        decided: &DeviceStepControl,
        params: &mut Params,
        gradients: &[Tensor],
    ) {
        let learning_rate = optimizer.learning_rate * factor;
        let names =
            params.entries().iter().map(|(name, _)| frozen.iter().any(|p| matches(p, name)));
        let factors = names.zip(&self.factors);
        let factors: Vec<(f64, f64)> = factors
            .map(|(is_frozen, (rate, decay))| (if is_frozen { 0.0 } else { *rate }, *decay))
            .collect();
        let tensors = params.tensors_mut().zip(gradients).zip(&mut self.moments).zip(&factors);
        let tensors = tensors.filter(|((_, moments), _)| !moments.is_empty());
        match optimizer.method {
            Method::AdamW { betas, epsilon } => {
                adamw::AdamW { learning_rate, betas, epsilon, coupled: false }
                    .apply_all(decided, tensors.map(parameter));
            }
            Method::AdamW8bit { betas, epsilon } => {
                let (coded, others): (Vec<_>, Vec<_>) =
                    tensors.partition(|((_, moments), _)| moments.len() == 4);
                adamw8bit::AdamW8bit { learning_rate, betas, epsilon }
                    .apply_all(decided, coded.into_iter().map(parameter));
                adamw::AdamW { learning_rate, betas, epsilon, coupled: false }
                    .apply_all(decided, others.into_iter().map(parameter));
            }
            Method::Adam { betas, epsilon } => {
                adamw::AdamW { learning_rate, betas, epsilon, coupled: true }
                    .apply_all(decided, tensors.map(parameter));
            }
            Method::Lamb { betas, epsilon } => {
                lamb::Lamb { learning_rate, betas, epsilon }
                    .apply_all(decided, tensors.map(parameter));
            }
            Method::Lion { betas } => {
                lion::Lion { learning_rate, betas }.apply_all(decided, tensors.map(parameter));
            }
            Method::Muon { momentum, betas, epsilon, .. } => {
                let (matrices, others): (Vec<_>, Vec<_>) =
                    tensors.partition(|((_, moments), _)| moments.len() == 1);
                muon::Muon { learning_rate, momentum }
                    .apply_all(decided, matrices.into_iter().map(parameter));
                adamw::AdamW { learning_rate, betas, epsilon, coupled: false }
                    .apply_all(decided, others.into_iter().map(parameter));
            }
            Method::Adafactor { beta2_decay, clip_threshold, epsilon } => {
                let rule =
                    adafactor::Adafactor { learning_rate, beta2_decay, clip_threshold, epsilon };
                let (matrices, others): (Vec<_>, Vec<_>) =
                    tensors.partition(|((_, moments), _)| moments.len() == 2);
                rule.apply_all(decided, matrices.into_iter().map(parameter::<2>));
                rule.apply_all(decided, others.into_iter().map(parameter::<1>));
            }
            Method::Sgd { momentum } => {
                sgd::Sgd { learning_rate, momentum }.apply_all(decided, tensors.map(parameter));
            }
        }
    }

    /// Returns the named state tensors for a checkpoint.
    pub fn entries(&self, optimizer: &Optimizer, params: &Params) -> Vec<(String, Tensor)> {
        let all = (0..params.entries().len()).map(|i| self.entry(optimizer, params, i));
        all.flatten().collect()
    }

    /// Returns the state tensors of the parameter with index `i`; zeros when this rank does not own it.
    pub fn entry(&self, optimizer: &Optimizer, params: &Params, i: usize) -> Vec<(String, Tensor)> {
        let (name, value) = &params.entries()[i];
        let entry = |(at, moment): (usize, Moment)| {
            let zeros = || Tensor::zeros_on(value.device(), &moment.shape, moment.dtype);
            let tensor = self.moments[i].get(at).cloned().unwrap_or_else(zeros);
            (format!("{name}.{}", moment.name), tensor)
        };
        optimizer.moments(value).into_iter().enumerate().map(entry).collect()
    }

    /// Restores the state from the output of [`OptimizerState::entries`].
    pub fn assign(
        &mut self,
        optimizer: &Optimizer,
        params: &Params,
        values: &[(String, Tensor)],
    ) -> Result<()> {
        for ((name, value), moments) in params.entries().iter().zip(&mut self.moments) {
            for (moment, tensor) in optimizer.moments(value).into_iter().zip(moments) {
                let key = format!("{name}.{}", moment.name);
                // Codes must not be read as numbers, or numbers as codes.
                let fits = |v: &Tensor| {
                    let is_coded = [v, &*tensor].map(|own| own.dtype() == Dtype::U8);
                    v.shape() == tensor.shape() && is_coded[0] == is_coded[1]
                };
                match values.iter().find(|(n, v)| *n == key && fits(v)) {
                    Some((_, value)) => {
                        *tensor = value.to_dtype(tensor.dtype()).to_device(tensor.device())?;
                    }
                    None => {
                        return Err(Error::data(format!(
                            "the checkpoint has no optimizer state {key} of shape {:?} in {}: \
                             was it saved with a different optimizer.method?",
                            tensor.shape(),
                            tensor.dtype()
                        )));
                    }
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
