//! The denoiser of a corrector, a network of the noisy residual of an operator, and the operator's output and input.

use super::network::{Network, NetworkModel, NetworkShape};
use crate::diffusion::Coefficients;
use learn::forward::Forward;
use learn::params::Builder;
use tensor::ops::binary::Binary;
use tensor::ops::concat::Concat;
use tensor::ops::depthwise_conv::Padding;
use tensor::{Tensor, Var};
use unix::Result;

/// The inputs of the denoiser other than the noisy residual.
pub struct Conditioning<'a> {
    /// The operator's output and its input, normalised: [B, T, D] each.
    pub states: [&'a Var; 2],
    /// The condition without the noise level, [B, F].
    pub features: &'a Var,
}

/// The layers of the denoiser.
#[derive(Clone, Debug)]
pub struct Denoiser(Network);

impl Denoiser {
    /// Builds a denoiser for residuals of latent tokens with `dim` features on a grid, and a condition of `features`
    /// values in addition to the noise level.
    pub fn new(
        b: &mut Builder,
        config: &NetworkModel,
        dim: usize,
        [rows, columns]: [usize; 2],
        padding: Padding,
        features: usize,
    ) -> Self {
        let condition = features + 1;
        let grid = [1, rows, columns];
        let shape = NetworkShape { input: 3 * dim, output: dim, grid, padding, condition };
        let path = (config.condition, config.condition_width);
        Self(Network::new(b, &config.backbone, path, &shape))
    }

    /// Computes the network F(c_in·x, c_noise): x [B, T, D], `input` and `noise` [B, 1] -> [B, T, D].
    pub fn network(
        &self,
        forward: &Forward,
        x: &Var,
        given: &Conditioning,
        [input, noise]: [&Var; 2],
    ) -> Result<Var> {
        let input = input.reshape(&[x.shape()[0], 1, 1]);
        let x = forward.apply(Binary::Multiply, &[x, &input])?;
        let x = forward.apply(Concat { axis: 2 }, &[&x, given.states[0], given.states[1]])?;
        let features = forward.apply(Concat { axis: 1 }, &[given.features, noise])?;
        let [x, features] = [forward.to_compute_dtype(&x)?, forward.to_compute_dtype(&features)?];
        forward.to_param_dtype(&self.0.forward(forward, &x, &features)?)
    }

    /// Computes D(x; σ) = c_skip·x + c_out·F for a batch with a single noise level.
    pub fn denoise(
        &self,
        forward: &Forward,
        x: &Var,
        given: &Conditioning,
        c: &Coefficients,
    ) -> Result<Var> {
        let column =
            |value: f64| forward.data(&Tensor::full(&[x.shape()[0], 1], value, forward.dtype()));
        let found = self.network(forward, x, given, [&column(c.input)?, &column(c.noise)?])?;
        crate::diffusion::combine(forward, &[(c.skip, x), (c.output, &found)])
    }
}
