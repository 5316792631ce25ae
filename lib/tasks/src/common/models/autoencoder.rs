use super::backbone::BackboneShape;
use super::conv_layer::{ConditionVector, ConvActivation, to_cells, to_tokens};
use learn::forward::Forward;
use learn::nn::Conv;
use learn::params::Builder;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tensor::Var;
use tensor::ops::activation::Activation;
use tensor::ops::interpolate::{Interpolate, Interpolation};
use unix::Result;

/// Side of the convolution filters, in tokens.
const SIDE: usize = 3;

/// A convolutional autoencoder. The encoder halves the token grid in each layer, by a convolution with stride 2; the
/// decoder doubles it in each layer, by linear interpolation and a convolution. All that the output knows of the input
/// is the latent grid, which has `latent_dim` features on 1/2^(n + 1) of the tokens along each axis, for n `layers`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Autoencoder {
    /// Features after each layer of the encoder, from the finest grid to the coarsest.
    #[schemars(inner(range(min = 1, max = 65536)))]
    pub layers: Vec<usize>,
    /// Features of the latent grid, which one more layer computes.
    #[schemars(range(min = 1, max = 65536))]
    pub latent_dim: usize,
    /// Activation after each layer but the last.
    #[serde(default)]
    pub act_fn: ConvActivation,
    /// Activation after the last layer. Targets are normalised to mean 0 and standard deviation 1.
    #[serde(default = "none")]
    pub final_act_fn: ConvActivation,
}

fn none() -> ConvActivation {
    ConvActivation::None
}

impl Autoencoder {
    /// Returns the violations in the values; keys are relative to `model`.
    pub(super) fn violations(&self) -> Vec<(String, String)> {
        let valid = |features: &usize| (1..=65536).contains(features);
        let wrong = !(1..=16).contains(&self.layers.len()) || !self.layers.iter().all(valid);
        let text = "needs 1 to 16 layers, each with 1 to 65536 features";
        wrong.then(|| ("backbone.layers".to_string(), text.to_string())).into_iter().collect()
    }
}

/// The layers of an [`Autoencoder`].
#[derive(Clone, Debug)]
pub(crate) struct AutoencoderLayers {
    grid: [usize; 3],
    encoder: Vec<Conv>,
    /// Adds the condition to the latent grid.
    condition: ConditionVector,
    /// Upsampling layers, from the coarsest grid to the finest.
    decoder: Vec<(Interpolate, Conv)>,
    activation: Activation,
    last: Activation,
}

impl AutoencoderLayers {
    pub(super) fn new(b: &mut Builder, c: &Autoencoder, shape: &BackboneShape) -> Self {
        let (filter, stride) = (shape.along(SIDE), shape.along(2));
        let inner = || c.layers.iter().copied();
        let widths: Vec<usize> =
            [shape.dim].into_iter().chain(inner()).chain([c.latent_dim]).collect();
        let mut grids = vec![shape.grid];
        let encoder = widths.windows(2).enumerate().map(|(i, pair)| {
            let conv =
                Conv::same(b, &format!("encoder.{i}"), [pair[0], pair[1]], filter, shape.padding);
            grids.push(grids[i].map(|tokens| tokens.div_ceil(2)));
            conv.strided(stride)
        });
        let encoder = encoder.collect();
        let condition = ConditionVector::new(b, shape, c.latent_dim);
        let widths: Vec<usize> =
            [c.latent_dim].into_iter().chain(inner().rev()).chain([shape.output]).collect();
        let finer = grids.into_iter().rev().skip(1);
        let decoder = widths.windows(2).zip(finer).enumerate().map(|(i, (pair, grid))| {
            let op = Interpolate { interpolation: Interpolation::Linear, grid };
            let name = format!("decoder.{i}");
            (op, Conv::same(b, &name, [pair[0], pair[1]], filter, shape.padding))
        });
        Self {
            grid: shape.grid,
            encoder,
            condition,
            decoder: decoder.collect(),
            activation: c.act_fn.into(),
            last: c.final_act_fn.into(),
        }
    }

    pub(super) fn forward(
        &self,
        forward: &Forward,
        z: &Var,
        condition: Option<&Var>,
    ) -> Result<Var> {
        let activate = |activation: Activation, x: Var| match activation {
            Activation::Identity => Ok(x),
            _ => forward.apply(activation, &[&x]),
        };
        let mut x = to_cells(z, self.grid);
        for (i, conv) in self.encoder.iter().enumerate() {
            x = conv.forward(forward, &x)?;
            if i + 1 < self.encoder.len() {
                x = activate(self.activation, x)?;
            }
        }
        x = self.condition.add(forward, x, condition)?;
        for (i, (finer, conv)) in self.decoder.iter().enumerate() {
            x = conv.forward(forward, &forward.apply(*finer, &[&x])?)?;
            let last = i + 1 == self.decoder.len();
            x = activate(if last { self.last } else { self.activation }, x)?;
        }
        Ok(to_tokens(&x))
    }
}
