use super::backbone::BackboneShape;
use learn::forward::Forward;
use learn::nn::{Condition, Linear};
use learn::params::Builder;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tensor::Var;
use tensor::ops::activation::Activation;
use tensor::ops::binary::Binary;
use unix::Result;

/// An MLP that is applied to each token by itself: tokens do not exchange information.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Mlp {
    /// Width of the hidden layers.
    #[schemars(range(min = 1, max = 65536))]
    pub hidden: usize,
    /// Number of hidden layers.
    #[serde(default = "two")]
    #[schemars(range(min = 1, max = 1024))]
    pub depth: usize,
}

fn two() -> usize {
    2
}

/// The layers of an [`Mlp`].
#[derive(Clone, Debug)]
pub(crate) struct MlpLayers {
    input: Linear,
    /// Maps the condition to a vector that is added to the first hidden layer.
    condition: Option<Linear>,
    hidden: Vec<Linear>,
    output: Linear,
}

impl MlpLayers {
    pub(super) fn new(b: &mut Builder, c: &Mlp, shape: &BackboneShape) -> Self {
        let condition = match shape.condition {
            Condition::Fixed => None,
            Condition::Adaptive(width) => Some(Linear::new(b, "condition", width, c.hidden)),
        };
        // The condition is added before the activation.
        let first = if condition.is_some() { Activation::Identity } else { Activation::Silu };
        let layer = |b: &mut Builder, i: usize, from: usize, activation: Activation| {
            Linear::new(b, &format!("layers.{i}"), from, c.hidden).then(activation)
        };
        Self {
            condition,
            input: layer(b, 0, shape.dim, first),
            hidden: (1..c.depth).map(|i| layer(b, i, c.hidden, Activation::Silu)).collect(),
            output: Linear::zeroed(b, "output", c.hidden, shape.output),
        }
    }

    pub(super) fn forward(
        &self,
        forward: &Forward,
        x: &Var,
        condition: Option<&Var>,
    ) -> Result<Var> {
        let mut x = self.input.forward(forward, x)?;
        if let (Some(linear), Some(condition)) = (&self.condition, condition) {
            let vector = linear.forward(forward, condition)?;
            let vector = vector.reshape(&[x.shape()[0], 1, x.shape()[2]]);
            x = forward.apply(Activation::Silu, &[&forward.apply(Binary::Add, &[&x, &vector])?])?;
        }
        for layer in self.hidden.iter().chain([&self.output]) {
            x = layer.forward(forward, &x)?;
        }
        Ok(x)
    }
}
