//! Batches of samples of similar length, which need less padding.

use std::ops::Range;
use tensor::random::{Permutation, Philox, Purpose};

/// Groups samples of similar length into batches, within pools of consecutive batches.
///
/// A pool has the same samples as the corresponding batches of the order without buckets. They are sorted by length and
/// cut into batches, which are read in the order of a keyed permutation. A pool that crosses the end of an epoch is
/// arranged in two parts, so every epoch still reads every sample once; the batch at the boundary mixes lengths. The
/// samples of a batch depend only on the seed, the lengths and the update number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buckets {
    /// Length of each sample, over all sources.
    pub lengths: Vec<u32>,
    /// Number of batches in a pool. 0 or 1 does not change the order.
    pub pool: u64,
}

impl Buckets {
    /// Whether bucketing changes the order.
    pub(super) fn is_on(&self) -> bool {
        self.pool > 1
    }

    /// Arranges the samples of pool `number`, read in batches of `batch`, in place. Epochs begin at global positions
    /// that are multiples of `epoch`; `None` if there are several sources, each with its own epochs.
    pub(super) fn arrange(
        &self,
        seed: u64,
        number: u64,
        batch: u64,
        epoch: Option<u64>,
        samples: &mut [u64],
    ) {
        let first = number * self.pool * batch;
        let key = Philox::new(seed, Purpose::Buckets).at_update(number);
        for part in split_at_multiples(0..samples.len() as u64, first, epoch.unwrap_or(u64::MAX)) {
            // A stable sort: samples of the same length stay in random order.
            let mut sorted = samples[range(&part)].to_vec();
            sorted.sort_by_key(|sample| self.lengths.get(*sample as usize));
            let places: Vec<Range<u64>> = split_at_multiples(part.clone(), first, batch).collect();
            let order = Permutation::keyed(key.at_source(part.start), places.len() as u64);
            let mut rest = sorted.as_slice();
            for at in 0..places.len() {
                let place = &places[order.get(at as u64) as usize];
                let (own, others) = rest.split_at((place.end - place.start) as usize);
                samples[range(place)].copy_from_slice(own);
                rest = others;
            }
        }
    }
}

/// Splits `range` at multiples of `step`. Position 0 of `range` is position `first` of the whole order.
fn split_at_multiples(
    range: Range<u64>,
    first: u64,
    step: u64,
) -> impl Iterator<Item = Range<u64>> {
    let mut start = range.start;
    std::iter::from_fn(move || {
        let rest = step - (first + start) % step;
        let part = start..start.saturating_add(rest).min(range.end);
        start = part.end;
        (!part.is_empty()).then_some(part)
    })
}

fn range(part: &Range<u64>) -> Range<usize> {
    part.start as usize..part.end as usize
}

#[cfg(test)]
mod tests {
    use super::super::Mixture;
    use super::*;

    /// Long-tailed lengths, like those of texts.
    fn lengths(samples: u64) -> Vec<u32> {
        let uniform = |i: u64| (i * 2_654_435_761 % 1000) as f64 / 1000.0;
        (0..samples).map(|i| (8.0 + 120.0 * uniform(i).powi(3)) as u32).collect()
    }

    fn bucketed(samples: u64, batch: u64, pool: u64) -> [Mixture; 2] {
        let plain = Mixture::new(5, &[(samples, 1.0)], batch).unwrap();
        let buckets = Buckets { lengths: lengths(samples), pool };
        [plain.clone(), plain.with_buckets(Some(buckets))]
    }

    #[test]
    fn every_epoch_reads_every_sample_once() {
        for (samples, batch, pool) in
            [(100, 8, 4), (64, 16, 2), (7, 3, 5), (1, 4, 8), (1000, 7, 50)]
        {
            let [_, mixture] = bucketed(samples, batch, pool);
            let updates = (5 * samples).div_ceil(batch);
            let all: Vec<u64> = (0..updates).flat_map(|update| mixture.batch(update)).collect();
            for epoch in all.chunks_exact(samples as usize) {
                let mut sorted = epoch.to_vec();
                sorted.sort_unstable();
                assert!(sorted.into_iter().eq(0..samples), "{samples} in {batch}: {epoch:?}");
            }
        }
    }

    #[test]
    fn a_batch_depends_on_its_update_alone_and_ranks_share_it() {
        let [plain, mixture] = bucketed(300, 12, 6);
        let mut backwards: Vec<_> = (0..60).rev().map(|update| mixture.batch(update)).collect();
        backwards.reverse();
        let parts = |update| {
            [mixture.part(update, 0, 3), mixture.part(update, 3, 3), mixture.part(update, 6, 6)]
        };
        for (update, batch) in (0..60).zip(&backwards) {
            assert_eq!(parts(update).concat(), *batch, "update {update}");
        }
        // Bucketing keeps the set of samples of a pool. Without it, the order is unchanged.
        let pool = |mixture: &Mixture| {
            let mut all: Vec<u64> = (0..6).flat_map(|update| mixture.batch(update)).collect();
            all.sort_unstable();
            all
        };
        assert_eq!(pool(&mixture), pool(&plain));
        assert_ne!(mixture.batch(1), plain.batch(1));
        for off in [0, 1] {
            let buckets = Buckets { lengths: lengths(300), pool: off };
            let off = plain.clone().with_buckets(Some(buckets));
            (0..60).for_each(|update| assert_eq!(off.batch(update), plain.batch(update)));
        }
    }

    #[test]
    fn batches_need_less_padding_and_are_not_sorted() {
        let [plain, mixture] = bucketed(5000, 16, 50);
        let lengths = lengths(5000);
        let longest = |batch: &[u64]| batch.iter().map(|i| lengths[*i as usize]).max().unwrap_or(0);
        let padding = |mixture: &Mixture| -> u64 {
            let of = |batch: Vec<u64>| {
                let tokens: u32 = batch.iter().map(|i| lengths[*i as usize]).sum();
                u64::from(longest(&batch) * 16 - tokens)
            };
            (0..312).map(|update| of(mixture.batch(update))).sum()
        };
        let [before, after] = [&plain, &mixture].map(padding);
        assert!(after * 10 < before, "{after} tokens of padding instead of {before}");
        // Short and long batches come in random order: half of the neighbours ascend.
        let all: Vec<u32> = (0..300).map(|update| longest(&mixture.batch(update))).collect();
        let ascents = all.windows(2).filter(|pair| pair[0] < pair[1]).count();
        assert!((110..190).contains(&ascents), "{ascents} of 299");
    }

    #[test]
    fn several_sources_have_buckets_as_well() {
        let sources = [(100, 0.25), (300, 0.75)];
        let plain = Mixture::new(2, &sources, 8).unwrap();
        let buckets = Buckets { lengths: lengths(400), pool: 16 };
        let mixture = plain.clone().with_buckets(Some(buckets));
        let pool = |mixture: &Mixture, pool: u64| {
            let updates = 16 * pool..16 * (pool + 1);
            let mut all: Vec<u64> = updates.flat_map(|update| mixture.batch(update)).collect();
            all.sort_unstable();
            all
        };
        (0..20).for_each(|number| assert_eq!(pool(&mixture, number), pool(&plain, number)));
    }
}
