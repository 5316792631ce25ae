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

/// Σ CE/t in nats: `losses` are the cross entropies of the masked tokens of a text at time `t`.
pub fn weighted_sum(losses: &[f32], t: f64) -> f64 {
    losses.iter().map(|loss| f64::from(*loss)).sum::<f64>() / t
}
