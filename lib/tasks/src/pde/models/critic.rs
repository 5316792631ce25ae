//! The critic: predicts the logarithm of the error of a candidate for the next latent state.
//!
//! f(z, z') = ln RMS(z' - z - s·network(z)): the distance of the candidate z' from the next state expected by the
//! network. s is the expected magnitude of the operator's residual at z, so that outputs and gradients are of order one
//! for strong and for decayed fields. The network does not receive z', because in a search z is itself a sample from
//! the second step on: without s, the rank correlation in the search of benches/science/hidden.sh was 0.27, and 0.06 if
//! the network received z', although it was 0.72 for candidates from true states. With s it is 0.31.

use super::network::{Network, NetworkModel, NetworkShape};
use crate::diffusion::combine;
use learn::forward::Forward;
use learn::params::Builder;
use tensor::Var;
use tensor::ops::binary::Binary;
use tensor::ops::depthwise_conv::Padding;
use tensor::ops::vector_norm::VectorNorm;
use unix::Result;

/// Added as ε² to mean squares before taking logarithms.
const EPSILON: f64 = 1e-6;

/// The layers of the critic.
#[derive(Clone, Debug)]
pub struct Critic(Network);

impl Critic {
    /// Builds a critic for latent tokens with `dim` features on a grid, and a condition of `features` values.
    pub fn new(
        b: &mut Builder,
        config: &NetworkModel,
        dim: usize,
        [rows, columns]: [usize; 2],
        padding: Padding,
        features: usize,
    ) -> Self {
        let grid = [1, rows, columns];
        let shape = NetworkShape { input: dim, output: dim, grid, padding, condition: features };
        let path = (config.condition, config.condition_width);
        Self(Network::new(b, &config.backbone, path, &shape))
    }

    /// Returns the logarithm of the predicted RMS error of each candidate, [B], for normalised states z and candidates
    /// [B, T, D], features [B, F] and s [B, 1, 1].
    pub fn forward(
        &self,
        forward: &Forward,
        [z, candidate]: [&Var; 2],
        [features, scale]: [&Var; 2],
    ) -> Result<Var> {
        let [x, features] = [forward.to_compute_dtype(z)?, forward.to_compute_dtype(features)?];
        let change = forward.to_param_dtype(&self.0.forward(forward, &x, &features)?)?;
        let change = forward.apply(Binary::Multiply, &[&change, scale])?;
        log_rms(forward, &combine(forward, &[(1.0, candidate), (-1.0, z), (-1.0, &change)])?)
    }
}

/// Computes ln √(mean x² + ε²) of each sample: x [B, T, D] -> [B].
pub fn log_rms(forward: &Forward, x: &Var) -> Result<Var> {
    let samples = x.shape()[0];
    let width = x.value().len() / samples;
    let rows = combine(forward, &[((width as f64).powf(-0.5), x)])?.reshape(&[samples, width]);
    forward.apply(VectorNorm::Log { epsilon: EPSILON }, &[&rows])
}
