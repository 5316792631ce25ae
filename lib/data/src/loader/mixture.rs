//! The order of samples over a whole run, drawn from one source or from several in given proportions.

use super::{Buckets, Order};
use std::ops::Range;
use tensor::random::{Permutation, Philox, Purpose};
use unix::{Error, Result};

/// Number of positions within which every source gets exactly its share.
const PERIOD: u64 = 1024;

/// An endless sequence of samples from one source or several.
///
/// A single source is read in its [`Order`]. With several, a keyed permutation assigns the positions of each period of
/// 1024 to the sources in proportion to their weights; each source has its own order. The sample at a
/// position is a function of (seed, position) alone, so there is no state to save, and the number of workers makes no
/// difference.
///
/// Samples are numbered across all sources: those of a source follow those of the sources before it.
#[derive(Clone, Debug, PartialEq)]
pub struct Mixture {
    seed: u64,
    sources: Vec<Source>,
    batch: u64,
    buckets: Option<Buckets>,
}

#[derive(Clone, Debug, PartialEq)]
struct Source {
    order: Order,
    /// Number of the source's first sample, counted across all sources.
    first: u64,
    /// The shuffled positions of a period that belong to the source.
    places: Range<u64>,
}

impl Mixture {
    /// Creates a mixture of sources, given as (number of samples, weight), in batches of `batch` samples over all
    /// ranks. A source with weight 0 is not read.
    ///
    /// Errors: 78 for weights that are negative, not finite or all 0, or for more sources than a period has positions;
    /// 65 when a source with a positive weight has no samples, or the batch is 0.
    pub fn new(seed: u64, sources: &[(u64, f64)], batch: u64) -> Result<Self> {
        let total: f64 = sources.iter().map(|(_, weight)| weight).sum();
        let wrong = sources.iter().any(|(_, weight)| !weight.is_finite() || *weight < 0.0);
        if wrong || total <= 0.0 || !total.is_finite() || sources.len() as u64 > PERIOD {
            let weights: Vec<f64> = sources.iter().map(|(_, weight)| *weight).collect();
            return Err(Error::config(format!(
                "the weights {weights:?} of sources must be at least 0, finite and not all 0"
            )));
        }
        let weights: Vec<f64> = sources.iter().map(|(_, weight)| weight / total).collect();
        let key = Philox::new(seed, Purpose::Order);
        let (mut first, mut place) = (0, 0);
        let mut all = Vec::with_capacity(sources.len());
        for (number, ((samples, weight), count)) in (0..).zip(sources.iter().zip(counts(&weights)))
        {
            // A source with weight 0 may be empty.
            let read = if *weight == 0.0 { (*samples).max(1) } else { *samples };
            let key = if sources.len() == 1 { key } else { key.at_source(number) };
            let order = Order::keyed(key, read, batch)?;
            all.push(Source { order, first, places: place..place + count });
            (first, place) = (first + samples, place + count);
        }
        Ok(Self { seed, sources: all, batch, buckets: None })
    }

    /// Returns the mixture with samples of similar length batched together, if `buckets` are given.
    #[must_use]
    pub fn with_buckets(mut self, buckets: Option<Buckets>) -> Self {
        self.buckets = buckets.filter(Buckets::is_on);
        self
    }

    /// Returns the samples of one update, for all ranks.
    pub fn batch(&self, update: u64) -> Vec<u64> {
        self.part(update, 0, self.batch)
    }

    /// Returns `count` samples of the batch, starting at `first`.
    pub fn part(&self, update: u64, first: u64, count: u64) -> Vec<u64> {
        let Some(buckets) = &self.buckets else {
            return self.positions(update * self.batch + first, count);
        };
        let pool = update / buckets.pool;
        let all = buckets.pool * self.batch;
        let mut samples = self.positions(pool * all, all);
        let epoch = match self.sources.as_slice() {
            [only] => Some(only.order.samples()),
            _ => None,
        };
        buckets.arrange(self.seed, pool, self.batch, epoch, &mut samples);
        let start = (update % buckets.pool * self.batch + first) as usize;
        samples[start..start + count as usize].to_vec()
    }

    /// Returns the samples at `count` global positions, starting at `first`, without buckets.
    fn positions(&self, first: u64, count: u64) -> Vec<u64> {
        match self.sources.as_slice() {
            [only] => {
                let mut samples = vec![0; count as usize];
                only.order.fill(first, &mut samples);
                samples
            }
            _ => (first..first + count).map(|position| self.sample(position)).collect(),
        }
    }

    /// Returns the sample at a global position, with several sources.
    fn sample(&self, position: u64) -> u64 {
        let (period, place) = (position / PERIOD, position % PERIOD);
        let key = Philox::new(self.seed, Purpose::Mixture).at_update(period);
        let slot = Permutation::keyed(key, PERIOD).get(place);
        let number = self.sources.partition_point(|source| source.places.end <= slot);
        let Source { order, first, places } = &self.sources[number];
        let count = places.end - places.start;
        first + order.sample(period * count + slot - places.start)
    }
}

