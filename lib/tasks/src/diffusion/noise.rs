//! Noise levels for sampling and for training.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The noise levels of a sampler (Karras et al. 2022, Eq. 5), in units of the data.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Schedule {
    /// The smallest noise level above zero.
    pub sigma_min: f64,
    /// The largest noise level, from which sampling starts.
    pub sigma_max: f64,
    /// Exponent ρ: larger values put more of the levels near `sigma_min`.
    pub rho: f64,
}

impl Default for Schedule {
    fn default() -> Self {
        Self { sigma_min: 0.05, sigma_max: 5.0, rho: 7.0 }
    }
}

impl Schedule {
    /// Returns `n` levels in decreasing order; a single level is the largest.
    pub fn sigmas(&self, n: usize) -> Vec<f64> {
        let (high, low) =
            (self.sigma_max.powf(1.0 / self.rho), self.sigma_min.powf(1.0 / self.rho));
        let last = n.saturating_sub(1).max(1) as f64;
        (0..n).map(|i| (high + i as f64 / last * (low - high)).powf(self.rho)).collect()
    }

    /// Returns the violation in the values, if any.
    pub fn violation(&self) -> Option<String> {
        let Self { sigma_min, sigma_max, rho } = *self;
        let ok = sigma_min > 0.0 && sigma_min < sigma_max && sigma_max.is_finite() && rho > 0.0;
        (!ok).then(|| "needs 0 < sigma_min < sigma_max and rho > 0".into())
    }
}

/// The noise levels of training: ln σ is normal (Karras et al. 2022, Table 1).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LogNormal {
    /// Mean of ln σ.
    pub mean: f64,
    /// Standard deviation of ln σ.
    pub std: f64,
}

impl Default for LogNormal {
    fn default() -> Self {
        Self { mean: 0.0, std: 1.2 }
    }
}

impl LogNormal {
    /// Maps a standard normal number to a noise level.
    pub fn sigma(&self, normal: f32) -> f64 {
        (self.mean + self.std * f64::from(normal)).exp()
    }
}
