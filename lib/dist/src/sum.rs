//! The reduction tree of sums over ranks: neighbours are added first, (r0 + r1) + (r2 + r3). A rank without a neighbour
//! joins at the next level, ((r0 + r1) + (r2 + r3)) + r4.
//!
//! The tree depends only on the number of ranks. If each rank sums its own values (a power of two of them) along the
//! same tree, the result has the same bits for 1, 2, 4 .. ranks.

use tensor::vectorize;

/// Number of elements summed at a time: the partial sums of a block stay in the L1 cache.
const BLOCK: usize = 1024;

/// Computes `own += other`. Addition is bitwise commutative, except for which of two NaN payloads is kept.
pub fn add(own: &mut [f32], other: &[f32]) {
    vectorize!(own.iter_mut().zip(other).for_each(|(a, b)| *a += *b));
}

/// Replaces `first` by the sum of `ranks` vectors along the tree. `other` returns the vector of a rank from 1 on; all
/// vectors have the same length.
pub fn tree<'a>(first: &mut [f32], ranks: usize, other: impl Fn(usize) -> &'a [f32]) {
    if ranks == 2 {
        return add(first, other(1));
    }
    // After r ranks, level k holds the sum of a complete block of 2^k ranks if bit k of r is set.
    let mut levels = vec![[0.0_f32; BLOCK]; ranks.ilog2() as usize + 1];
    for start in (0..first.len()).step_by(BLOCK) {
        let end = first.len().min(start + BLOCK);
        let first = &mut first[start..end];
        let mut sum = [0.0; BLOCK];
        let sum = &mut sum[..end - start];
        for rank in 0..ranks {
            sum.copy_from_slice(if rank == 0 { first } else { &other(rank)[start..end] });
            let mut level = 0;
            while rank & (1 << level) != 0 {
                add(sum, &levels[level][..end - start]);
                level += 1;
            }
            levels[level][..end - start].copy_from_slice(sum);
        }
        let mut left = (0..levels.len()).filter(|level| ranks & (1 << level) != 0);
        if let Some(lowest) = left.next() {
            first.copy_from_slice(&levels[lowest][..end - start]);
        }
        left.for_each(|level| add(first, &levels[level][..end - start]));
    }
}

/// One exchange of a rank on its way up the tree. It merges two neighbouring blocks of ranks; every rank of a block
/// already holds the sum of its block.
#[derive(Debug, PartialEq, Eq)]
pub struct SumExchange {
    /// Whether this rank is in the lower-numbered block.
    pub lower: bool,
    /// The rank that sends the sum of the other block.
    pub from: usize,
    /// The ranks that receive the sum of this block from this rank.
    pub to: Vec<usize>,
}

/// Returns the exchanges of a rank, after which the rank holds the sum over all ranks.
pub fn steps(rank: usize, ranks: usize) -> Vec<SumExchange> {
    let mut steps = Vec::new();
    let mut width = 1;
    while width < ranks {
        let start = rank / (2 * width) * (2 * width);
        let middle = start + width;
        // The upper block may be shorter or missing.
        let upper = ranks.saturating_sub(middle).min(width);
        if upper > 0 {
            let lower = rank < middle;
            steps.push(if lower {
                let mine = rank - start;
                let to = (mine < upper).then_some(middle + mine);
                SumExchange { lower, from: middle + mine % upper, to: to.into_iter().collect() }
            } else {
                let mine = rank - middle;
                let to = (start + mine..middle).step_by(upper).collect();
                SumExchange { lower, from: start + mine, to }
            });
        }
        width *= 2;
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sums along the tree, directly from its definition.
    fn reference(values: &[f32]) -> f32 {
        let mut values = values.to_vec();
        while values.len() > 1 {
            values = values
                .chunks(2)
                .map(|pair| pair.iter().copied().reduce(|a, b| a + b).unwrap())
                .collect();
        }
        values[0]
    }

    fn vectors(ranks: usize, len: usize) -> Vec<Vec<f32>> {
        let value = |i: usize| ((i * 2_654_435_761) % 1_000_003) as f32 / 997.0 - 400.0;
        (0..ranks).map(|rank| (0..len).map(|i| value(rank * 7919 + i)).collect()).collect()
    }

    #[test]
    fn sums_of_vectors_are_the_trees() {
        for ranks in 1..=17 {
            for len in [0, 1, 31, BLOCK, BLOCK + 1, 2 * BLOCK + 17] {
                let all = vectors(ranks, len);
                let expected: Vec<u32> = (0..len)
                    .map(|i| reference(&all.iter().map(|v| v[i]).collect::<Vec<_>>()).to_bits())
                    .collect();
                let mut first = all[0].clone();
                tree(&mut first, ranks, |rank| &all[rank]);
                let bits: Vec<u32> = first.iter().map(|x| x.to_bits()).collect();
                assert_eq!(bits, expected, "{ranks} ranks, {len} elements");
            }
        }
    }

    #[test]
    fn steps_lead_to_the_same_tree_and_every_message_has_two_ends() {
        for ranks in 1..=33 {
            let values: Vec<f32> = vectors(ranks, 1).into_iter().map(|v| v[0]).collect();
            let steps: Vec<Vec<SumExchange>> =
                (0..ranks).map(|rank| super::steps(rank, ranks)).collect();
            // Ranks without a neighbour skip a level, so each rank has its own index into its list of steps.
            let mut sums = values.clone();
            let mut width = 1;
            let mut at = vec![0; ranks];
            while width < ranks {
                let before = sums.clone();
                for rank in 0..ranks {
                    let middle = rank / (2 * width) * (2 * width) + width;
                    if middle >= ranks {
                        continue;
                    }
                    let step = &steps[rank][at[rank]];
                    at[rank] += 1;
                    assert_eq!(step.lower, rank < middle);
                    let theirs = before[step.from];
                    sums[rank] = before[rank] + theirs;
                    let back = &steps[step.from][at[step.from] - usize::from(step.from < rank)];
                    assert!(back.to.contains(&rank), "{ranks}: {rank} waits for {}", step.from);
                    for &to in &step.to {
                        let theirs = &steps[to][at[to] - usize::from(to < rank)];
                        assert_eq!(theirs.from, rank, "{ranks}: {rank} sends to {to}");
                    }
                }
                width *= 2;
            }
            assert!(at.iter().zip(&steps).all(|(at, steps)| *at == steps.len()));
            let expected = reference(&values).to_bits();
            assert!(sums.iter().all(|sum| sum.to_bits() == expected), "{ranks} ranks");
        }
    }

    #[test]
    fn nan_stays_nan() {
        let all = [vec![1.0, f32::NAN], vec![f32::NAN, 2.0], vec![3.0, 4.0]];
        let mut first = all[0].clone();
        tree(&mut first, 3, |rank| &all[rank]);
        assert!(first.iter().all(|x| x.is_nan()));
    }
}
