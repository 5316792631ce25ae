//! The order of samples over a whole run.

use tensor::random::{Permutation, Philox, Purpose};
use unix::{Error, Result};

/// Endless epochs over the samples, each with a new keyed permutation, cut into batches.
///
/// The sample at global position p (counted over all updates and ranks) is a function of (seed, p) alone: any update
/// can be computed without those before it, and the number of workers makes no difference. Batches continue across
/// epoch boundaries, so all are full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    key: Philox,
    samples: u64,
    batch: u64,
}

impl Order {
    /// Creates an order over `samples` samples in batches of `batch` (over all ranks). Errors: 65 when either is 0.
    pub fn new(seed: u64, samples: u64, batch: u64) -> Result<Self> {
        Self::keyed(Philox::new(seed, Purpose::Order), samples, batch)
    }

    /// Like [`Order::new`], with a key derived from the seed and, if there are several sources, the source number.
    pub(super) fn keyed(key: Philox, samples: u64, batch: u64) -> Result<Self> {
        if samples == 0 || batch == 0 {
            return Err(Error::data(format!(
                "nothing to read: {samples} samples in batches of {batch}"
            )));
        }
        Ok(Self { key, samples, batch })
    }

    /// Returns the sample at global position `position`.
    pub fn sample(&self, position: u64) -> u64 {
        let mut sample = [0];
        self.fill(position, &mut sample);
        sample[0]
    }

    /// Returns the samples of one update, for all ranks.
    pub fn batch(&self, update: u64) -> Vec<u64> {
        self.part(update, 0, self.batch)
    }

    /// Returns `count` samples of the batch, starting at `first`.
    pub fn part(&self, update: u64, first: u64, count: u64) -> Vec<u64> {
        let mut samples = vec![0; count as usize];
        self.fill(update * self.batch + first, &mut samples);
        samples
    }

    /// Fills `out` with the samples at consecutive global positions, starting at `position`.
    pub fn fill(&self, mut position: u64, mut out: &mut [u64]) {
        while !out.is_empty() {
            let (epoch, place) = (position / self.samples, position % self.samples);
            let left = (self.samples - place).min(out.len() as u64);
            let (now, then) = out.split_at_mut(left as usize);
            Permutation::keyed(self.key.at_update(epoch), self.samples).fill(place, now);
            (position, out) = (position + left, then);
        }
    }

    /// The number of samples, which is the length of an epoch.
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// Returns the epoch in which an update begins plus the fraction of it already read, e.g. 2.25.
    pub fn epoch(&self, update: u64) -> f64 {
        update as f64 * self.batch as f64 / self.samples as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_epoch_is_a_permutation_whatever_the_batch() {
        for (samples, batch) in [(1, 1), (1, 4), (7, 3), (64, 64), (10, 64), (257, 16)] {
            let order = Order::new(samples + batch, samples, batch).unwrap();
            let epochs = 5;
            let updates = (epochs * samples).div_ceil(batch);
            let all: Vec<u64> = (0..updates).flat_map(|update| order.batch(update)).collect();
            assert_eq!(all.len() as u64, updates * batch);
            for epoch in all.chunks_exact(samples as usize) {
                let mut sorted = epoch.to_vec();
                sorted.sort_unstable();
                assert!(sorted.into_iter().eq(0..samples), "{samples} in {batch}: {epoch:?}");
            }
        }
    }

    #[test]
    fn epochs_and_seeds_differ() {
        let epochs = |seed| {
            let order = Order::new(seed, 100, 100).unwrap();
            [order.batch(0), order.batch(1)]
        };
        let ([a, b], [c, _]) = (epochs(1), epochs(2));
        assert!(a != b && a != c);
        assert_eq!(epochs(1), [a, b]);
        assert_eq!(Order::new(1, 100, 30).unwrap().epoch(10), 3.0);
    }

    #[test]
    fn nothing_to_read_is_an_error() {
        assert!(Order::new(0, 0, 4).is_err() && Order::new(0, 4, 0).is_err());
    }
}
