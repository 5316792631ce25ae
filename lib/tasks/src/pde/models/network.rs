//! A backbone and its conditioning, shared by operators, denoisers and critics.

use crate::common::models::backbone::{Backbone, BackboneConfig, BackboneShape};
use crate::common::models::number;
use learn::forward::Forward;
use learn::nn::{Condition, Linear};
use learn::params::Builder;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tensor::Var;
use tensor::ops::activation::Activation;
use tensor::ops::binary::Binary;
use tensor::ops::concat::Concat;
use tensor::ops::depthwise_conv::Padding;
use unix::Result;

/// How the model is conditioned on Δt and the parameter of the equation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ConditionPath {
    /// Adaptive layer norm: shift and scale in every normalisation, initially without effect.
    #[default]
    Adaptive,
    /// A vector that is added to every input token.
    Additive,
    /// The numbers themselves, as further features of every input token.
    Concatenated,
}

/// Architecture of a denoiser or a critic.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NetworkModel {
    /// The backbone that processes the latent tokens.
    pub backbone: BackboneConfig,
    /// How the model is conditioned: on Δt and the parameter of the equation, and of a denoiser also on the scale of the
    /// residual and the noise level.
    #[serde(default)]
    pub condition: ConditionPath,
    /// Width of the conditioning vector of `condition: adaptive`; ignored otherwise.
    #[serde(default = "number::<64>")]
    #[schemars(range(min = 1, max = 65536))]
    pub condition_width: usize,
}

impl NetworkModel {
    /// Returns the violations in the values; keys are relative to `model`.
    pub fn violations(&self) -> Vec<(String, String)> {
        self.backbone.violations()
    }
}

/// The shapes of a network.
#[derive(Clone, Copy, Debug)]
pub struct NetworkShape {
    /// Features per input token.
    pub input: usize,
    /// Features per output token.
    pub output: usize,
    /// Depth, rows and columns of the token grid; 1 for missing axes.
    pub grid: [usize; 3],
    /// Padding at the border of the domain.
    pub padding: Padding,
    /// Number of features in the condition.
    pub condition: usize,
}

/// The path by which the condition enters the backbone.
#[derive(Clone, Debug)]
enum Path {
    Adaptive([Linear; 2]),
    Additive([Linear; 3]),
    Concatenated,
}

/// A backbone and the layers that feed the condition into it.
#[derive(Clone, Debug)]
pub struct Network {
    path: Path,
    backbone: Backbone,
}

impl Network {
    /// Builds the network. `width` is the width of the conditioning vector; only [`ConditionPath::Adaptive`] uses it.
    pub fn new(
        b: &mut Builder,
        backbone: &BackboneConfig,
        (path, width): (ConditionPath, usize),
        shape: &NetworkShape,
    ) -> Self {
        let (condition, input) = (shape.condition, shape.input);
        let embed = |b: &mut Builder, width: usize, last: Activation| {
            [
                Linear::new(b, "condition.0", condition, width).then(Activation::Silu),
                Linear::new(b, "condition.1", width, width).then(last),
            ]
        };
        let (path, dim, condition) = match path {
            ConditionPath::Adaptive => {
                let layers = embed(b, width, Activation::Silu);
                (Path::Adaptive(layers), input, Condition::Adaptive(width))
            }
            ConditionPath::Additive => {
                let [first, second] = embed(b, input, Activation::Identity);
                let third = Linear::new(b, "condition.2", input, input);
                (Path::Additive([first, second, third]), input, Condition::Fixed)
            }
            ConditionPath::Concatenated => {
                (Path::Concatenated, input + condition, Condition::Fixed)
            }
        };
        let &NetworkShape { output, grid, padding, .. } = shape;
        let shape = BackboneShape { dim, output, grid, padding, condition };
        let backbone = b.scope("backbone", |b| Backbone::new(b, backbone, &shape));
        Self { path, backbone }
    }

    /// Maps x [B, T, input] and features [B, F], both in the compute dtype, to [B, T, output].
    pub fn forward(&self, forward: &Forward, x: &Var, features: &Var) -> Result<Var> {
        let [batch, tokens] = [0, 1].map(|axis| x.shape()[axis]);
        let through = |layers: &[Linear]| {
            layers.iter().try_fold(features.clone(), |c, layer| layer.forward(forward, &c))
        };
        let (x, condition) = match &self.path {
            Path::Adaptive(layers) => (x.clone(), Some(through(layers)?)),
            Path::Additive(layers) => {
                let vector = through(layers)?.reshape(&[batch, 1, x.shape()[2]]);
                (forward.apply(Binary::Add, &[x, &vector])?, None)
            }
            Path::Concatenated => {
                let zeros = forward.to_compute_dtype(&forward.full(&[tokens, 1], 0.0)?)?;
                let features = features.reshape(&[batch, 1, features.shape()[1]]);
                let features = forward.apply(Binary::Add, &[&features, &zeros])?;
                (forward.apply(Concat { axis: 2 }, &[x, &features])?, None)
            }
        };
        self.backbone.forward(forward, &x, condition.as_ref())
    }
}
