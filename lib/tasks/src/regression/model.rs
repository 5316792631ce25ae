//! The model of a steady problem: from a field that is given (a coefficient, a source) to the solution.
//!
//! Patches of the input are the tokens of the grid on which the core works; each of its outputs is the
//! patch of the solution at the same place. There is no bottleneck: tokens are as wide as patches.

use crate::pde::latents;
use crate::pde::models::Patches;
use crate::pde::models::codec::Border;
use crate::pde::models::core::{Core, CoreShape, Layers};
use learn::forward::Forward;
use learn::nn::{Condition, Linear};
use learn::params::Builder;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tensor::Var;
use tensor::ops::activation::Activation;
use unix::Result;

/// Sizes of a model of a steady problem.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RegressionModel {
    /// Grid points of a patch along each axis; each patch becomes a token.
    #[schemars(range(min = 1, max = 65536))]
    pub patch: usize,
    /// The network between the tokens.
    pub core: Core,
    /// Features of the condition vector, through which the parameter of the equation enters.
    #[serde(default = "condition_width")]
    #[schemars(range(min = 1, max = 65536))]
    pub condition_width: usize,
    /// What lies beyond the border of the domain.
    #[serde(default = "zero")]
    pub border: Border,
}

fn condition_width() -> usize {
    32
}

fn zero() -> Border {
    Border::Zero
}

/// The layers.
#[derive(Clone, Debug)]
pub struct Regression {
    embed: [Linear; 2],
    core: Layers,
    /// Numbers of a patch of the input, and of one of the solution.
    patch_len: [usize; 2],
}

impl Regression {
    /// For inputs and solutions in these patches, on the same grid of tokens.
    pub fn new(b: &mut Builder, config: &RegressionModel, [input, output]: [&Patches; 2]) -> Self {
        let width = config.condition_width;
        let shape = CoreShape {
            dim: input.patch_len(),
            output: output.patch_len(),
            grid: input.tokens(),
            padding: config.border.into(),
            condition: Condition::Adaptive(width),
        };
        Self {
            embed: [
                Linear::new(b, "condition.0", latents::Condition::FEATURES, width)
                    .then(Activation::Silu),
                Linear::new(b, "condition.1", width, width).then(Activation::Silu),
            ],
            core: b.scope("core", |b| Layers::new(b, &config.core, &shape)),
            patch_len: [input.patch_len(), output.patch_len()],
        }
    }

    /// x [B, tokens·patch] and features [B, F] -> the solution [B, tokens·patch], all patch by patch.
    pub fn forward(&self, forward: &Forward, x: &Var, features: &Var) -> Result<Var> {
        let (batch, tokens) = (x.shape()[0], x.shape()[1] / self.patch_len[0]);
        let x = forward.to_compute_dtype(x)?.reshape(&[batch, tokens, self.patch_len[0]]);
        let condition = self.embed[0].forward(forward, &forward.to_compute_dtype(features)?)?;
        let condition = self.embed[1].forward(forward, &condition)?;
        let u = forward.to_param_dtype(&self.core.forward(forward, &x, Some(&condition))?)?;
        Ok(u.reshape(&[batch, tokens * self.patch_len[1]]))
    }
}
