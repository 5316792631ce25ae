//! The operator: maps the latent tokens of one frame to those of the next, z' = z + s ∘ network(z).

use super::network::{ConditionPath, Network, NetworkShape};
use crate::common::models::backbone::BackboneConfig;
use crate::common::models::number;
use learn::forward::Forward;
use learn::nn::{Condition, Norm};
use learn::params::{Builder, Init, ParamId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tensor::Var;
use tensor::ops::binary::Binary;
use tensor::ops::depthwise_conv::Padding;
use tensor::ops::residual::Residual;
use unix::Result;

/// Architecture of the operator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OperatorModel {
    /// The backbone that processes the latent tokens.
    pub backbone: BackboneConfig,
    /// How the model is conditioned on Δt and the parameter of the equation.
    #[serde(default)]
    pub condition: ConditionPath,
    /// Width of the conditioning vector of `condition: adaptive`; ignored otherwise.
    #[serde(default = "number::<64>")]
    #[schemars(range(min = 1, max = 65536))]
    pub condition_width: usize,
    /// How the output of the backbone is added to the state.
    #[serde(default)]
    pub output: Output,
}

/// How the output of the backbone is added to the state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Output {
    /// Multiplied by a learned scale per feature, so that the model can express no change exactly.
    #[default]
    Scale,
    /// Through a layer normalisation, as in the original; it forces every token to change.
    LayerNorm,
}

impl OperatorModel {
    /// Returns the violations in the values; keys are relative to `model`.
    pub fn violations(&self) -> Vec<(String, String)> {
        self.backbone.violations()
    }
}

#[derive(Clone, Debug)]
enum Join {
    Scale(ParamId),
    LayerNorm(Norm),
}

/// The layers of the operator.
#[derive(Clone, Debug)]
pub struct Operator {
    network: Network,
    join: Join,
}

impl Operator {
    /// Builds an operator for latent tokens with `dim` features on a grid, and a condition of `features` values.
    pub fn new(
        b: &mut Builder,
        config: &OperatorModel,
        dim: usize,
        [rows, columns]: [usize; 2],
        padding: Padding,
        features: usize,
    ) -> Self {
        let grid = [1, rows, columns];
        let shape = NetworkShape { input: dim, output: dim, grid, padding, condition: features };
        let path = (config.condition, config.condition_width);
        Self {
            network: Network::new(b, &config.backbone, path, &shape),
            join: match config.output {
                Output::Scale => Join::Scale(b.param("scale", &[dim], Init::Constant(1.0))),
                Output::LayerNorm => {
                    Join::LayerNorm(Norm::new(b, "output_norm", dim, Condition::Fixed))
                }
            },
        }
    }

    /// Maps z [B, T, D] and features [B, F] to the next state [B, T, D].
    pub fn forward(&self, forward: &Forward, z: &Var, features: &Var) -> Result<Var> {
        let [state, features] =
            [&forward.to_compute_dtype(z)?, &forward.to_compute_dtype(features)?];
        let change = self.network.forward(forward, state, features)?;
        // The state stays in f32, even with mixed precision.
        match &self.join {
            Join::Scale(scale) => {
                let change = forward.to_param_dtype(&change)?;
                forward.apply(Residual::Scaled, &[z, &change, forward.get_stored(*scale)])
            }
            Join::LayerNorm(norm) => {
                let change = forward.to_param_dtype(&norm.forward(forward, &change, None)?)?;
                forward.apply(Binary::Add, &[z, &change])
            }
        }
    }
}
