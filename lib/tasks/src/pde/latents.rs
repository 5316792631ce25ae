//! What a latent operator needs to know of latents beside their values: the scale of each channel,
//! and the condition (parameter of the equation and Δt) as features.

use crate::pde::normalisation::Normalisation;
use data::fields::latents::LatentStore;
use data::fields::parameter::Parameter;
use data::fields::stats::Statistics;
use learn::task::Buffers;
use tensor::Tensor;
use unix::{Error, Result};

/// A constant of a checkpoint, as f64.
fn constant(buffers: &Buffers, key: &str) -> Result<Vec<f64>> {
    match buffers.iter().find(|(name, _)| name == key) {
        Some((_, tensor)) => Ok(tensor.to_f64()),
        None => Err(Error::data(format!("the checkpoint has no constant {key}"))),
    }
}

/// Mean and deviation of each channel of the latents.
#[derive(Clone, Debug)]
pub struct LatentScale {
    mean: Vec<f64>,
    std: Vec<f64>,
}

impl LatentScale {
    /// From the statistics of stores, each with the weight that it has in their mixture; a constant channel
    /// has deviation 1.
    pub fn of(stores: &[(&[Statistics], f64)]) -> Self {
        let of_store = |(channels, weight): &(&[Statistics], f64)| {
            (channels.iter().map(|c| (c.mean, c.std)).collect(), *weight)
        };
        let sources: Vec<_> = stores.iter().map(of_store).collect();
        let Normalisation { mean, std } = Normalisation::mixed(&sources);
        Self { mean, std }
    }

    /// Number of channels.
    pub fn dim(&self) -> usize {
        self.mean.len()
    }

    /// Each channel to mean 0 and deviation 1.
    pub fn normalise(&self, raw: &[f32], out: &mut [f32]) {
        let c = self.mean.len();
        for (x, y) in raw.chunks_exact(c).zip(out.chunks_exact_mut(c)) {
            for i in 0..c {
                y[i] = (x[i] - self.mean[i] as f32) / self.std[i] as f32;
            }
        }
    }

    /// Back to the codec's own scale.
    pub fn restore(&self, z: &[f32], out: &mut [f32]) {
        let c = self.mean.len();
        for (x, y) in z.chunks_exact(c).zip(out.chunks_exact_mut(c)) {
            for i in 0..c {
                y[i] = x[i].mul_add(self.std[i] as f32, self.mean[i] as f32);
            }
        }
    }

    /// Mean of z² over tokens and channels, relative to that of all latents.
    pub fn energy(&self, raw: &[f32]) -> f64 {
        let squares: f64 = raw.iter().map(|x| f64::from(*x).powi(2)).sum();
        squares / raw.len() as f64 / self.mean_square()
    }

    /// Weight of the squared error of each normalised channel, as it weighs in the raw latents;
    /// relative to their mean square.
    pub fn weights(&self) -> Tensor {
        let total = self.mean_square();
        let weights: Vec<f32> = self.std.iter().map(|s| (s * s / total) as f32).collect();
        Tensor::of(&weights, &[weights.len()])
    }

    fn mean_square(&self) -> f64 {
        let squares = self.mean.iter().zip(&self.std).map(|(m, s)| m * m + s * s);
        squares.sum::<f64>() / self.mean.len() as f64
    }

    /// Named tensors, for a checkpoint.
    pub fn buffers(&self) -> Buffers {
        let n = [self.mean.len()];
        vec![
            ("latent.mean".into(), Tensor::of(&self.mean, &n)),
            ("latent.std".into(), Tensor::of(&self.std, &n)),
        ]
    }

    /// What [`LatentScale::buffers`] gave.
    pub fn from_buffers(buffers: &Buffers) -> Result<Self> {
        let mean = constant(buffers, "latent.mean")?;
        Ok(Self { mean, std: constant(buffers, "latent.std")? })
    }
}

/// How the condition becomes features: logarithms, the parameter's to mean 0 and deviation 1 over
/// the training data, the time step's relative to one frame of it.
#[derive(Clone, Copy, Debug)]
pub struct Condition {
    mean: f64,
    std: f64,
    frame_interval: f64,
}

impl Condition {
    /// Numbers in a condition.
    pub const FEATURES: usize = 2;

    /// From the parameters of stores, and the first one's time from frame to frame.
    pub fn of(stores: &[&LatentStore]) -> Self {
        let of_store = |store: &&LatentStore| -> Vec<f64> {
            (0..store.len()).map(|i| store.parameter(i).value).collect()
        };
        let parameters: Vec<f64> = stores.iter().flat_map(of_store).collect();
        Self::new(&parameters, stores.first().map_or(1.0, |store| store.frame_interval()))
    }

    /// From the parameter of every trajectory, and the time from one frame to the next.
    pub fn new(parameters: &[f64], frame_interval: f64) -> Self {
        let n = parameters.len() as f64;
        let logs: Vec<f64> = parameters.iter().map(|value| log(*value)).collect();
        let mean = logs.iter().sum::<f64>() / n;
        let std = (logs.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n).sqrt();
        let std = if std > 1e-12 { std } else { 1.0 };
        Self { mean, std, frame_interval }
    }

    /// Features of a sample with this parameter and this time from state to state.
    pub fn features(&self, parameter: &Parameter, time: f64) -> [f32; 2] {
        let parameter = (log(parameter.value) - self.mean) / self.std;
        [parameter as f32, log(time / self.frame_interval) as f32]
    }

    /// Named tensors, for a checkpoint.
    pub fn buffers(&self) -> Buffers {
        let values = [self.mean, self.std, self.frame_interval];
        vec![("condition".into(), Tensor::of(&values, &[3]))]
    }

    /// What [`Condition::buffers`] gave.
    pub fn from_buffers(buffers: &Buffers) -> Result<Self> {
        match constant(buffers, "condition")?[..] {
            [mean, std, frame_interval] => Ok(Self { mean, std, frame_interval }),
            _ => Err(Error::data("the checkpoint's constant `condition` has not three numbers")),
        }
    }
}

/// The natural logarithm, continued below the smallest parameter that occurs so that zero is finite.
fn log(x: f64) -> f64 {
    x.abs().max(1e-12).ln()
}
