//! Random initial states of PDEBench's 1-D problems (Takamoto et al., "PDEBench", NeurIPS 2022
//! datasets track, appendix D): a superposition of sines, sometimes its absolute value with a random
//! sign, sometimes inside a smooth window.

use std::f64::consts::TAU;
use tensor::random::{Philox, Purpose};

/// Number of sines.
const SINES: usize = 2;
/// Maximum wave number.
const LARGEST_WAVE_NUMBER: u64 = 8;
/// Probability of taking the absolute value, and of applying the window.
const PROBABILITY: f64 = 0.1;
/// Width of the window's flanks.
const FLANK: f64 = 0.01;

/// An initial state on the periodic unit interval, determined by (seed, parameter, trajectory).
///
/// u₀(x) = Σ aᵢ sin(2π kᵢ x + φᵢ) with kᵢ in 1..=8, aᵢ in [0, 1), φᵢ in [0, 2π); with probability 10 % replaced by
/// ±|u₀|; with probability 10 % multiplied by a window with tanh flanks.
#[derive(Clone, Debug, PartialEq)]
pub struct Sinusoids {
    waves: [Wave; SINES],
    /// The sign of the absolute value, if it is taken.
    absolute: Option<f64>,
    /// Left and right edge of the window, if there is one.
    window: Option<[f64; 2]>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Wave {
    amplitude: f64,
    number: f64,
    phase: f64,
}

impl Sinusoids {
    /// Draws the initial state of one trajectory.
    ///
    /// The equation's parameter is part of the random key: the same index gives different states at different
    /// viscosities, so a split by trajectory never leaks an initial state across regimes.
    pub fn draw(seed: u64, parameter: f64, trajectory: u64) -> Self {
        let philox = Philox::new(seed, Purpose::InitialState).at_update(parameter.to_bits());
        let uniform = |element| philox.uniform64(trajectory, element);
        let wave = |i: usize| {
            let first = 3 * i as u64;
            Wave {
                amplitude: uniform(first),
                number: 1.0 + philox.below(trajectory, first + 1, LARGEST_WAVE_NUMBER) as f64,
                phase: TAU * uniform(first + 2),
            }
        };
        let sign = if uniform(7) < 0.5 { -1.0 } else { 1.0 };
        let edges = [0.1 + 0.35 * uniform(9), 0.55 + 0.35 * uniform(10)];
        Self {
            waves: std::array::from_fn(wave),
            absolute: (uniform(6) < PROBABILITY).then_some(sign),
            window: (uniform(8) < PROBABILITY).then_some(edges),
        }
    }

    /// Evaluates the state at `x`, taken modulo the period 1.
    pub fn at(&self, x: f64) -> f64 {
        let x = x.rem_euclid(1.0);
        let sum: f64 =
            self.waves.iter().map(|w| w.amplitude * (TAU * w.number * x + w.phase).sin()).sum();
        let value = self.absolute.map_or(sum, |sign| sign * sum.abs());
        self.window.map_or(value, |[left, right]| {
            value * 0.5 * (((x - left) / FLANK).tanh() - ((x - right) / FLANK).tanh())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_are_as_described() {
        let states: Vec<_> = (0..4000).map(|i| Sinusoids::draw(5, 0.01, i)).collect();
        let share = |f: fn(&Sinusoids) -> bool| {
            states.iter().filter(|s| f(s)).count() as f64 / states.len() as f64
        };
        // Five standard deviations of a fraction of 10 % (5 %) among 4000 are 2.4 % (1.7 %).
        assert!((share(|s| s.absolute.is_some()) - 0.1).abs() < 0.024);
        assert!((share(|s| s.absolute == Some(-1.0)) - 0.05).abs() < 0.018);
        assert!((share(|s| s.window.is_some()) - 0.1).abs() < 0.024);
        for number in 1..=8 {
            let waves = states.iter().flat_map(|s| s.waves);
            let count = waves.filter(|w| w.number == f64::from(number)).count();
            assert!((850..1150).contains(&count), "wave number {number}: {count} of 8000");
        }
        assert!(states.iter().flat_map(|s| s.waves).all(|w| (0.0..1.0).contains(&w.amplitude)));
    }

    #[test]
    fn a_state_is_periodic_and_has_its_own_key() {
        let state = Sinusoids::draw(1, 0.1, 3);
        assert!((state.at(0.3) - state.at(-0.7)).abs() < 1e-12);
        assert_eq!(state, Sinusoids::draw(1, 0.1, 3));
        for other in [(2, 0.1, 3), (1, 0.2, 3), (1, 0.1, 4)] {
            assert_ne!(state, Sinusoids::draw(other.0, other.1, other.2));
        }
    }
}
