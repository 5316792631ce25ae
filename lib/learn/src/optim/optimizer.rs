use crate::params::Params;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tensor::updates::decision::Decided;
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
    /// Divide what is remembered of each parameter among the ranks (ZeRO stage 1, Rajbhandari et al.
    /// 2020): each updates its part of the parameters and sends it to the others. Less memory, more
    /// communication, the same bits.
    #[serde(default)]
    pub shard: bool,
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
    /// Violations in the values, by key.
    pub fn violations(&self) -> Vec<(String, String)> {
        let mut violations = Vec::new();
        let mut check = |key: &str, good: bool, text: &str| {
            if !good {
                violations.push((key.to_string(), text.to_string()));
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
        violations
    }

    /// The decays of averages whose bias is corrected; 0 where there are none.
    pub fn corrected(&self) -> [f64; 2] {
        match self.method {
            Method::AdamW { betas, .. } => betas,
            Method::Sgd { .. } => [0.0, 0.0],
        }
    }

    /// Names of the tensors kept for each parameter.
    fn moments(&self) -> &'static [&'static str] {
        match self.method {
            Method::AdamW { .. } => &["m", "v"],
            Method::Sgd { .. } => &["momentum"],
        }
    }
}

/// What an optimizer remembers of each parameter.
pub struct OptimizerState {
    moments: Vec<Vec<Tensor>>,
}

/// A parameter with its gradient and the tensors kept for it, as a step takes them.
fn parameter<'a, const N: usize>(
    ((value, gradient), moments): ((&'a mut Tensor, &'a Tensor), &'a mut Vec<Tensor>),
) -> Parameter<'a, N> {
    let decayed = value.shape().len() >= 2;
    let Ok(moments) = <&mut [Tensor; N]>::try_from(moments.as_mut_slice()) else {
        unreachable!("the state was made for this method")
    };
    Parameter { decayed, gradient, value, moments: moments.each_mut() }
}

impl OptimizerState {
    /// The state before the first step, of those parameters that are ours by their place; the others are
    /// left alone.
    pub fn new(optimizer: &Optimizer, params: &Params, is_ours: impl Fn(usize) -> bool) -> Self {
        let zeros = |t: &Tensor| Tensor::zeros_on(t.device(), t.shape(), Dtype::F32);
        let of = |(i, t)| match is_ours(i) {
            true => vec![zeros(t); optimizer.moments().len()],
            false => Vec::new(),
        };
        Self { moments: params.tensors().enumerate().map(of).collect() }
    }

    /// One step as it was decided, with gradients in the order of the parameters.
    pub fn step(
        &mut self,
        optimizer: &Optimizer,
        factor: f64,
        decided: &Decided,
        params: &mut Params,
        gradients: &[Tensor],
    ) {
        let learning_rate = optimizer.learning_rate * factor;
        let weight_decay = optimizer.weight_decay;
        let tensors = params.tensors_mut().zip(gradients).zip(&mut self.moments);
        let tensors = tensors.filter(|(_, moments)| !moments.is_empty());
        match &optimizer.method {
            Method::AdamW { betas, epsilon } => {
                let (betas, epsilon) = (*betas, *epsilon);
                adamw::AdamW { learning_rate, betas, epsilon, weight_decay }
                    .apply_all(decided, tensors.map(parameter));
            }
            Method::Sgd { momentum } => {
                sgd::Sgd { learning_rate, momentum: *momentum, weight_decay }
                    .apply_all(decided, tensors.map(parameter));
            }
        }
    }

    /// Names and values, for a checkpoint.
    pub fn entries(&self, optimizer: &Optimizer, params: &Params) -> Vec<(String, Tensor)> {
        let all = (0..params.entries().len()).map(|i| self.entry(optimizer, params, i));
        all.flatten().collect()
    }

    /// Those of parameter number `i`; zeros when it is not ours.
    pub fn entry(&self, optimizer: &Optimizer, params: &Params, i: usize) -> Vec<(String, Tensor)> {
        let (name, value) = &params.entries()[i];
        let zeros = || Tensor::zeros_on(value.device(), value.shape(), Dtype::F32);
        let tensor = |at: usize| self.moments[i].get(at).cloned().unwrap_or_else(zeros);
        let entry = |(at, moment): (usize, &&str)| (format!("{name}.{moment}"), tensor(at));
        optimizer.moments().iter().enumerate().map(entry).collect()
    }

    /// Takes over what [`OptimizerState::entries`] gave.
    pub fn assign(
        &mut self,
        optimizer: &Optimizer,
        params: &Params,
        values: &[(String, Tensor)],
    ) -> Result<()> {
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
    use tensor::updates::decision::Decision;

    /// What a file holds is input: any type of number that checkpoints may have.
    #[test]
    fn a_state_of_another_element_type_is_taken_over() {
        let method = Method::Sgd { momentum: 0.5 };
        let optimizer = Optimizer { method, learning_rate: 1.0, weight_decay: 0.0, shard: false };
        let mut builder = Builder::new(1);
        builder.param("w", &[2], Init::Constant(1.0));
        let mut params = builder.finish().trained;
        for dtype in [Dtype::F64, Dtype::Bf16, Dtype::F16, Dtype::I32] {
            let mut state = OptimizerState::new(&optimizer, &params, |_| true);
            let stored = Tensor::of(&[2.0_f32, -4.0], &[2]).to_dtype(dtype);
            state.assign(&optimizer, &params, &[("w.momentum".into(), stored)]).unwrap();
            let kept = state.entries(&optimizer, &params);
            assert_eq!(kept[0].1.read::<f32>(), [2.0, -4.0], "{dtype}");
            let before = params.tensors().next().unwrap().to_f64();
            let decided = Decided::of(&Decision { applied: true, ..Decision::default() }, 1.0);
            state.step(&optimizer, 1.0, &decided, &mut params, &[Tensor::zeros(&[2], Dtype::F32)]);
            let after = params.tensors().next().unwrap().to_f64();
            assert_eq!([after[0] - before[0], after[1] - before[1]], [-1.0, 2.0], "{dtype}");
        }
    }
}
