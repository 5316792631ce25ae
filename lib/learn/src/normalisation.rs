//! Numbers to mean 0 and deviation 1, and back; stored with every model that relies on it.

use crate::stages::Constants;
use data::stats::Statistics;
use tensor::Tensor;
use unix::{Error, Result};

/// Mean and deviation of one channel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Normalisation {
    /// Mean.
    pub mean: f64,
    /// Standard deviation; 1 where the data is constant.
    pub std: f64,
}

impl Normalisation {
    /// That of measured statistics.
    pub fn of(statistics: &Statistics) -> Self {
        Self::from_moments(statistics.mean, statistics.std)
    }

    /// From mean and deviation.
    pub fn from_moments(mean: f64, std: f64) -> Self {
        Self { mean, std: if std > 1e-12 { std } else { 1.0 } }
    }

    /// out = (x - mean)/std.
    pub fn apply(&self, x: &[f32], out: &mut [f32]) {
        let (mean, scale) = (self.mean as f32, (1.0 / self.std) as f32);
        x.iter().zip(out).for_each(|(x, y)| *y = (x - mean) * scale);
    }

    /// out = x·std + mean.
    pub fn invert(&self, x: &[f32], out: &mut [f32]) {
        let (mean, std) = (self.mean as f32, self.std as f32);
        x.iter().zip(out).for_each(|(x, y)| *y = x.mul_add(std, mean));
    }

    /// Named tensors, for a checkpoint.
    pub fn constants(&self, name: &str) -> Constants {
        vec![
            (format!("{name}.mean"), Tensor::scalar(self.mean)),
            (format!("{name}.std"), Tensor::scalar(self.std)),
        ]
    }

    /// What [`Normalisation::constants`] gave.
    pub fn from_constants(name: &str, constants: &Constants) -> Result<Self> {
        let value = |part: &str| {
            let key = format!("{name}.{part}");
            match constants.iter().find(|(n, t)| *n == key && t.len() == 1) {
                Some((_, tensor)) => Ok(tensor.item()),
                None => Err(Error::data(format!("the checkpoint has no constant {key}"))),
            }
        };
        Ok(Self { mean: value("mean")?, std: value("std")? })
    }
}
