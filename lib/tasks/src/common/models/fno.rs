use super::backbone::{BackboneShape, Input};
use learn::forward::Forward;
use learn::nn::{Condition, Linear, SpectralConv};
use learn::params::{Builder, Init};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tensor::Var;
use tensor::ops::activation::Activation;
use tensor::ops::binary::Binary;
use unix::Result;

/// A Fourier neural operator (Li et al. 2021): layers x ← gelu(K x + W x + b) with a spectral convolution K, between a
/// linear layer and a projection with one hidden layer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Fno {
    /// Width: features per token inside the model.
    #[schemars(range(min = 1, max = 65536))]
    pub hidden: usize,
    /// Number of layers.
    #[serde(default = "four")]
    #[schemars(range(min = 1, max = 1024))]
    pub depth: usize,
    /// Fourier modes along each axis, counted as in neuralop: wave numbers up to half this value in both directions,
    /// limited to those that the token grid supports.
    #[serde(default = "sixteen")]
    #[schemars(range(min = 1, max = 65536))]
    pub modes: usize,
    /// Add learned position embeddings to the tokens, one per row and one per column of the token grid.
    #[serde(default)]
    pub positions: bool,
}

fn four() -> usize {
    4
}

fn sixteen() -> usize {
    16
}

/// The layers of a [`Fno`].
#[derive(Clone, Debug)]
pub(crate) struct FourierLayers {
    input: Input,
    /// Maps the condition to a vector that is added to every token.
    condition: Option<Linear>,
    layers: Vec<Layer>,
    output: [Linear; 2],
}

/// The spectral convolution K and the pointwise W and b of a layer.
#[derive(Clone, Debug)]
struct Layer {
    convolution: SpectralConv,
    skip: Linear,
}

impl FourierLayers {
    pub(super) fn new(b: &mut Builder, c: &Fno, shape: &BackboneShape) -> Self {
        let grid = shape.plane(b, Some("kind: fno"));
        let layer = |b: &mut Builder, i: usize| {
            b.scope(format!("layers.{i}"), |b| Layer {
                convolution: SpectralConv::new(b, "convolution", c.hidden, grid, c.modes),
                skip: Linear::new(b, "skip", c.hidden, c.hidden),
            })
        };
        let zero = Init::Constant(0.0);
        Self {
            input: Input::new(b, shape, c.hidden, c.positions),
            condition: match shape.condition {
                Condition::Fixed => None,
                Condition::Adaptive(width) => Some(Linear::new(b, "condition", width, c.hidden)),
            },
            layers: (0..c.depth).map(|i| layer(b, i)).collect(),
            output: [
                Linear::new(b, "output.0", c.hidden, 2 * c.hidden).then(Activation::Gelu),
                Linear::with_init(b, "output.1", 2 * c.hidden, shape.output, zero, zero),
            ],
        }
    }

    pub(super) fn forward(
        &self,
        forward: &Forward,
        z: &Var,
        condition: Option<&Var>,
    ) -> Result<Var> {
        let mut x = self.input.forward(forward, z)?;
        if let (Some(linear), Some(condition)) = (&self.condition, condition) {
            let vector = linear.forward(forward, condition)?;
            x = forward
                .apply(Binary::Add, &[&x, &vector.reshape(&[x.shape()[0], 1, x.shape()[2]])])?;
        }
        for (i, layer) in self.layers.iter().enumerate() {
            // The last layer has no activation, as in PDEBench and neuralop.
            let activation =
                if i + 1 < self.layers.len() { Activation::Gelu } else { Activation::Identity };
            let layer = layer.clone();
            x = forward.block(&[&x], move |forward, vars| {
                let skip = layer.skip.forward(forward, &vars[0])?;
                let sum = [&layer.convolution.forward(forward, &vars[0])?, &skip];
                forward.apply(activation, &[&forward.apply(Binary::Add, &sum)?])
            })?;
        }
        self.output[1].forward(forward, &self.output[0].forward(forward, &x)?)
    }
}
