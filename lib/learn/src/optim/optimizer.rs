use crate::params::Params;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tensor::updates::{Parameter, adamw, sgd};
use tensor::{Dtype, Tensor};
use unix::{Error, Result};

/// How parameters follow gradients.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Optimizer {
    /// The rule.
    pub method: Method,
    /// Learning rate where the schedule's factor is 1.
    pub learning_rate: f64,
    /// Pull of the weights of rank 2 and more towards zero; vectors (biases, scales, norms) are left
    /// alone.
    #[serde(default)]
    pub weight_decay: f64,
}

/// The rule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Method {
    /// Adam with decoupled weight decay.
    AdamW {
        /// Decay of the averages of the gradient and its square.
        #[serde(default = "betas")]
        betas: [f64; 2],
        /// Added to the root of the second average.
        #[serde(default = "epsilon")]
        epsilon: f64,
    },
    /// Gradient descent with momentum.
    Sgd {
        /// Share of the last step that is kept.
        #[serde(default)]
        momentum: f64,
    },
}

fn betas() -> [f64; 2] {
    [0.9, 0.999]
}

fn epsilon() -> f64 {
    1e-8
}

impl Optimizer {
    /// Faults in the values, by key.
    pub fn faults(&self) -> Vec<(String, String)> {
        let mut faults = Vec::new();
        let mut check = |key: &str, good: bool, text: &str| {
            if !good {
                faults.push((key.to_string(), text.to_string()));
            }
        };
        let (rate, decay) = (self.learning_rate, self.weight_decay);
        check("learning_rate", rate > 0.0 && rate.is_finite(), "must be a positive number");
        check("weight_decay", decay >= 0.0 && decay.is_finite(), "must not be negative");
        match &self.method {
            Method::AdamW { betas, epsilon } => {
                let good = betas.iter().all(|b| (0.0..1.0).contains(b));
                check("method.betas", good, "must lie in [0, 1)");
                check("method.epsilon", *epsilon > 0.0, "must be positive");
            }
            Method::Sgd { momentum } => {
                check("method.momentum", (0.0..1.0).contains(momentum), "must lie in [0, 1)");
            }
        }
        faults
    }

    /// Names of the tensors kept for each parameter.
    fn moments(&self) -> &'static [&'static str] {
        match self.method {
            Method::AdamW { .. } => &["m", "v"],
            Method::Sgd { .. } => &["momentum"],
        }
    }
}

/// What an optimizer remembers of each parameter, and the steps it has done.
pub struct OptimizerState {
    moments: Vec<Vec<Tensor>>,
    /// Steps done; less than the updates where some were skipped.
    pub steps: u64,
}

/// A parameter with its gradient and the tensors kept for it, as a step takes them.
fn parameter<'a, const N: usize>(
    ((value, gradient), moments): ((&'a mut Tensor, &'a Tensor), &'a mut Vec<Tensor>),
) -> Parameter<'a, N> {
    let decayed = value.shape().len() >= 2;
    let Ok(moments) = moments.iter_mut().collect::<Vec<_>>().try_into() else {
        unreachable!("the state was made for this method")
    };
    Parameter { decayed, gradient, value, moments }
}

impl OptimizerState {
    /// The state before the first step.
    pub fn new(optimizer: &Optimizer, params: &Params) -> Self {
        let zeros = |t: &Tensor| {
            vec![Tensor::zeros_on(t.device(), t.shape(), Dtype::F32); optimizer.moments().len()]
        };
        Self { moments: params.tensors().map(zeros).collect(), steps: 0 }
    }

    /// One step with gradients in the order of the parameters, each times `scale`.
    pub fn step(
        &mut self,
        optimizer: &Optimizer,
        factor: f64,
        scale: f64,
        params: &mut Params,
        gradients: &[Tensor],
    ) {
        self.steps += 1;
        let learning_rate = optimizer.learning_rate * factor;
        let weight_decay = optimizer.weight_decay;
        let tensors = params.tensors_mut().zip(gradients).zip(&mut self.moments);
        match &optimizer.method {
            Method::AdamW { betas, epsilon } => {
                let (betas, epsilon, step) = (*betas, *epsilon, self.steps);
                adamw::AdamW { learning_rate, betas, epsilon, weight_decay, step }
                    .apply_all(scale, tensors.map(parameter));
            }
            Method::Sgd { momentum } => {
                sgd::Sgd { learning_rate, momentum: *momentum, weight_decay }
                    .apply_all(scale, tensors.map(parameter));
            }
        }
    }

    /// Names and values, for a checkpoint.
    pub fn entries(&self, optimizer: &Optimizer, params: &Params) -> Vec<(String, Tensor)> {
        let mut entries = Vec::new();
        for ((name, _), moments) in params.entries().iter().zip(&self.moments) {
            for (moment, tensor) in optimizer.moments().iter().zip(moments) {
                entries.push((format!("{name}.{moment}"), tensor.clone()));
            }
        }
        entries
    }

    /// Takes over what [`OptimizerState::entries`] gave.
    pub fn assign(
        &mut self,
        optimizer: &Optimizer,
        params: &Params,
        steps: u64,
        values: &[(String, Tensor)],
    ) -> Result<()> {
        self.steps = steps;
        for ((name, _), moments) in params.entries().iter().zip(&mut self.moments) {
            for (moment, tensor) in optimizer.moments().iter().zip(moments) {
                let key = format!("{name}.{moment}");
                match values.iter().find(|(n, v)| *n == key && v.shape() == tensor.shape()) {
                    Some((_, value)) => {
                        *tensor = value.to_dtype(tensor.dtype()).to_device(tensor.device())?;
                    }
                    None => {
                        return Err(Error::data(format!(
                            "the checkpoint has no optimizer state {key} of shape {:?}: \
                             was it made by another method?",
                            tensor.shape()
                        )));
                    }
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::{Builder, Init};

    /// What a file holds is input: any type of number that checkpoints may have.
    #[test]
    fn a_state_of_another_element_type_is_taken_over() {
        let method = Method::Sgd { momentum: 0.5 };
        let optimizer = Optimizer { method, learning_rate: 1.0, weight_decay: 0.0 };
        let mut builder = Builder::new(1);
        builder.param("w", &[2], Init::Constant(1.0));
        let mut params = builder.finish();
        for dtype in [Dtype::F64, Dtype::Bf16, Dtype::F16, Dtype::I32] {
            let mut state = OptimizerState::new(&optimizer, &params);
            let stored = Tensor::of(&[2.0_f32, -4.0], &[2]).to_dtype(dtype);
            state.assign(&optimizer, &params, 3, &[("w.momentum".into(), stored)]).unwrap();
            let kept = state.entries(&optimizer, &params);
            assert_eq!(kept[0].1.read::<f32>(), [2.0, -4.0], "{dtype}");
            let before = params.tensors().next().unwrap().to_f64();
            state.step(&optimizer, 1.0, 1.0, &mut params, &[Tensor::zeros(&[2], Dtype::F32)]);
            let after = params.tensors().next().unwrap().to_f64();
            assert_eq!([after[0] - before[0], after[1] - before[1]], [-1.0, 2.0], "{dtype}");
        }
    }
}
