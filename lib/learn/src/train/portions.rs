//! How the samples of a pass are divided among ranks, and how gradients of the parts become one sum.
//!
//! The samples of a pass fall into portions of equal size, one after the other. A rank computes its
//! portions one by one; the sum over portions is a binary tree, of which a rank has a branch and
//! [`dist`] the rest. With `training.deterministic` there are as many portions whatever the number of
//! ranks, hence the same tree and the same bits; else each rank has one.

use super::learner;
use crate::config::Training;
use tensor::Tensor;
use unix::{Error, Result};

/// Most portions of `training.deterministic`: so many ranks can share the work.
const MOST: u64 = 8;

/// The portions of one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Portions {
    /// Portions of all ranks.
    pub all: u64,
    /// The first of this rank.
    pub first: u64,
    /// How many this rank has, one after the other.
    pub mine: u64,
    /// Samples of each.
    pub samples: u64,
}

impl Portions {
    /// The portions of `rank` among `ranks`. Errors: 78 when the batch cannot be divided so.
    pub fn new(training: &Training, rank: usize, ranks: usize) -> Result<Self> {
        let (batch, rank, ranks) = (training.batch_size, rank as u64, ranks as u64);
        let all = match training.deterministic {
            // The largest power of two that divides the batch, up to the limit.
            true => 1 << batch.trailing_zeros().min(MOST.trailing_zeros()),
            false => ranks,
        };
        if !all.is_multiple_of(ranks) {
            return Err(Error::config(format!(
                "training.deterministic: {batch} samples of training.batch_size make {all} equal \
                 portions, which {ranks} ranks cannot share: start a number of ranks that divides {all}"
            )));
        }
        if !batch.is_multiple_of(all) {
            return Err(Error::config(format!(
                "training.batch_size: {batch} samples cannot be shared equally by {ranks} ranks; \
                 it counts the samples of all ranks together"
            )));
        }
        let mine = all / ranks;
        Ok(Self { all, first: rank * mine, mine, samples: batch / all })
    }

    /// What the `count`-th computation of this rank is: the pass, and the place of its first sample among
    /// those of the pass. All passes of an update are computed for one portion before the next.
    pub fn computation(&self, count: u64, accumulation: u64) -> (u64, u64) {
        let of_update = self.mine * accumulation;
        let (update, at) = (count / of_update, count % of_update);
        let (portion, pass) = (at / accumulation, at % accumulation);
        (update * accumulation + pass, (self.first + portion) * self.samples)
    }
}

/// The sum over the passes and portions of a rank in an update: passes in order, portions in a tree.
#[derive(Default)]
pub struct Tree {
    /// Sums of 2^level portions, levels falling.
    branches: Vec<(u32, Vec<Tensor>)>,
    /// The sum over the passes so far of the portion at hand.
    portion: Option<Vec<Tensor>>,
}

impl Tree {
    /// Adds a pass of the portion at hand.
    pub fn add(&mut self, gradients: Vec<Tensor>) {
        match &mut self.portion {
            None => self.portion = Some(gradients),
            Some(sum) => learner::accumulate(sum, &gradients),
        }
    }

    /// Ends the portion at hand.
    pub fn close(&mut self) {
        let Some(mut sum) = self.portion.take() else { return };
        let mut level = 0;
        while let Some((_, mut before)) = self.branches.pop_if(|(l, _)| *l == level) {
            learner::accumulate(&mut before, &sum);
            (sum, level) = (before, level + 1);
        }
        self.branches.push((level, sum));
    }

    /// Adds the gradient of one parameter in the last pass of the last portion, and takes the whole sum
    /// of that parameter out, in the memory of that gradient. Which of two numbers is added to the other
    /// changes no bit.
    pub fn finish(&mut self, parameter: usize, gradient: Tensor) -> Tensor {
        let mut sum = gradient;
        let earlier = self.portion.iter_mut().chain(self.branches.iter_mut().rev().map(|(_, b)| b));
        for tensors in earlier {
            let empty = Tensor::zeros(&[0], tensor::Dtype::F32);
            let before = std::mem::replace(&mut tensors[parameter], empty);
            learner::accumulate(std::slice::from_mut(&mut sum), std::slice::from_ref(&before));
        }
        sum
    }

    /// The whole sum, after the last portion was closed.
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
    fn portions_follow_from_the_batch_where_bits_must_not_depend_on_ranks() {
        let of = |batch, rank, ranks| Portions::new(&training(batch, true), rank, ranks);
        assert_eq!(of(48, 0, 1).unwrap(), Portions { all: 8, first: 0, mine: 8, samples: 6 });
        assert_eq!(of(48, 3, 4).unwrap(), Portions { all: 8, first: 6, mine: 2, samples: 6 });
        assert_eq!(of(6, 1, 2).unwrap(), Portions { all: 2, first: 1, mine: 1, samples: 3 });
        assert_eq!(of(7, 0, 1).unwrap(), Portions { all: 1, first: 0, mine: 1, samples: 7 });
        for (batch, ranks) in [(48, 3), (6, 4), (7, 2), (48, 16)] {
            let error = of(batch, 0, ranks).unwrap_err();
            assert!(error.to_string().contains("training.deterministic"), "{error}");
        }
        let of = |batch, rank, ranks| Portions::new(&training(batch, false), rank, ranks);
        assert_eq!(of(48, 2, 3).unwrap(), Portions { all: 3, first: 2, mine: 1, samples: 16 });
        assert!(of(7, 0, 2).unwrap_err().to_string().contains("shared equally by 2 ranks"));
    }

    #[test]
    fn ranks_together_compute_what_one_does() {
        let computations = |ranks: usize| {
            let of_rank = |rank| {
                let portions = Portions::new(&training(48, true), rank, ranks).unwrap();
                let count = 3 * portions.mine * 2;
                (0..count).map(move |n| portions.computation(n, 2)).collect::<Vec<_>>()
            };
            let mut all: Vec<_> = (0..ranks).flat_map(of_rank).collect();
            all.sort_unstable();
            all
        };
        let expected: Vec<_> = (0..6).flat_map(|p| (0..8).map(move |o| (p, 6 * o))).collect();
        for ranks in [1, 2, 4, 8] {
            assert_eq!(computations(ranks), expected, "{ranks}");
        }
        let portions = Portions::new(&training(16, false), 0, 1).unwrap();
        assert_eq!([0, 1, 5].map(|n| portions.computation(n, 1)), [(0, 0), (1, 0), (5, 0)]);
    }

    /// Numbers whose sum depends on the order of adding.
    fn term(portion: u32, pass: u32) -> Tensor {
        let n = (portion * 7 + pass * 3 + 1) as f32;
        Tensor::of(&[1.0 / n, 1e7 / (n + 0.3), -0.1 * n.powi(5)], &[3])
    }

    fn sum(portions: std::ops::Range<u32>, piecewise: bool) -> Vec<f32> {
        let mut tree = Tree::default();
        let last = portions.end - 1;
        for portion in portions {
            for pass in 0..3 {
                if piecewise && portion == last && pass == 2 {
                    return tree.finish(0, term(portion, pass)).read::<f32>().to_vec();
                }
                tree.add(vec![term(portion, pass)]);
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
