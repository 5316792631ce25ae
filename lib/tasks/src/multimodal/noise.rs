//! Noise of latents: z_t = a·z + b·ε with standard normal ε, and what a network predicts from it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::f64::consts::FRAC_PI_2;
use std::sync::OnceLock;

/// Number of steps of the schedules of DDPM.
const STEPS: usize = 1000;

/// The factors a and b as functions of the time t in [0, 1].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LatentSchedule {
    /// a = cos(πt/2), b = sin(πt/2).
    #[default]
    Cosine,
    /// 1,000 steps with ᾱ of Nichol & Dhariwal 2021, equation 17 (s = 0.008, β in [0.0001, 0.9999]).
    DdpmCosine,
    /// 1,000 steps with β from 0.0001 to 0.02, evenly spaced (Ho et al. 2020, §4).
    DdpmLinear,
    /// 1,000 steps with β between the same limits along a sigmoid from -6 to 6.
    DdpmSigmoid,
}

impl LatentSchedule {
    /// Returns (a, b) at the time t. The schedules of DDPM use step ⌊999·t⌋ and have b > 0 at t = 0.
    pub fn at(self, t: f64) -> [f64; 2] {
        if self == Self::Cosine {
            let angle = FRAC_PI_2 * t;
            return [angle.cos(), angle.sin()];
        }
        static TABLES: [OnceLock<Vec<f64>>; 4] = [const { OnceLock::new() }; 4];
        let products = TABLES[self as usize].get_or_init(|| self.products());
        let product = products[((t * (STEPS - 1) as f64) as usize).min(STEPS - 1)];
        [product.sqrt(), (1.0 - product).sqrt()]
    }

    /// ᾱ after each step of a schedule of DDPM.
    fn products(self) -> Vec<f64> {
        let [low, high] = [1e-4, 0.02];
        let place = |i: usize| i as f64 / (STEPS - 1) as f64;
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        let beta = |i: usize| match self {
            Self::Cosine | Self::DdpmCosine => {
                let level = |step: usize| {
                    let x = (step as f64 / STEPS as f64 + 0.008) / 1.008;
                    (FRAC_PI_2 * x).cos().powi(2)
                };
                (1.0 - level(i + 1) / level(i)).clamp(1e-4, 0.9999)
            }
            Self::DdpmLinear => low + (high - low) * place(i),
            Self::DdpmSigmoid => low + (high - low) * sigmoid(12.0 * place(i) - 6.0),
        };
        let mut product = 1.0;
        (0..STEPS)
            .map(|i| {
                product *= 1.0 - beta(i);
                product
            })
            .collect()
    }
}

/// What a network predicts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LatentTarget {
    /// The latent z.
    #[default]
    X0,
    /// The velocity v = a·ε - b·z (Salimans & Ho 2022, §4).
    V,
    /// The noise ε.
    Epsilon,
}

impl LatentTarget {
    /// Returns the factors of z and of ε in the target, for a and b of the schedule.
    pub fn factors(self, [a, b]: [f64; 2]) -> [f64; 2] {
        match self {
            Self::X0 => [1.0, 0.0],
            Self::V => [-b, a],
            Self::Epsilon => [0.0, 1.0],
        }
    }

    /// Returns the factors of z_t and of the prediction in the estimate of z. At a = 0, noise determines no latent, and
    /// the estimate from a prediction of the noise is limited to a factor of 10⁴.
    pub fn estimate(self, [a, b]: [f64; 2]) -> [f64; 2] {
        match self {
            Self::X0 => [0.0, 1.0],
            // z = a·z_t - b·v, since a² + b² = 1.
            Self::V => [a, -b],
            Self::Epsilon => {
                let a = a.max(1e-4);
                [1.0 / a, -b / a]
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_estimate_inverts_the_target() {
        use LatentSchedule::{Cosine, DdpmCosine, DdpmLinear, DdpmSigmoid};
        let (z, noise) = (0.7, -1.3);
        for schedule in [Cosine, DdpmCosine, DdpmLinear, DdpmSigmoid] {
            for t in [0.01, 0.3, 0.5, 0.9] {
                let [a, b] = schedule.at(t);
                assert!((a * a + b * b - 1.0).abs() < 1e-12);
                let noisy = a * z + b * noise;
                for target in [LatentTarget::X0, LatentTarget::V, LatentTarget::Epsilon] {
                    let [of_z, of_noise] = target.factors([a, b]);
                    let [of_noisy, of_found] = target.estimate([a, b]);
                    let found = of_noisy * noisy + of_found * (of_z * z + of_noise * noise);
                    assert!((found - z).abs() < 1e-9, "{schedule:?} {target:?} {t}: {found}");
                }
            }
        }
    }

    /// The values of the schedule that the `mmdit` models of LGDLM were trained with.
    #[test]
    fn the_cosine_schedule_of_ddpm_has_known_values() {
        for (t, a, tolerance) in [
            (0.0, 0.99995, 5e-6),
            (0.5, 0.7026, 5e-5),
            (0.9, 0.1552, 5e-5),
            (0.98, 0.0312, 5e-5),
            (1.0, 1.56e-5, 5e-8),
        ] {
            let found = LatentSchedule::DdpmCosine.at(t)[0];
            assert!((found - a).abs() < tolerance, "{t}: {found}, should be {a}");
        }
    }
}
