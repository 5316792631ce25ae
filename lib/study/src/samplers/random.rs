use crate::space::Space;
use crate::trial::Point;
use rand_chacha::ChaCha12Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use std::f64::consts::TAU;

/// The random number generator of one trial.
pub struct Random(ChaCha12Rng);

impl Random {
    /// Creates a generator seeded by the study's seed and the trial's number.
    pub fn new(seed: u64, number: u64) -> Self {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        key[8..16].copy_from_slice(&number.to_le_bytes());
        Self(ChaCha12Rng::from_seed(key))
    }

    /// Draws from the uniform distribution on [0, 1).
    pub fn uniform(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 * 2.0_f64.powi(-53)
    }

    /// Draws from the standard normal distribution (Box and Muller 1958).
    pub(super) fn normal(&mut self) -> f64 {
        (-2.0 * (1.0 - self.uniform()).ln()).sqrt() * (TAU * self.uniform()).cos()
    }

    /// Adds the active parameters that `point` lacks, drawn uniformly from [`crate::space::Domain::range`].
    pub(super) fn complete(&mut self, space: &Space, mut point: Point) -> Point {
        for name in space.order() {
            if point.contains_key(name) || !space.is_active(name, &point) {
                continue;
            }
            let domain = space.0[name].domain();
            let (low, high) = domain.range();
            point.insert(name.to_string(), domain.at(low + (high - low) * self.uniform()));
        }
        point
    }
}
