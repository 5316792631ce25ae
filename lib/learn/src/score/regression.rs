//! Regression errors: sums per channel, from which all metrics are computed.

use super::bits;
use serde::{Deserialize, Serialize};

/// Added to the denominators of NMSE and VMSE.
const EPSILON: f64 = 1e-6;

/// Sums over the values of one channel, with predictions p and targets t.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ChannelErrors {
    /// Number of values.
    pub count: u64,
    /// Σ (p - t)².
    #[serde(with = "bits")]
    pub squared: f64,
    /// Σ |p - t|.
    #[serde(with = "bits")]
    pub absolute: f64,
    /// Mean of t.
    #[serde(with = "bits")]
    pub mean: f64,
    /// Σ (t - mean)².
    #[serde(with = "bits")]
    pub deviation: f64,
}

impl ChannelErrors {
    /// Sums over pairs of a prediction and a target.
    fn of(pairs: impl Iterator<Item = (f32, f32)>) -> Self {
        let mut all = Self::default();
        for (p, t) in pairs {
            let (p, t) = (f64::from(p), f64::from(t));
            all.count += 1;
            all.squared += (p - t) * (p - t);
            all.absolute += (p - t).abs();
            let delta = t - all.mean;
            all.mean += delta / all.count as f64;
            all.deviation += delta * (t - all.mean);
        }
        all
    }

    /// Adds the sums of `other` (Chan, Golub and LeVeque 1979).
    pub(super) fn merge(&mut self, other: &Self) {
        let (a, b) = (self.count as f64, other.count as f64);
        if other.count == 0 {
            return;
        }
        let delta = other.mean - self.mean;
        self.mean += delta * b / (a + b);
        self.deviation += other.deviation + delta * delta * a * b / (a + b);
        self.count += other.count;
        self.squared += other.squared;
        self.absolute += other.absolute;
    }

    /// Returns mse, mae, rmse, nmse = mse/(mean(t²) + 10⁻⁶), vmse = mse/(variance of t + 10⁻⁶) with the unbiased
    /// variance, and the square roots nrmse and vrmse.
    pub fn metrics(&self) -> [(&'static str, f64); 7] {
        let n = self.count as f64;
        let mse = self.squared / n;
        let nmse = mse / (self.deviation / n + self.mean * self.mean + EPSILON);
        let vmse = mse / (self.deviation / (n - 1.0).max(1.0) + EPSILON);
        [
            ("mse", mse),
            ("mae", self.absolute / n),
            ("rmse", mse.sqrt()),
            ("nmse", nmse),
            ("nrmse", nmse.sqrt()),
            ("vmse", vmse),
            ("vrmse", vmse.sqrt()),
        ]
    }
}

/// Regression errors of each channel.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RegressionErrors(pub Vec<ChannelErrors>);

impl RegressionErrors {
    /// Computes the errors of a prediction and its target, both [.., channels].
    pub fn of(channels: usize, prediction: &[f32], target: &[f32]) -> Self {
        let channel = |c: usize| {
            let [p, t] =
                [prediction, target].map(|all| all.iter().skip(c).step_by(channels).copied());
            ChannelErrors::of(p.zip(t))
        };
        Self((0..channels).map(channel).collect())
    }

    /// Adds the errors of other samples.
    pub fn merge(&mut self, other: &Self) {
        self.0.resize(self.0.len().max(other.0.len()), ChannelErrors::default());
        self.0.iter_mut().zip(&other.0).for_each(|(own, other)| own.merge(other));
    }

    /// Returns the errors over all channels.
    pub fn overall(&self) -> ChannelErrors {
        let mut all = ChannelErrors::default();
        self.0.iter().for_each(|channel| all.merge(channel));
        all
    }

    /// Returns the metrics over all channels and, if there are several, those of each channel as `NAME[CHANNEL]`.
    pub fn metrics(&self) -> Vec<(String, f64)> {
        let overall = self.overall().metrics().map(|(name, value)| (name.to_string(), value));
        let several = self.0.iter().enumerate().filter(|_| self.0.len() > 1);
        let each = several.flat_map(|(number, channel)| {
            channel.metrics().map(|(name, value)| (format!("{name}[{number}]"), value))
        });
        overall.into_iter().chain(each).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merged_errors_are_those_of_all_values_also_far_from_zero() {
        // Two channels; targets around 10⁴, where Σ t² - (Σ t)²/n loses eight digits.
        let targets: Vec<f32> = (0..14).map(|i| 1e4 + (i * i % 7) as f32 * 0.25).collect();
        let predictions: Vec<f32> =
            targets.iter().enumerate().map(|(i, t)| t + 0.5 * (i % 3) as f32).collect();
        let mut merged = RegressionErrors::default();
        for (p, t) in predictions.chunks(4).zip(targets.chunks(4)) {
            merged.merge(&RegressionErrors::of(2, p, t));
        }
        let t: Vec<f64> = targets.iter().map(|t| f64::from(*t)).collect();
        let e: Vec<f64> = predictions.iter().zip(&t).map(|(p, t)| f64::from(*p) - t).collect();
        let n = t.len() as f64;
        let mean = t.iter().sum::<f64>() / n;
        let mse = e.iter().map(|e| e * e).sum::<f64>() / n;
        let variance = t.iter().map(|t| (t - mean).powi(2)).sum::<f64>() / (n - 1.0);
        let square = t.iter().map(|t| t * t).sum::<f64>() / n;
        let expected = [
            ("mse", mse),
            ("mae", e.iter().map(|e| e.abs()).sum::<f64>() / n),
            ("nrmse", (mse / (square + 1e-6)).sqrt()),
            ("vmse", mse / (variance + 1e-6)),
        ];
        let metrics: std::collections::BTreeMap<String, f64> =
            merged.metrics().into_iter().collect();
        for (name, value) in expected {
            assert!(
                (metrics[name] / value - 1.0).abs() < 1e-12,
                "{name}: {} {value}",
                metrics[name]
            );
        }
        let own =
            RegressionErrors::of(1, &[predictions[1], predictions[3]], &[targets[1], targets[3]]);
        let both = RegressionErrors::of(2, &predictions[..4], &targets[..4]);
        assert_eq!(both.0[1].metrics(), own.overall().metrics());
    }
}
