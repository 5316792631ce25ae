//! A keyed permutation, e.g. for the order of samples or trajectories.

use super::{Philox, Purpose};
use crate::vectorize;

/// A bijection of 0..n chosen by (seed, epoch), with random access to its elements.
///
/// A balanced Feistel network over the smallest even number of bits that holds n, iterated until the result is inside
/// 0..n (cycle walking, at most 4 rounds on average).
#[derive(Clone, Copy, Debug)]
pub struct Permutation {
    philox: Philox,
    n: u64,
    half_bits: u32,
}

/// Number of elements that [`Permutation::fill`] computes at once.
const LANES: usize = 8;

impl Permutation {
    /// Creates the permutation of 0..n for one epoch under `Purpose::Order`.
    pub fn new(seed: u64, epoch: u64, n: u64) -> Self {
        Self::keyed(Philox::new(seed, Purpose::Order).at_update(epoch), n)
    }

    /// Creates the permutation of 0..n under an arbitrary key.
    pub fn keyed(philox: Philox, n: u64) -> Self {
        let bits = u64::BITS - n.saturating_sub(1).leading_zeros();
        Self { philox, n, half_bits: bits.div_ceil(2) }
    }

    /// Returns the image of `i`. Panics if `i` is not in 0..n.
    pub fn get(&self, i: u64) -> u64 {
        let mut out = [0];
        self.fill(i, &mut out);
        out[0]
    }

    /// Computes `out[i] = get(first + i)`, several times faster than one element at a time. Panics if an index is not
    /// in 0..n.
    pub fn fill(&self, first: u64, out: &mut [u64]) {
        let last = first + (out.len() as u64).saturating_sub(1);
        assert!(out.is_empty() || last < self.n, "element {last} of a permutation of {}", self.n);
        if out.len() < LANES {
            self.walk::<1>(first, out);
        } else {
            vectorize!(self.walk::<LANES>(first, out));
        }
    }

    /// Each lane encrypts one element repeatedly until the result is in 0..n, then takes the next.
    #[inline(always)]
    fn walk<const L: usize>(&self, first: u64, out: &mut [u64]) {
        let mut places: [usize; L] = std::array::from_fn(|lane| lane);
        let mut x = places.map(|place| first.wrapping_add(place as u64));
        let (mut next, mut found) = (L, 0);
        while found < out.len() {
            x = self.encrypt(x);
            for (x, place) in x.iter_mut().zip(&mut places) {
                // An idle lane has a place past the end of `out`.
                if *x < self.n && *place < out.len() {
                    out[*place] = *x;
                    found += 1;
                    (*place, *x) = (next, first.wrapping_add(next as u64));
                    next += 1;
                }
            }
        }
    }

    #[inline(always)]
    fn encrypt<const L: usize>(&self, x: [u64; L]) -> [u64; L] {
        const ROUNDS: u64 = 8;
        let mask = (1u64 << self.half_bits) - 1;
        let (mut left, mut right) = (x.map(|x| x >> self.half_bits), x.map(|x| x & mask));
        for round in 0..ROUNDS {
            let high = right.map(|right| right >> 32);
            let counter = [right, high, [round; L], [u64::from(self.half_bits); L]];
            let [low, high, ..] = self.philox.blocks(counter);
            for lane in 0..L {
                let f = low[lane] & u64::from(u32::MAX) | high[lane] << 32;
                left[lane] ^= f & mask;
            }
            (left, right) = (right, left);
        }
        std::array::from_fn(|lane| left[lane] << self.half_bits | right[lane])
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::chi_square_bounds;
    use super::*;

    #[test]
    fn permutation_is_a_bijection() {
        let seed = test_support::seed();
        for n in (1..70).chain([255, 256, 257, 1000, 4096, 65_537]) {
            let permutation = Permutation::new(seed, n, n);
            let mut seen = vec![false; n as usize];
            for i in 0..n {
                let x = permutation.get(i) as usize;
                assert!(!std::mem::replace(&mut seen[x], true), "{x} twice for n = {n}");
            }
        }
    }

    #[test]
    fn many_are_found_as_one_by_one() {
        let seed = test_support::seed();
        for (n, first, count) in
            [(1, 0, 1), (16, 0, 16), (100, 3, 40), (4097, 4000, 97), (70_000, 9, 333)]
        {
            let permutation = Permutation::new(seed, 1, n);
            let mut all = vec![0; count];
            permutation.fill(first, &mut all);
            for (i, found) in (first..).zip(all) {
                assert_eq!(found, permutation.get(i), "element {i} of {n}");
            }
        }
    }

    /// The permutation must never change, because the sample order of every existing run depends on it.
    #[test]
    fn the_order_of_a_seed_stays() {
        let first =
            |seed, n| -> Vec<u64> { (0..5).map(|i| Permutation::new(seed, 2, n).get(i)).collect() };
        assert_eq!(first(1, 10), [3, 5, 8, 9, 0]);
        assert_eq!(first(17, 1_000_003), [815110, 167465, 653841, 438885, 344661]);
    }

    /// Checks that every element appears at every position equally often over many epochs.
    #[test]
    fn permutations_of_epochs_are_spread() {
        let seed = test_support::seed();
        for n in [2u64, 3, 5, 10, 17] {
            let epochs = 4000;
            let mut counts = vec![0f64; (n * n) as usize];
            for epoch in 0..epochs {
                let permutation = Permutation::new(seed, epoch, n);
                (0..n).for_each(|i| counts[(i * n + permutation.get(i)) as usize] += 1.0);
            }
            let expected = epochs as f64 / n as f64;
            let chi: f64 = counts.iter().map(|c| (c - expected).powi(2) / expected).sum();
            // The positions of one permutation are not independent: this is n/(n - 1) times a chi-square variable.
            let chi = chi * (n - 1) as f64 / n as f64;
            let [_, most] = chi_square_bounds(((n - 1) * (n - 1)) as f64);
            assert!(chi < most, "n {n}: chi-square {chi}");
        }
    }

    #[test]
    #[should_panic(expected = "element 5 of a permutation of 5")]
    fn permutation_refuses_what_is_outside() {
        Permutation::new(1, 0, 5).get(5);
    }
}