/// Computes the number of positions of a period for each weight; the weights add up to 1. Counts are rounded down, but
/// at least 1 for a positive weight. Remaining positions go to the largest remainders; excess ones are taken from the
/// largest counts.
fn counts(weights: &[f64]) -> Vec<u64> {
    let exact = |i: usize| weights[i] * PERIOD as f64;
    let least = |i: usize| if weights[i] > 0.0 { 1 } else { 0 };
    let mut counts: Vec<u64> =
        (0..weights.len()).map(|i| (exact(i) as u64).max(least(i))).collect();
    while counts.iter().sum::<u64>() > PERIOD {
        let largest = (0..counts.len()).max_by_key(|i| counts[*i]);
        largest.into_iter().for_each(|i| counts[i] -= 1);
    }
    let mut order: Vec<usize> = (0..weights.len()).filter(|i| weights[*i] > 0.0).collect();
    order.sort_by(|a, b| {
        let lacking = |i: usize| exact(i) - counts[i] as f64;
        lacking(*b).total_cmp(&lacking(*a))
    });
    let rest = (PERIOD - counts.iter().sum::<u64>()) as usize;
    order.iter().cycle().take(rest).for_each(|i| counts[*i] += 1);
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_exact_and_every_source_is_read_in_epochs() {
        let sources = [(10, 0.5), (7, 0.25), (0, 0.0), (100, 0.25)];
        let mixture = Mixture::new(3, &sources, 16).unwrap();
        let firsts = [0, 10, 17, 17];
        let mut seen: Vec<Vec<u64>> = vec![Vec::new(); 4];
        let source = |sample: u64| firsts.partition_point(|first| *first <= sample) - 1;
        for update in 0..3 * PERIOD / 16 {
            for sample in mixture.batch(update) {
                seen[source(sample)].push(sample - firsts[source(sample)]);
            }
        }
        assert_eq!(seen.iter().map(Vec::len).collect::<Vec<_>>(), [1536, 768, 0, 768]);
        for (samples, (count, _)) in seen.iter().zip(sources) {
            // The positions of a period are shuffled, so counts are compared over whole epochs.
            let mut times = vec![0; count as usize];
            samples.iter().for_each(|sample| times[*sample as usize] += 1);
            let (least, most) = (times.iter().min(), times.iter().max());
            assert!(most.zip(least).is_none_or(|(most, least)| most - least <= 1), "{times:?}");
        }
        let places: Vec<usize> = (0..4).flat_map(|u| mixture.batch(u)).map(source).collect();
        assert!(places.windows(9).any(|w| w.iter().any(|s| *s != w[0])), "{places:?}");
        assert_ne!(mixture.batch(0), Mixture::new(4, &sources, 16).unwrap().batch(0));
        // Two ranks together read the same samples as a single rank.
        assert_eq!([mixture.part(7, 0, 9), mixture.part(7, 9, 7)].concat(), mixture.batch(7));
    }

    #[test]
    fn no_two_sources_of_any_seeds_have_the_same_order() {
        let samples = 1000;
        let mut orders = Vec::new();
        for seed in [6, 7, 8, !6, !7] {
            let mixture = Mixture::new(seed, &[(samples, 1.0), (samples, 1.0)], PERIOD).unwrap();
            for source in 0..2 {
                let all = mixture.batch(0).into_iter().filter(|s| s / samples == source);
                let mut order: Vec<u64> = all.map(|sample| sample % samples).collect();
                assert_eq!(order.len() as u64, PERIOD / 2);
                // The positions of a source are shuffled within each period, so the sets of samples are compared.
                order.sort_unstable();
                orders.push(order);
            }
        }
        for (i, a) in orders.iter().enumerate() {
            for b in &orders[..i] {
                let common = a.iter().filter(|sample| b.binary_search(sample).is_ok()).count();
                // 512 of 1000 samples each: 262 in common expected, standard deviation 8.
                assert!((190..340).contains(&common), "{common} samples in common");
            }
        }
    }

    #[test]
    fn a_single_source_is_read_in_its_order() {
        let (mixture, order) =
            (Mixture::new(5, &[(77, 2.0)], 8).unwrap(), Order::new(5, 77, 8).unwrap());
        for update in 0..40 {
            assert_eq!(mixture.part(update, 3, 5), order.part(update, 3, 5));
        }
    }

    #[test]
    fn any_weights_fill_a_period() {
        for weights in
            [vec![1.0], vec![1e-9, 1.0], vec![1.0; 7], vec![0.1, 0.2, 0.7], vec![1.0; 1024]]
        {
            let total: f64 = weights.iter().sum();
            let counts = counts(&weights.iter().map(|w| w / total).collect::<Vec<_>>());
            assert_eq!(counts.iter().sum::<u64>(), PERIOD, "{weights:?}");
            assert!(counts.iter().all(|count| *count > 0), "{weights:?}");
        }
    }

    #[test]
    fn invalid_mixtures_are_refused() {
        for sources in [&[(1, 0.0)][..], &[(1, -1.0), (1, 2.0)], &[(1, f64::NAN)], &[], &[(0, 1.0)]]
        {
            assert!(Mixture::new(1, sources, 4).is_err(), "{sources:?}");
        }
        assert!(Mixture::new(1, &[(1, 1.0)], 0).is_err());
    }
}
