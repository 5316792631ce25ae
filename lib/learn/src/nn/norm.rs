use super::Linear;
use crate::forward::Forward;
use crate::params::{Builder, Init, ParamId};
use tensor::Var;
use tensor::ops::normalization::{Kind, Normalization};
use unix::Result;

/// PyTorch's default ε of layer normalisation.
const EPSILON: f64 = 1e-5;

/// What a normalisation depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// Nothing: weight and bias of its own.
    Fixed,
    /// A condition vector of this width per sample, through a linear layer that starts at zero, so that
    /// the normalisation starts exactly neutral.
    Adaptive(usize),
}

/// Layer normalisation, plain or adaptive.
#[derive(Clone, Debug)]
pub enum Norm {
    /// Weight and bias.
    Fixed(ParamId, ParamId),
    /// Shift and scale from the condition.
    Adaptive(Linear),
}

impl Norm {
    /// Over the last axis of `width` elements.
    pub fn new(b: &mut Builder, name: &str, width: usize, condition: Condition) -> Self {
        match condition {
            Condition::Fixed => b.scope(name, |b| {
                let weight = b.param("weight", &[width], Init::Constant(1.0));
                Norm::Fixed(weight, b.param("bias", &[width], Init::Constant(0.0)))
            }),
            Condition::Adaptive(c) => Norm::Adaptive(Linear::zeroed(b, name, c, 2 * width)),
        }
    }

    /// x [B, .., width]; `condition` [B, c] where the normalisation is adaptive.
    pub fn forward(&self, forward: &Forward, x: &Var, condition: Option<&Var>) -> Result<Var> {
        match (self, condition) {
            (Norm::Fixed(weight, bias), _) => {
                let op = Normalization { kind: Kind::Layer, epsilon: EPSILON };
                forward.apply(op, &[x, forward.get(*weight), forward.get(*bias)])
            }
            (Norm::Adaptive(linear), Some(condition)) => {
                let modulation = linear.forward(forward, condition)?;
                let kind = Kind::Adaptive { shift: 0, scale: 1 };
                forward.apply(Normalization { kind, epsilon: EPSILON }, &[x, &modulation])
            }
            (Norm::Adaptive(_), None) => {
                Err(unix::Error::bug("an adaptive normalisation was given no condition"))
            }
        }
    }
}
