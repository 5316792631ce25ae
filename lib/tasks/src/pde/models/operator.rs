//! The operator: maps the latent tokens of one frame to those of the next, z' = z + s ∘ backbone(z).

pub use super::backbone::{Attention, BackboneConfig};
use super::backbone::{Backbone, BackboneShape};
use super::number;
use learn::forward::Forward;
use learn::nn::{Condition, Linear, Norm};
use learn::params::{Builder, Init, ParamId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tensor::Var;
use tensor::ops::activation::Activation;
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
    /// Width of the conditioning vector; ignored with `condition: additive`, which uses the latent width.
    #[serde(default = "number::<64>")]
    #[schemars(range(min = 1, max = 65536))]
    pub condition_width: usize,
    /// How the output of the backbone is added to the state.
    #[serde(default)]
    pub output: Output,
}

/// How the model is conditioned on Δt and the parameter of the equation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ConditionPath {
    /// Adaptive layer norm: shift and scale in every normalisation, initially without effect.
    #[default]
    Adaptive,
    /// A vector that is added to every input token.
    Additive,
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
    /// Violations in the values; keys are relative to `model`.
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
    embed: [Linear; 2],
    /// From the condition to the tokens; only with [`ConditionPath::Additive`].
    added: Option<Linear>,
    backbone: Backbone,
    join: Join,
}

impl Operator {
    /// For latent tokens with `dim` features on `grid`, and a condition of `features` numbers.
    pub fn new(
        b: &mut Builder,
        config: &OperatorModel,
        dim: usize,
        grid: [usize; 2],
        padding: Padding,
        features: usize,
    ) -> Self {
        let added = config.condition == ConditionPath::Additive;
        let width = if added { dim } else { config.condition_width };
        let condition = if added { Condition::Fixed } else { Condition::Adaptive(width) };
        let shape = BackboneShape { dim, output: dim, grid, padding, condition };
        let last = if added { Activation::Identity } else { Activation::Silu };
        Self {
            embed: [
                Linear::new(b, "condition.0", features, width).then(Activation::Silu),
                Linear::new(b, "condition.1", width, width).then(last),
            ],
            added: added.then(|| Linear::new(b, "condition.2", width, dim)),
            backbone: b.scope("backbone", |b| Backbone::new(b, &config.backbone, &shape)),
            join: match config.output {
                Output::Scale => Join::Scale(b.param("scale", &[dim], Init::Constant(1.0))),
                Output::LayerNorm => {
                    Join::LayerNorm(Norm::new(b, "output_norm", dim, Condition::Fixed))
                }
            },
        }
    }

    /// z [B, T, D], features [B, F] -> the next state [B, T, D].
    pub fn forward(&self, forward: &Forward, z: &Var, features: &Var) -> Result<Var> {
        let (state, features) = (z, forward.to_compute_dtype(features)?);
        let z = &forward.to_compute_dtype(state)?;
        let condition = self.embed[0].forward(forward, &features)?;
        let condition = self.embed[1].forward(forward, &condition)?;
        let (input, condition) = match &self.added {
            None => (z.clone(), Some(&condition)),
            Some(linear) => {
                let vector = linear.forward(forward, &condition)?;
                let vector = vector.reshape(&[z.shape()[0], 1, z.shape()[2]]);
                (forward.apply(Binary::Add, &[z, &vector])?, None)
            }
        };
        let change = self.backbone.forward(forward, &input, condition)?;
        match &self.join {
            // The state stays in f32, also in mixed precision.
            Join::Scale(scale) => {
                let change = forward.to_param_dtype(&change)?;
                forward.apply(Residual, &[state, &change, forward.get_stored(*scale)])
            }
            Join::LayerNorm(norm) => {
                let change = forward.to_param_dtype(&norm.forward(forward, &change, None)?)?;
                forward.apply(Binary::Add, &[state, &change])
            }
        }
    }
}
