//! Normalisation of each channel to mean 0 and standard deviation 1, and its inverse. Models store it as buffers.

use learn::task::Buffers;
use learn::trained::Parts;
use tensor::Tensor;
use unix::{Error, Result};

/// Mean and standard deviation of each channel.
#[derive(Clone, Debug, PartialEq)]
pub struct Normalisation {
    /// Means.
    pub mean: Vec<f64>,
    /// Standard deviations; 1 where the data is constant.
    pub std: Vec<f64>,
}

impl Normalisation {
    /// Computes the normalisation of a mixture of sources from mean and deviation of their channels, and their weights.
    pub fn mixed(sources: &[(Vec<(f64, f64)>, f64)]) -> Self {
        let (mean, std): (Vec<f64>, Vec<f64>) = moments_of_mixture(sources).into_iter().unzip();
        let std = std.into_iter().map(|std| if std > 1e-12 { std } else { 1.0 }).collect();
        Self { mean, std }
    }

    /// Number of channels.
    pub fn channels(&self) -> usize {
        self.mean.len()
    }

    /// Computes out = (x - mean)/std, for x [.., channels].
    pub fn apply(&self, x: &[f32], out: &mut [f32]) {
        self.each(x, out, |x, mean, std| (x - mean as f32) * (1.0 / std) as f32);
    }

    /// Computes out = x·std + mean, for x [.., channels].
    pub fn invert(&self, x: &[f32], out: &mut [f32]) {
        self.each(x, out, |x, mean, std| x.mul_add(std as f32, mean as f32));
    }

    fn each(&self, x: &[f32], out: &mut [f32], value: impl Fn(f32, f64, f64) -> f32) {
        let channels = self.channels();
        for (c, (&mean, &std)) in self.mean.iter().zip(&self.std).enumerate() {
            let own = x.iter().skip(c).step_by(channels);
            let out = out.iter_mut().skip(c).step_by(channels);
            own.zip(out).for_each(|(x, y)| *y = value(*x, mean, std));
        }
    }

    /// Returns Σ over channels and points of x²/σ², divided by the number of points: the energy of a field in units of
    /// the channel variances.
    pub fn energy(&self, x: &[f32]) -> f64 {
        let channels = self.channels();
        let of = |(c, std): (usize, &f64)| {
            let own = x.iter().skip(c).step_by(channels);
            let energy: f64 = own.map(|x| f64::from(*x).powi(2)).sum();
            energy / x.len() as f64 / std.powi(2)
        };
        self.std.iter().enumerate().map(of).sum()
    }

    /// Returns the buffers for a checkpoint.
    pub fn buffers(&self, name: &str) -> Buffers {
        let tensor = |values: &[f64]| match values {
            [one] => Tensor::scalar(*one),
            _ => Tensor::from_slice(values, &[values.len()]),
        };
        vec![
            (format!("{name}.mean"), tensor(&self.mean)),
            (format!("{name}.std"), tensor(&self.std)),
        ]
    }

    /// Restores the buffers of [`Normalisation::buffers`]. Errors: 65 when they are missing or inconsistent.
    pub fn restore(name: &str, parts: &Parts) -> Result<Self> {
        let [mean, std] =
            [parts.buffer(&format!("{name}.mean"))?, parts.buffer(&format!("{name}.std"))?];
        if mean.is_empty() || mean.len() != std.len() {
            return Err(Error::data(format!(
                "the checkpoint's {name}.mean and {name}.std have {} and {} channels",
                mean.len(),
                std.len()
            )));
        }
        Ok(Self { mean, std })
    }
}

/// Computes mean and standard deviation of each channel of a mixture: m = Σ w_i m_i and σ² = Σ w_i (σ_i² + (m_i - m)²),
/// where the weights are normalised to a sum of 1.
pub fn moments_of_mixture(sources: &[(Vec<(f64, f64)>, f64)]) -> Vec<(f64, f64)> {
    // The moments of a single source must stay bit-identical.
    if let [(only, _)] = sources {
        return only.clone();
    }
    let total: f64 = sources.iter().map(|(_, weight)| weight).sum();
    let of_channel = |c: usize| {
        let each = sources.iter().map(|(channels, weight)| (weight / total, channels[c]));
        let mean: f64 = each.clone().map(|(weight, (mean, _))| weight * mean).sum();
        let variance: f64 = each.map(|(w, (m, std))| w * (std.powi(2) + (m - mean).powi(2))).sum();
        (mean, variance.sqrt())
    };
    let channels = sources.iter().map(|(channels, _)| channels.len()).min().unwrap_or(0);
    (0..channels).map(of_channel).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares with the moments of the pooled values, each source repeated according to its weight.
    #[test]
    fn moments_of_a_mixture_are_those_of_its_numbers() {
        let moments = |x: &[f64]| {
            let mean = x.iter().sum::<f64>() / x.len() as f64;
            let squares: f64 = x.iter().map(|x| (x - mean).powi(2)).sum();
            (mean, (squares / x.len() as f64).sqrt())
        };
        let (a, b) = ([1.0, 5.0, -2.0, 0.5], [30.0, 10.0, 11.0, 14.0]);
        let mixed = moments_of_mixture(&[(vec![moments(&a)], 1.0), (vec![moments(&b)], 3.0)]);
        let (mean, std) = moments(&[&a[..], &b, &b, &b].concat());
        assert!((mixed[0].0 - mean).abs() < 1e-12 && (mixed[0].1 - std).abs() < 1e-12, "{mixed:?}");
        // A source of weight 0 has no effect.
        let alone = moments_of_mixture(&[(vec![moments(&a)], 0.0), (vec![moments(&b)], 3.0)]);
        assert_eq!(alone, [moments(&b)]);
    }
}
