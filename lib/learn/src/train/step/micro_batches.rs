//! Divides the samples of a micro-batch among ranks, and sums the gradients of the slices.
//!
//! The samples of a micro-batch are split into contiguous slices of equal size. A rank computes its slices one by one.
//! The sum over slices is a binary tree, of which each rank computes a branch and [`dist`] the rest. With
//! `training.deterministic` the number of slices does not depend on the number of ranks, so the tree and the resulting
//! bits are always the same; otherwise each rank has one slice.

use crate::config::Training;
use tensor::Tensor;
use tensor::updates::sum;
use unix::{Error, Result};

/// Maximum number of slices with `training.deterministic`, which also limits the number of ranks.
const MAX: u64 = 8;

/// Slices of every micro-batch that one rank computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MicroBatches {
    /// Total number of slices across all ranks.
    pub total: u64,
    /// Index of the first slice of this rank.
    pub first: u64,
    /// Number of contiguous slices of this rank.
    pub per_rank: u64,
    /// Number of samples per slice.
    pub samples: u64,
}

impl MicroBatches {
    /// Returns the slices of rank `rank` of `ranks`. Errors: 78 when the batch cannot be divided evenly.
    pub fn new(training: &Training, rank: usize, ranks: usize) -> Result<Self> {
        let (batch, rank, ranks) = (training.batch_size, rank as u64, ranks as u64);
        let total = match training.deterministic {
            // The largest power of two that divides the batch, up to the limit.
            true => 1 << batch.trailing_zeros().min(MAX.trailing_zeros()),
            false => ranks,
        };
        if !total.is_multiple_of(ranks) {
            return Err(Error::config(format!(
                "training.deterministic: {batch} samples of training.batch_size make {total} equal \
                 slices, which {ranks} ranks cannot share: start a number of ranks that divides {total}"
            )));
        }
        if !batch.is_multiple_of(total) {
            return Err(Error::config(format!(
                "training.batch_size: {batch} samples cannot be shared equally by {ranks} ranks; \
                 it counts the samples of all ranks together"
            )));
        }
        let per_rank = total / ranks;
        Ok(Self { total, first: rank * per_rank, per_rank, samples: batch / total })
    }

    /// Returns slices of half as many samples, if each has an even number.
    pub fn halved(self) -> Self {
        match self.samples.is_multiple_of(2) {
            true => Self {
                total: 2 * self.total,
                first: 2 * self.first,
                per_rank: 2 * self.per_rank,
                samples: self.samples / 2,
            },
            false => self,
        }
    }

    /// Number of forward and backward passes per update on this rank.
    pub fn passes(&self, accumulation: u64) -> u64 {
        self.per_rank * accumulation
    }

    /// Returns the work of this rank's `count`-th pass: the micro-batch number, and the index of the slice's first
    /// sample within it. All micro-batches of an update are computed for one slice before the next slice begins.
    pub fn position(&self, count: u64, accumulation: u64) -> (u64, u64) {
        let (update, at) = (count / self.passes(accumulation), count % self.passes(accumulation));
        let (slice, micro_batch) = (at / accumulation, at % accumulation);
        (update * accumulation + micro_batch, (self.first + slice) * self.samples)
    }
}

/// Accumulates the gradients of a rank in an update: over micro-batches in order, over slices in a binary tree.
#[derive(Default)]
pub struct Tree {
    /// Sums of 2^level slices, in descending order of level.
    branches: Vec<(u32, Vec<Tensor>)>,
    /// Sum of the current slice over the micro-batches so far.
    slice: Option<Vec<Tensor>>,
}

impl Tree {
    /// Adds the gradients of a micro-batch of the current slice.
    pub fn add(&mut self, gradients: Vec<Tensor>) {
        match &mut self.slice {
            None => self.slice = Some(gradients),
            Some(sum) => sum::add_all(sum.iter_mut().zip(&gradients)),
        }
    }

    /// Completes the current slice.
    pub fn close(&mut self) {
        let Some(mut sum) = self.slice.take() else { return };
        let mut level = 0;
        while let Some((_, mut before)) = self.branches.pop_if(|(l, _)| *l == level) {
            sum::add_all(before.iter_mut().zip(&sum));
            (sum, level) = (before, level + 1);
        }
        self.branches.push((level, sum));
    }

    /// Adds the gradient of one parameter in the last pass of the last slice; removes the complete sum for that
    /// parameter and returns it in the memory of `gradient`. Addition commutes, so the bits equal those of
    /// [`Tree::whole`].
    pub fn finish(&mut self, parameter: usize, gradient: Tensor) -> Tensor {
        let mut sum = gradient;
        let earlier = self.slice.iter_mut().chain(self.branches.iter_mut().rev().map(|(_, b)| b));
        for tensors in earlier {
            let empty = Tensor::zeros(&[0], tensor::Dtype::F32);
            let before = std::mem::replace(&mut tensors[parameter], empty);
            sum::add_all(std::iter::once((&mut sum, &before)));
        }
        sum
    }

