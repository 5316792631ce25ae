//! Assigns groups of samples to splits.
//!
//! Samples are organized in strata, each of which is divided in the same proportions, and in groups, which are never
//! split up. The result depends only on the seed and on the samples.

use super::{Share, SplitName};
use std::cmp::Reverse;
use std::collections::HashMap;
use tensor::random::{Permutation, Philox, Purpose};

/// Records of a stratum that must be in the same split.
#[derive(Clone, Debug)]
pub struct Group<R> {
    /// Key that the records share. Groups with the same key in different strata get the same split.
    pub key: blake3::Hash,
    /// The records.
    pub records: Vec<R>,
}

/// Groups records by their keys, in order of first appearance.
pub fn grouped<R>(records: impl IntoIterator<Item = (R, blake3::Hash)>) -> Vec<Group<R>> {
    let mut groups: Vec<Group<R>> = Vec::new();
    let mut numbers: HashMap<blake3::Hash, usize> = HashMap::new();
    for (record, key) in records {
        let number = *numbers.entry(key).or_insert_with(|| {
            groups.push(Group { key, records: Vec::new() });
            groups.len() - 1
        });
        groups[number].records.push(record);
    }
    groups
}

/// Divides strata one after another.
#[derive(Clone, Debug)]
pub struct Divider<R> {
    shares: [Share; 3],
    seed: u64,
    /// The split of each group, by its key.
    splits: HashMap<blake3::Hash, usize>,
    /// The records of train, validation and test, in this order.
    pub chosen: [Vec<R>; 3],
}

impl<R: Clone> Divider<R> {
    /// Creates a divider; `shares` are for train, validation and test, in this order.
    pub fn new(shares: [Share; 3], seed: u64) -> Self {
        Self { shares, seed, splits: HashMap::new(), chosen: Default::default() }
    }

    /// Assigns the groups of a stratum to splits, each of which should get its quota (see [`quotas`]). Returns the
    /// number of records in each split.
    ///
    /// A group that occurred in an earlier stratum keeps its split. The others are taken in random order, large ones
    /// first, and go to the first split with enough room; every split gets its proportion of the groups of each size.
    /// The last, smallest groups are reserved for splits that have a share but would otherwise stay empty.
    pub fn stratum(&mut self, groups: &[Group<R>], quotas: [usize; 3]) -> [usize; 3] {
        let (known, new): (Vec<&Group<R>>, Vec<&Group<R>>) =
            groups.iter().partition(|group| self.splits.contains_key(&group.key));
        let random = shuffled(self.seed, new.len());
        let mut new: Vec<&Group<R>> = (0..new.len()).map(|i| new[random(i)]).collect();
        new.sort_by_key(|group| Reverse(group.records.len()));
        let all: usize = groups.iter().map(|group| group.records.len()).sum();
        let everything = quotas.iter().sum::<usize>() == all;
        let (shares, mut placed) = (self.shares, [0; 3]);
        // The number of records in groups of at least each size.
        let size_of = |group: &&Group<R>| group.records.len();
        let mut reached: usize = known.iter().map(size_of).sum();
        let mut up_to: HashMap<usize, usize> = HashMap::new();
        for size in new.iter().map(size_of) {
            reached += size;
            up_to.insert(size, reached);
        }
        let left = (1..=new.len()).rev();
        let known = known.into_iter().map(|group| (group, usize::MAX));
        for (group, left) in known.chain(new.into_iter().zip(left)) {
            let size = group.records.len();
            let has_room = |split: &usize| placed[*split] + size <= quotas[*split];
            // Quotas are scaled to the records in groups of at least this size.
            let part = up_to.get(&size).map_or(all, |records| *records);
            let has_its_part =
                |split: &usize| placed[*split] + size <= (quotas[*split] * part).div_ceil(all);
            let counted = |split: &usize| matches!(shares[*split], Share::Count(_));
            let split = match self.splits.get(&group.key) {
                Some(split) => Some(*split).filter(|split| has_room(split) || !counted(split)),
                None => {
                    let is_empty = |split: &usize| {
                        placed[*split] == 0 && quotas[*split] > 0 && !counted(split)
                    };
                    let empty: Vec<usize> = (0..3).filter(is_empty).collect();
                    let reserved = empty.len() >= left;
                    let open = if reserved { empty } else { vec![0, 1, 2] };
                    let mut open_splits = open.iter().copied();
                    open_splits.find(has_its_part).or_else(|| {
                        let with_room = open.iter().copied().filter(|_| everything).find(has_room);
                        if with_room.is_some() {
                            return with_room;
                        }
                        let room = |split: &usize| quotas[*split].saturating_sub(placed[*split]);
                        let uncounted = open.into_iter().rev().filter(|split| !counted(split));
                        let roomiest = uncounted.max_by_key(|s| (room(s), quotas[*s]));
                        roomiest.filter(|_| everything || reserved)
                    })
                }
            };
            let Some(split) = split else { continue };
            self.splits.insert(group.key, split);
            placed[split] += size;
            self.chosen[split].extend(group.records.iter().cloned());
        }
        placed
    }
}

/// Returns a random permutation of `count` units.
pub fn shuffled(seed: u64, count: usize) -> impl Fn(usize) -> usize {
    let permutation = Permutation::keyed(Philox::new(seed, Purpose::Split), count as u64);
    move |place| permutation.get(place as u64) as usize
}

/// Computes how many of `total` units each split gets. Cumulative fractions are rounded, so the quotas always add up.
/// Errors: the request that cannot be met.
pub fn quotas(shares: [Share; 3], total: usize) -> Result<[usize; 3], String> {
    let mut counts = [0; 3];
    let (mut fraction, mut rounded) = (0.0, 0);
    for (count, share) in counts.iter_mut().zip(shares) {
        *count = match share {
            Share::Count(count) => count,
            Share::Fraction(part) => {
                fraction += part;
                let end = (fraction * total as f64).round() as usize;
                let count = end - rounded;
                rounded = end;
                count
            }
        };
    }
    let wanted = counts.iter().fold(0usize, |sum, count| sum.saturating_add(*count));
    if wanted > total {
        return Err(format!("{wanted} are requested"));
    }
    for ((count, share), name) in counts.iter().zip(shares).zip(SplitName::ALL) {
        if *count == 0 && !share.is_zero() {
            return Err(format!("too few for {name}"));
        }
    }
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_every_size_are_divided_in_the_same_proportions() {
        // 300 groups of one, two and three records each.
        let groups: Vec<Group<usize>> = (0..900_usize)
            .map(|i| Group { key: blake3::hash(&i.to_le_bytes()), records: vec![i; 1 + i % 3] })
            .collect();
        let shares = [0.8, 0.1, 0.1].map(Share::Fraction);
        let mut divider = Divider::new(shares, 7);
        let placed = divider.stratum(&groups, [1440, 180, 180]);
        assert_eq!(placed, [1440, 180, 180]);
        for (split, share) in divider.chosen.iter().zip([0.8, 0.1, 0.1]) {
            for size in 1..=3 {
                let records = split.iter().filter(|i| 1 + *i % 3 == size).count() as f64;
                let expected = share * 300.0 * size as f64;
                // The tolerance is half a group at the end of each size, plus the remainder of earlier sizes.
                assert!((records - expected).abs() <= 4.0, "{size}: {records}, not {expected}");
            }
        }
    }
}
