//! The negative evidence lower bound (NELBO) of masked diffusion.
//!
//! With the log-linear schedule a token is masked at time t with probability t, and the bound of a text of S tokens is
//! the integral over t from 0 to 1 of E Σ CE/t, where the sum is over the masked tokens (Sahoo et al. 2024, α = 1 - t).
//! [`weighted_sum`] estimates it without bias in two ways:
//!
//! - t uniform in (0, 1], and each token masked with probability t; the weight 1/t makes the variance large. Leaving out
//!   t < ε leaves out about ε·S·CE(0), if the result is multiplied by 1 - ε.
//! - the number l of masked tokens uniform in 1..=S, and t = l/S (Nie et al. 2025). The integral of
//!   (1/t)·C(S, l)·tˡ·(1 - t)ˢ⁻ˡ is 1/l, so the bound is Σ E[Σ CE | l]/l over l. Here no weight exceeds S.

use learn::score::Bits;
use serde::{Deserialize, Serialize};

/// Σ CE/t in nats: `losses` are the cross entropies of the masked tokens of a text at time `t`.
pub fn weighted_sum(losses: &[f32], t: f64) -> f64 {
    losses.iter().map(|loss| f64::from(*loss)).sum::<f64>() / t
}

/// Estimates of the bound, summed over texts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Bound {
    texts: u64,
    mean: Bits,
    /// Σ (estimate - mean)².
    squares: Bits,
}

impl Bound {
    /// Adds the estimate of a text: a [`weighted_sum`], or the mean of several of the same text.
    pub fn add(&mut self, estimate: f64) {
        self.merge(&Self { texts: 1, mean: Bits(estimate), squares: Bits(0.0) });
    }

    /// Adds the estimates of other texts (Chan et al. 1983).
    pub fn merge(&mut self, other: &Self) {
        let texts = self.texts + other.texts;
        if texts == 0 {
            return;
        }
        let (share, own) = (other.texts as f64 / texts as f64, self.texts as f64);
        let difference = other.mean.0 - self.mean.0;
        self.squares.0 += other.squares.0 + difference * difference * own * share;
        self.mean.0 += difference * share;
        self.texts = texts;
    }

    /// Number of texts.
    pub fn texts(&self) -> u64 {
        self.texts
    }

    /// The bound in nats per text; NaN without texts.
    pub fn mean(&self) -> f64 {
        if self.texts == 0 { f64::NAN } else { self.mean.0 }
    }

    /// The standard error of the mean, √(Σ (x - mean)²/(n·(n - 1))), for independent estimates; stratified times make
    /// it smaller. NaN for fewer than two texts.
    pub fn standard_error(&self) -> f64 {
        let n = self.texts as f64;
        if self.texts < 2 { f64::NAN } else { (self.squares.0 / (n * (n - 1.0))).sqrt() }
    }
}
