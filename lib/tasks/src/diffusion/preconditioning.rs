//! Preconditioning of a network F as a denoiser: D(x; σ) = c_skip·x + c_out·F(c_in·x, c_noise).

/// The coefficients of a denoiser at one noise level.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Coefficients {
    /// c_skip: factor of the noisy input.
    pub skip: f64,
    /// c_out: factor of the output of the network.
    pub output: f64,
    /// c_in: factor of the noisy input before the network.
    pub input: f64,
    /// c_noise: the noise level that the network receives.
    pub noise: f64,
}

/// The choice of coefficients.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Preconditioning {
    /// A diffusion model (Karras et al. 2022, Table 1): inputs and targets of the network have unit variance at every
    /// noise level.
    Edm {
        /// Standard deviation of the data.
        sigma_data: f64,
    },
    /// A consistency model (Song et al. 2023, Appendix C): at `sigma_min`, D is the identity.
    Consistency {
        /// Standard deviation of the data.
        sigma_data: f64,
        /// The smallest noise level, ε.
        sigma_min: f64,
    },
    /// Regression: D = F, which does not depend on x.
    Regression,
}

impl Preconditioning {
    /// Returns the coefficients at noise level σ > 0, in units of the data.
    pub fn at(self, sigma: f64) -> Coefficients {
        let (data, from) = match self {
            Self::Edm { sigma_data } => (sigma_data, 0.0),
            Self::Consistency { sigma_data, sigma_min } => (sigma_data, sigma_min),
            Self::Regression => {
                return Coefficients { skip: 0.0, output: 1.0, input: 0.0, noise: 0.0 };
            }
        };
        let (above, norm) = (sigma - from, sigma.hypot(data));
        Coefficients {
            skip: data * data / (above * above + data * data),
            output: above * data / norm,
            input: 1.0 / norm,
            noise: sigma.ln() / 4.0,
        }
    }

    /// Returns the weight of the error of D at noise level σ in the loss. For EDM it is 1/c_out² (Karras et al. 2022,
    /// Eq. 8), so that the error of F has weight 1.
    pub fn loss_weight(self, sigma: f64) -> f64 {
        self.at(sigma).output.powi(-2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With data of variance σ_d² and the ideal denoiser of a Gaussian, D = x·σ_d²/(σ_d² + σ²), inputs and targets of F
    /// have unit variance, and c_out is minimal: the target is uncorrelated with the input.
    #[test]
    fn edm_keeps_inputs_and_targets_at_unit_variance() {
        for (sigma, data) in [(0.02, 0.5), (1.0, 0.5), (3.0, 1.0), (80.0, 1.0)] {
            let c = Preconditioning::Edm { sigma_data: data }.at(sigma);
            let (signal, noise) = (data * data, sigma * sigma);
            let input = c.input.powi(2) * (signal + noise);
            // The target (y - c_skip·(y + n))/c_out.
            let target =
                ((1.0 - c.skip).powi(2) * signal + c.skip.powi(2) * noise) / c.output.powi(2);
            let covariance = (1.0 - c.skip) * signal - c.skip * noise;
            assert!((input - 1.0).abs() < 1e-12 && (target - 1.0).abs() < 1e-12, "{sigma}");
            assert!(covariance.abs() < 1e-9 * (signal + noise), "{sigma}: {covariance}");
        }
    }

    #[test]
    fn a_consistency_model_is_the_identity_at_the_smallest_noise_level() {
        let at =
            |sigma| Preconditioning::Consistency { sigma_data: 0.5, sigma_min: 0.002 }.at(sigma);
        assert_eq!((at(0.002).skip, at(0.002).output), (1.0, 0.0));
        // At much higher noise levels, the coefficients are those of EDM.
        let (one, other) = (at(80.0), Preconditioning::Edm { sigma_data: 0.5 }.at(80.0));
        assert!(
            (one.skip / other.skip - 1.0).abs() < 1e-4
                && (one.output / other.output - 1.0).abs() < 1e-4
        );
    }
}