    /// Returns the complete sums after the last slice was closed.
    pub fn whole(mut self) -> Vec<Tensor> {
        self.branches.pop().map(|(_, sum)| sum).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn training(batch: u64, deterministic: bool) -> Training {
        let text = format!("{{updates: 1, batch_size: {batch}, deterministic: {deterministic}}}");
        serde_yaml::from_str(&text).unwrap()
    }

    #[test]
    fn deterministic_slices_depend_on_the_batch_size_alone() {
        let of = |batch, rank, ranks| MicroBatches::new(&training(batch, true), rank, ranks);
        assert_eq!(
            of(48, 0, 1).unwrap(),
            MicroBatches { total: 8, first: 0, per_rank: 8, samples: 6 }
        );
        assert_eq!(
            of(48, 3, 4).unwrap(),
            MicroBatches { total: 8, first: 6, per_rank: 2, samples: 6 }
        );
        assert_eq!(
            of(6, 1, 2).unwrap(),
            MicroBatches { total: 2, first: 1, per_rank: 1, samples: 3 }
        );
        assert_eq!(
            of(7, 0, 1).unwrap(),
            MicroBatches { total: 1, first: 0, per_rank: 1, samples: 7 }
        );
        for (batch, ranks) in [(48, 3), (6, 4), (7, 2), (48, 16)] {
            let error = of(batch, 0, ranks).unwrap_err();
            assert!(error.to_string().contains("training.deterministic"), "{error}");
        }
        let of = |batch, rank, ranks| MicroBatches::new(&training(batch, false), rank, ranks);
        assert_eq!(
            of(48, 2, 3).unwrap(),
            MicroBatches { total: 3, first: 2, per_rank: 1, samples: 16 }
        );
        assert!(of(7, 0, 2).unwrap_err().to_string().contains("shared equally by 2 ranks"));
    }

    #[test]
    fn ranks_together_compute_what_one_does() {
        let positions = |ranks: usize| {
            let of_rank = |rank| {
                let slices = MicroBatches::new(&training(48, true), rank, ranks).unwrap();
                let count = 3 * slices.per_rank * 2;
                (0..count).map(move |n| slices.position(n, 2)).collect::<Vec<_>>()
            };
            let mut all: Vec<_> = (0..ranks).flat_map(of_rank).collect();
            all.sort_unstable();
            all
        };
        let expected: Vec<_> = (0..6).flat_map(|p| (0..8).map(move |o| (p, 6 * o))).collect();
        for ranks in [1, 2, 4, 8] {
            assert_eq!(positions(ranks), expected, "{ranks}");
        }
        let slices = MicroBatches::new(&training(16, false), 0, 1).unwrap();
        assert_eq!([0, 1, 5].map(|n| slices.position(n, 1)), [(0, 0), (1, 0), (5, 0)]);
    }

    /// Values whose sum depends on the order of addition.
    fn term(slice: u32, micro_batch: u32) -> Tensor {
        let n = (slice * 7 + micro_batch * 3 + 1) as f32;
        Tensor::from_slice(&[1.0 / n, 1e7 / (n + 0.3), -0.1 * n.powi(5)], &[3])
    }

    fn sum(slices: std::ops::Range<u32>, piecewise: bool) -> Vec<f32> {
        let mut tree = Tree::default();
        let last = slices.end - 1;
        for slice in slices {
            for micro_batch in 0..3 {
                if piecewise && slice == last && micro_batch == 2 {
                    return tree.finish(0, term(slice, micro_batch)).read::<f32>().to_vec();
                }
                tree.add(vec![term(slice, micro_batch)]);
            }
            tree.close();
        }
        tree.whole()[0].read::<f32>().to_vec()
    }

    #[test]
    fn branches_of_ranks_make_the_tree_of_one() {
        let bits = |v: Vec<f32>| v.into_iter().map(f32::to_bits).collect::<Vec<_>>();
        let plus =
            |a: Vec<f32>, b: Vec<f32>| a.iter().zip(&b).map(|(a, b)| a + b).collect::<Vec<_>>();
        for piecewise in [false, true] {
            let one = bits(sum(0..8, piecewise));
            assert_eq!(bits(plus(sum(0..4, piecewise), sum(4..8, piecewise))), one);
            let four: Vec<_> = (0..4).map(|r| sum(2 * r..2 * r + 2, piecewise)).collect();
            let [a, b, c, d] = four.try_into().unwrap();
            assert_eq!(bits(plus(plus(a, b), plus(c, d))), one);
        }
        assert_eq!(bits(sum(0..8, true)), bits(sum(0..8, false)));
        assert_eq!(bits(sum(3..4, true)), bits(sum(3..4, false)));
    }
}
