//! The condition that the times of a text and of a latent determine.

use super::block::MODALITIES;
use super::config::{CycleVaeModel, TimeEmbedding};
use learn::forward::Forward;
use learn::nn::Linear;
use learn::params::Builder;
use std::f64::consts::PI;
use tensor::Var;
use tensor::ops::activation::Activation;
use tensor::ops::concat::Concat;
use tensor::ops::narrow::Narrow;
use unix::Result;

/// Longest wavelength of sinusoidal features, in units of the shortest.
const WAVELENGTHS: f64 = 1e4;

/// Maps both times to a condition.
#[derive(Clone, Debug)]
pub struct TimeLayers {
    kind: TimeEmbedding,
    frequencies: usize,
    /// The MLP of each time; empty where one MLP takes both.
    each: Vec<[Linear; 2]>,
    both: [Linear; 2],
}

impl TimeLayers {
    /// Registers the parameters.
    pub fn new(b: &mut Builder, config: &CycleVaeModel) -> Self {
        let (kind, frequencies) = (config.time_embedding, config.frequencies());
        let (features, condition) = (2 * frequencies, config.condition());
        let mlp = |b: &mut Builder, inputs: usize, inner: usize| {
            let first = Linear::new(b, "in", inputs, inner).then(Activation::Silu);
            [first, Linear::new(b, "out", inner, condition)]
        };
        b.scope("time", |b| match kind {
            TimeEmbedding::Fourier => {
                Self { kind, frequencies, each: Vec::new(), both: mlp(b, 2 * features, condition) }
            }
            TimeEmbedding::Sinusoidal => {
                let own = |b: &mut Builder| {
                    let [first, second] = mlp(b, features, condition);
                    [first, second.then(Activation::Silu)]
                };
                let each = MODALITIES.map(|name| b.scope(name, own)).to_vec();
                let both = b.scope("both", |b| mlp(b, 2 * condition, 4 * condition));
                Self { kind, frequencies, each, both }
            }
        })
    }

    /// Number of features of both times.
    pub fn features(&self) -> usize {
        4 * self.frequencies
    }

    /// Returns cosines and sines of the time of the text and then of the latent.
    pub fn features_of(&self, times: [f64; 2]) -> impl Iterator<Item = f32> {
        times.into_iter().flat_map(move |t| {
            let angles = self.rates().map(move |rate| rate * t);
            angles.clone().map(f64::cos).chain(angles.map(f64::sin)).map(|x| x as f32)
        })
    }

    /// Angles per unit of time.
    fn rates(&self) -> impl Iterator<Item = f64> + Clone {
        let (kind, count) = (self.kind, self.frequencies);
        (0..count).map(move |k| match kind {
            TimeEmbedding::Fourier => PI * (k + 1) as f64,
            TimeEmbedding::Sinusoidal => WAVELENGTHS.powf(-(k as f64) / count as f64),
        })
    }

    /// Maps features of both times [B, 4·frequencies] to a condition [B, C].
    pub fn forward(&self, forward: &Forward, features: &Var) -> Result<Var> {
        let mlp = |[first, second]: &[Linear; 2], x: &Var| {
            second.forward(forward, &first.forward(forward, x)?)
        };
        let length = 2 * self.frequencies;
        let own = |(i, layers): (usize, &[Linear; 2])| {
            let narrow = Narrow { axis: 1, start: i * length, length };
            mlp(layers, &forward.apply(narrow, &[features])?)
        };
        match &self.each.iter().enumerate().map(own).collect::<Result<Vec<_>>>()?[..] {
            [text, latent] => mlp(&self.both, &forward.apply(Concat { axis: 1 }, &[text, latent])?),
            _ => mlp(&self.both, features),
        }
    }
}
