//! The regression model: maps a given field (a coefficient, a source) to the solution.
//!
//! Patches of the input are the tokens of the backbone; each of its output tokens is the patch of the solution at the
//! same place. There is no bottleneck: tokens are as wide as patches.

use crate::pde::models::backbone::{Backbone, BackboneConfig, BackboneShape};
use crate::pde::models::codec::PaddingMode;
use crate::pde::models::{Patches, number};
use learn::forward::Forward;
use learn::nn::{Condition, Linear};
use learn::params::Builder;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tensor::Var;
use tensor::ops::activation::Activation;
use unix::Result;

/// Architecture of the regression model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RegressionModel {
    /// Patch size in grid points along each axis. Each patch becomes one token.
    #[schemars(range(min = 1, max = 65536))]
    pub patch: usize,
    /// The backbone that processes the tokens.
    pub backbone: BackboneConfig,
    /// Width of the conditioning vector, which encodes the parameter of the equation.
    #[serde(default = "number::<32>")]
    #[schemars(range(min = 1, max = 65536))]
    pub condition_width: usize,
    /// Padding of the convolutions: circular for a periodic domain, else zeros.
    #[serde(default = "zero")]
    pub padding_mode: PaddingMode,
}

fn zero() -> PaddingMode {
    PaddingMode::Zeros
}

/// The layers of the regression model.
#[derive(Clone, Debug)]
pub struct Regression {
    embed: [Linear; 2],
    backbone: Backbone,
    /// Numbers per patch of the input, and of the solution.
    patch_len: [usize; 2],
}

impl Regression {
    /// For inputs and solutions with these patches, on the same token grid, and a condition of `features` numbers.
    pub fn new(
        b: &mut Builder,
        config: &RegressionModel,
        [input, output]: [&Patches; 2],
        features: usize,
    ) -> Self {
        let width = config.condition_width;
        let shape = BackboneShape {
            dim: input.patch_len(),
            output: output.patch_len(),
            grid: input.tokens(),
            padding: config.padding_mode.into(),
            condition: Condition::Adaptive(width),
        };
        Self {
            embed: [
                Linear::new(b, "condition.0", features, width).then(Activation::Silu),
                Linear::new(b, "condition.1", width, width).then(Activation::Silu),
            ],
            backbone: b.scope("backbone", |b| Backbone::new(b, &config.backbone, &shape)),
            patch_len: [input.patch_len(), output.patch_len()],
        }
    }

    /// x [B, tokens·patch], features [B, F] -> the solution [B, tokens·patch], both patch by patch.
    pub fn forward(&self, forward: &Forward, x: &Var, features: &Var) -> Result<Var> {
        let (batch, tokens) = (x.shape()[0], x.shape()[1] / self.patch_len[0]);
        let x = forward.to_compute_dtype(x)?.reshape(&[batch, tokens, self.patch_len[0]]);
        let condition = self.embed[0].forward(forward, &forward.to_compute_dtype(features)?)?;
        let condition = self.embed[1].forward(forward, &condition)?;
        let u = forward.to_param_dtype(&self.backbone.forward(forward, &x, Some(&condition))?)?;
        Ok(u.reshape(&[batch, tokens * self.patch_len[1]]))
    }
}
