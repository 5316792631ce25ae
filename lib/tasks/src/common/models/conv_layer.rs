//! Convolution with normalisation, activation and dropout, the building block of convolutional backbones.

use super::backbone::BackboneShape;
use learn::forward::Forward;
use learn::nn::{Condition, Conv, GroupNorm, Linear};
use learn::params::Builder;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tensor::Var;
use tensor::ops::activation::Activation;
use tensor::ops::binary::Binary;
use tensor::ops::depthwise_conv::Padding;
use unix::Result;

/// Normalisation after a convolution.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ConvNorm {
    /// Instance normalisation: of each feature of a sample over the grid, without weight and bias.
    #[default]
    Instance,
    /// Group normalisation: of groups of features of a sample over the grid, with weight and bias.
    Group,
    /// None.
    None,
}

/// Activation after a convolution.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ConvActivation {
    /// max(x, 0).
    #[default]
    Relu,
    /// max(x, x/100).
    LeakyRelu,
    /// x·Φ(x).
    Gelu,
    /// x·σ(x).
    Silu,
    /// Hyperbolic tangent.
    Tanh,
    /// 1/(1 + exp(-x)).
    Sigmoid,
    /// None.
    None,
}

impl From<ConvActivation> for Activation {
    fn from(activation: ConvActivation) -> Self {
        match activation {
            ConvActivation::Relu => Activation::Relu,
            ConvActivation::LeakyRelu => Activation::LeakyRelu,
            ConvActivation::Gelu => Activation::Gelu,
            ConvActivation::Silu => Activation::Silu,
            ConvActivation::Tanh => Activation::Tanh,
            ConvActivation::Sigmoid => Activation::Sigmoid,
            ConvActivation::None => Activation::Identity,
        }
    }
}

impl ConvNorm {
    /// Returns the violation if group normalisation requires `groups` that do not divide `width`, named `what`.
    pub(super) fn violation(
        self,
        groups: usize,
        width: usize,
        what: &str,
    ) -> Option<(&'static str, String)> {
        let divides = groups > 0 && width.is_multiple_of(groups);
        (self == Self::Group && !divides)
            .then(|| ("groups", format!("{groups} groups do not divide {what} = {width} features")))
    }
}

/// Settings shared by the layers of a model.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConvStyle {
    /// Filter size along each axis, in tokens.
    pub filter: [usize; 3],
    pub padding: Padding,
    pub norm: ConvNorm,
    /// Number of groups for [`ConvNorm::Group`].
    pub groups: usize,
    pub activation: Activation,
    pub dropout: f64,
}

/// Convolution, normalisation, activation, dropout.
#[derive(Clone, Debug)]
pub(super) struct ConvLayer {
    conv: Conv,
    norm: Option<GroupNorm>,
    activation: Activation,
    dropout: f64,
}

impl ConvLayer {
    /// Builds layer `i` of the current scope, with `from` input features and `to` output features.
    pub fn new(b: &mut Builder, i: usize, [from, to]: [usize; 2], style: &ConvStyle) -> Self {
        let conv = Conv::same(b, &format!("conv.{i}"), [from, to], style.filter, style.padding);
        let norm = match style.norm {
            ConvNorm::None => None,
            ConvNorm::Instance => Some(GroupNorm::instance(to)),
            ConvNorm::Group => Some(GroupNorm::new(b, &format!("norm.{i}"), to, style.groups)),
        };
        let norm = norm.map(|norm| norm.then(style.activation));
        Self { conv, norm, activation: style.activation, dropout: style.dropout }
    }

    /// Maps x [B, depth, rows, columns, from] to [B, depth, rows, columns, to].
    pub fn forward(&self, forward: &Forward, x: &Var) -> Result<Var> {
        let x = self.conv.forward(forward, x)?;
        let x = match &self.norm {
            Some(norm) => norm.forward(forward, &x)?,
            None if self.activation == Activation::Identity => x,
            None => forward.apply(self.activation, &[&x])?,
        };
        forward.dropout(&x, self.dropout)
    }
}

/// Reshapes tokens [B, T, D] to grid cells [B, depth, rows, columns, D].
pub(super) fn to_cells(tokens: &Var, [depth, rows, columns]: [usize; 3]) -> Var {
    tokens.reshape(&[tokens.shape()[0], depth, rows, columns, tokens.value().width()])
}

/// Reshapes grid cells [B, depth, rows, columns, D] to tokens [B, T, D].
pub(super) fn to_tokens(cells: &Var) -> Var {
    let (shape, width) = (cells.shape(), cells.value().width());
    cells.reshape(&[shape[0], shape[1..4].iter().product(), width])
}

/// A linear layer that maps the condition, if there is one, to a vector that is added to every cell.
#[derive(Clone, Debug)]
pub(super) struct ConditionVector(Option<Linear>);

impl ConditionVector {
    /// Builds the layer for cells with `width` features.
    pub fn new(b: &mut Builder, shape: &BackboneShape, width: usize) -> Self {
        Self(match shape.condition {
            Condition::Fixed => None,
            Condition::Adaptive(from) => Some(Linear::new(b, "condition", from, width)),
        })
    }

    /// Adds the vector of each sample to x [B, depth, rows, columns, width].
    pub fn add(&self, forward: &Forward, x: Var, condition: Option<&Var>) -> Result<Var> {
        let (Some(linear), Some(condition)) = (&self.0, condition) else { return Ok(x) };
        let vector = linear.forward(forward, condition)?;
        let vector = vector.reshape(&[x.shape()[0], 1, 1, 1, x.value().width()]);
        forward.apply(Binary::Add, &[&x, &vector])
    }
}
