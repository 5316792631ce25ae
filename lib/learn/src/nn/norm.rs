use super::Linear;
use crate::forward::Forward;
use crate::params::{Builder, Init, ParamId};
use tensor::Var;
use tensor::ops::activation::Activation;
use tensor::ops::group_norm;
use tensor::ops::normalization::{NormKind, Normalization};
use unix::Result;

/// PyTorch's default ε of layer and group normalisation.
const EPSILON: f64 = 1e-5;

/// Layer normalisation with weight and bias.
#[derive(Clone, Debug)]
pub struct LayerNorm {
    weight: ParamId,
    bias: ParamId,
    epsilon: f64,
}

impl LayerNorm {
    /// Normalises the last axis, which has `width` elements.
    pub fn new(b: &mut Builder, name: &str, width: usize, epsilon: f64) -> Self {
        b.scope(name, |b| Self {
            weight: b.param("weight", &[width], Init::Constant(1.0)),
            bias: b.param("bias", &[width], Init::Constant(0.0)),
            epsilon,
        })
    }

    /// Maps x [.., width] to the same shape.
    pub fn forward(&self, forward: &Forward, x: &Var) -> Result<Var> {
        let op = Normalization { kind: NormKind::Layer, epsilon: self.epsilon };
        forward.apply(op, &[x, forward.get(self.weight), forward.get(self.bias)])
    }
}

/// RMS normalisation (Zhang & Sennrich 2019) with weight.
#[derive(Clone, Debug)]
pub struct RmsNorm {
    weight: ParamId,
    epsilon: f64,
}

impl RmsNorm {
    /// Normalises the last axis, which has `width` elements. The weight is initially 1.
    pub fn new(b: &mut Builder, name: &str, width: usize, epsilon: f64) -> Self {
        let weight = b.scope(name, |b| b.param("weight", &[width], Init::Constant(1.0)));
        Self { weight, epsilon }
    }

    /// The weight [width] and ε, for ops that normalise by themselves.
    pub fn parts<'a>(&self, forward: &'a Forward) -> (&'a Var, f64) {
        (forward.get(self.weight), self.epsilon)
    }

    /// Maps x [.., width] to the same shape.
    pub fn forward(&self, forward: &Forward, x: &Var) -> Result<Var> {
        let op = Normalization { kind: NormKind::Rms, epsilon: self.epsilon };
        forward.apply(op, &[x, forward.get(self.weight)])
    }
}

/// Conditioning of a normalisation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// No conditioning: the normalisation has its own learned weight and bias.
    Fixed,
    /// A condition vector of this width per sample, mapped to shift and scale by a linear layer that is initialised to
    /// zero, so that the normalisation is initially unconditional.
    Adaptive(usize),
}

/// Layer normalisation, unconditional or adaptive (conditioned).
#[derive(Clone, Debug)]
pub enum Norm {
    /// Unconditional.
    Fixed(LayerNorm),
    /// Linear layer from the condition to shift and scale.
    Adaptive(Linear),
}

impl Norm {
    /// Normalises the last axis, which has `width` elements.
    pub fn new(b: &mut Builder, name: &str, width: usize, condition: Condition) -> Self {
        match condition {
            Condition::Fixed => Norm::Fixed(LayerNorm::new(b, name, width, EPSILON)),
            Condition::Adaptive(c) => Norm::Adaptive(Linear::zeroed(b, name, c, 2 * width)),
        }
    }

    /// Maps x [B, .., width] to the same shape; adaptive normalisation requires `condition` [B, c].
    pub fn forward(&self, forward: &Forward, x: &Var, condition: Option<&Var>) -> Result<Var> {
        match (self, condition) {
            (Norm::Fixed(norm), _) => norm.forward(forward, x),
            (Norm::Adaptive(linear), Some(condition)) => {
                let modulation = linear.forward(forward, condition)?;
                let kind = NormKind::Adaptive { shift: 0, scale: 1 };
                forward.apply(Normalization { kind, epsilon: EPSILON }, &[x, &modulation])
            }
            (Norm::Adaptive(_), None) => {
                Err(unix::Error::bug("an adaptive normalisation was given no condition"))
            }
        }
    }
}

/// Group normalisation of a channels-last tensor, with an optional activation.
#[derive(Clone, Debug)]
pub struct GroupNorm {
    /// Weight and bias.
    affine: Option<[ParamId; 2]>,
    op: group_norm::GroupNorm,
}

impl GroupNorm {
    /// Normalises over `groups` groups of channels, with weight and bias.
    pub fn new(b: &mut Builder, name: &str, channels: usize, groups: usize) -> Self {
        let affine = b.scope(name, |b| {
            [("weight", 1.0), ("bias", 0.0)]
                .map(|(name, value)| b.param(name, &[channels], Init::Constant(value)))
        });
        Self { affine: Some(affine), op: Self::op(groups) }
    }

    /// Instance normalisation: normalises each of the `channels` channels separately, without weight and bias
    /// (PyTorch's default).
    pub fn instance(channels: usize) -> Self {
        Self { affine: None, op: Self::op(channels) }
    }

    fn op(groups: usize) -> group_norm::GroupNorm {
        let activation = Activation::Identity;
        group_norm::GroupNorm { groups, affine: false, epsilon: EPSILON, activation }
    }

    /// Applies an activation after the normalisation.
    pub fn then(mut self, activation: Activation) -> Self {
        self.op.activation = activation;
        self
    }

    /// Maps x [B, .., channels] to the same shape.
    pub fn forward(&self, forward: &Forward, x: &Var) -> Result<Var> {
        match self.affine {
            None => forward.apply(self.op, &[x]),
            Some([weight, bias]) => {
                let op = group_norm::GroupNorm { affine: true, ..self.op };
                forward.apply(op, &[x, forward.get(weight), forward.get(bias)])
            }
        }
    }
}
