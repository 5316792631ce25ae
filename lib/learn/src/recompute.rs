//! Activation checkpointing: decides which blocks keep the activations for their backward pass and which recompute them
//! (`training.mem_budget`).
//!
//! The first forward pass recomputes every block and measures the bytes that the block would keep and the cost of
//! recomputing it in floating-point operations. A 0-1 knapsack then spends the memory budget on the blocks that are
//! most expensive to recompute. The result is bit-identical for every choice ([`tensor::Tape::recomputed`]).

use serde::Serialize;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;

/// Resolution of the knapsack capacity: the budget is used to within one step and never exceeded.
const STEPS: usize = 4096;

/// Memory and recomputation cost of one block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Block {
    /// Bytes of activations that the block keeps for its backward pass.
    pub bytes: usize,
    /// Floating-point operations needed to recompute the block.
    pub operations: usize,
}

/// Treatment of a block in the forward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Keep its activations.
    Keep,
    /// Keep only its inputs, and recompute its activations.
    Again,
    /// Keep only its inputs, recompute its activations, and measure its cost.
    Measure,
}

/// Plan of which blocks keep their activations and which are recomputed.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RecomputePlan {
    /// All blocks of a forward pass, in execution order.
    pub blocks: Vec<Block>,
    /// Whether each block keeps its activations.
    pub keep: Vec<bool>,
}

impl RecomputePlan {
    /// Computes the plan that keeps at most the fraction `budget` (0 to 1) of all bytes and recomputes the fewest
    /// operations.
    pub fn new(blocks: Vec<Block>, budget: f64) -> Self {
        let total: usize = blocks.iter().map(|b| b.bytes).sum();
        if budget >= 1.0 || total == 0 {
            return Self { keep: vec![true; blocks.len()], blocks };
        }
        let step = total.div_ceil(STEPS).max(1);
        let capacity = (budget * total as f64) as usize / step;
        // most[i][c]: maximum number of operations saved among the last i blocks with a capacity of c steps.
        let mut most = vec![vec![0; capacity + 1]];
        for block in blocks.iter().rev() {
            let size = block.bytes.div_ceil(step);
            let last = &most[most.len() - 1];
            let row = (0..=capacity).map(|c| match c.checked_sub(size) {
                Some(rest) => last[c].max(last[rest] + block.operations),
                None => last[c],
            });
            let row = row.collect();
            most.push(row);
        }
        // Of equal blocks the last ones are kept, which the backward pass frees before it computes others again.
        let (mut keep, mut left) = (vec![false; blocks.len()], capacity);
        for (i, block) in blocks.iter().enumerate() {
            let others = blocks.len() - i - 1;
            if most[others + 1][left] != most[others][left] {
                keep[i] = true;
                left -= block.bytes.div_ceil(step);
            }
        }
        // Sizes were rounded up, so another block may fit: two of four equal ones do.
        let kept = blocks.iter().zip(&keep).filter(|(_, keep)| **keep);
        let kept: usize = kept.map(|(block, _)| block.bytes).sum();
        let mut room = ((budget * total as f64) as usize).saturating_sub(kept);
        let mut others: Vec<usize> = (0..blocks.len()).filter(|i| !keep[*i]).collect();
        others.sort_by_key(|i| std::cmp::Reverse((blocks[*i].operations, *i)));
        for i in others {
            if let Some(rest) = room.checked_sub(blocks[i].bytes) {
                (keep[i], room) = (true, rest);
            }
        }
        Self { blocks, keep }
    }

    /// Bytes kept, and total bytes of all blocks.
    pub fn bytes(&self) -> (usize, usize) {
        let kept = self.blocks.iter().zip(&self.keep).filter(|(_, keep)| **keep);
        (kept.map(|(b, _)| b.bytes).sum(), self.blocks.iter().map(|b| b.bytes).sum())
    }

    /// Number of operations recomputed, and total number of operations of all blocks.
    pub fn flops(&self) -> (usize, usize) {
        let again = self.blocks.iter().zip(&self.keep).filter(|(_, keep)| !**keep);
        let all = self.blocks.iter().map(|b| b.operations).sum();
        (again.map(|(b, _)| b.operations).sum(), all)
    }
}

/// A named part of a forward pass that is traced.
#[derive(Debug)]
struct Part {
    name: &'static str,
    /// Bytes that it keeps, without those of its blocks if they are measured.
    bytes: usize,
    /// Its blocks.
    blocks: Range<usize>,
}

#[derive(Debug, Default)]
struct State {
    /// The plan of each variant of the forward pass ([`crate::task::Batch::variant`]).
    plans: BTreeMap<u32, RecomputePlan>,
    /// Variant of this or the last forward pass.
    variant: u32,
    measured: Vec<Block>,
    /// Blocks seen so far in this forward pass.
    met: usize,
    /// Parts of all forward passes that are traced.
    parts: Vec<Part>,
}

/// State of activation checkpointing during a run.
#[derive(Debug)]
pub struct Recompute {
    budget: f64,
    state: RefCell<State>,
}

impl Recompute {
    /// Creates the state. A budget of 0 recomputes every block, a budget of 1 none.
    pub fn new(budget: f64) -> Self {
        Self { budget, state: RefCell::default() }
    }

    /// Whether any block may be recomputed.
    pub(crate) fn is_on(&self) -> bool {
        self.budget < 1.0
    }

    /// Chooses how to treat the next block of this forward pass.
    pub(crate) fn choose(&self) -> Choice {
        if !self.is_on() {
            return Choice::Keep;
        }
        let mut state = self.state.borrow_mut();
        state.met += 1;
        match state.plans.get(&state.variant) {
            None => Choice::Measure,
            Some(plan) if plan.keep.get(state.met - 1) == Some(&true) => Choice::Keep,
            Some(_) => Choice::Again,
        }
    }

    /// Records the measured cost of a block.
    pub(crate) fn note(&self, block: Block) {
        self.state.borrow_mut().measured.push(block);
    }

    /// Runs a named part of a forward pass that is traced, and records the bytes that it keeps.
    pub(crate) fn part<R>(&self, name: &'static str, work: impl FnOnce() -> R) -> R {
        let now = || (tensor::memory::usage().live, self.state.borrow().met);
        let (before, first) = now();
        let result = work();
        let (after, end) = now();
        let bytes = after.saturating_sub(before);
        self.state.borrow_mut().parts.push(Part { name, bytes, blocks: first..end });
        result
    }

    /// The names of the parts of a traced forward pass, and the bytes that each keeps by the plan.
    pub(crate) fn parts(&self) -> Vec<(&'static str, f64)> {
        let plan = self.plan().unwrap_or_default();
        let kept =
            |i: usize| if plan.keep.get(i) == Some(&true) { plan.blocks[i].bytes } else { 0 };
        let bytes = |own: &Part| own.bytes + own.blocks.clone().map(kept).sum::<usize>();
        self.state.borrow().parts.iter().map(|own| (own.name, bytes(own) as f64)).collect()
    }

    /// Begins a forward pass of a variant, which has its own blocks.
    pub(crate) fn begin_pass(&self, variant: u32) {
        self.state.borrow_mut().variant = variant;
    }

    /// Ends a forward pass: makes the plan, or discards it when the number of blocks has changed (e.g. a longer
    /// rollout).
    pub fn end_pass(&self) {
        let state = &mut *self.state.borrow_mut();
        let met = std::mem::take(&mut state.met);
        let measured = std::mem::take(&mut state.measured);
        match state.plans.entry(state.variant) {
            Entry::Vacant(none) if met > 0 => {
                none.insert(RecomputePlan::new(measured, self.budget));
            }
            Entry::Occupied(plan) if plan.get().keep.len() != met => drop(plan.remove()),
            _ => {}
        }
    }

    /// Returns the plan of the last forward pass; None until it has been made.
    pub fn plan(&self) -> Option<RecomputePlan> {
        self.plan_of(self.state.borrow().variant)
    }

    /// Returns the plan of a variant; None until it has been made.
    pub(crate) fn plan_of(&self, variant: u32) -> Option<RecomputePlan> {
        self.state.borrow().plans.get(&variant).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Finds the optimum by exhaustive search.
    fn best(blocks: &[Block], capacity: usize) -> usize {
        let sum = |of: fn(&Block) -> usize, set: usize| -> usize {
            let chosen = blocks.iter().enumerate().filter(|(i, _)| set >> i & 1 == 1);
            chosen.map(|(_, b)| of(b)).sum()
        };
        let fits = (0..1 << blocks.len()).filter(|set| sum(|b| b.bytes, *set) <= capacity);
        fits.map(|set| sum(|b| b.operations, set)).max().unwrap_or(0)
    }

    #[test]
    fn the_plan_is_the_best_there_is_and_never_beyond_the_budget() {
        let random = tensor::random::Philox::new(7, tensor::random::Purpose::Test);
        for trial in 0..50 {
            // Sizes are multiples of one step, so the plan can reach the optimum.
            let blocks: Vec<Block> = (0..10)
                .map(|i| Block {
                    bytes: 1 + random.below(trial, 2 * i, 99) as usize,
                    operations: random.below(trial, 2 * i + 1, 1000) as usize,
                })
                .collect();
            let total: usize = blocks.iter().map(|b| b.bytes).sum();
            for budget in [0.0, 0.2, 0.5, 0.9, 1.0] {
                let plan = RecomputePlan::new(blocks.clone(), budget);
                let capacity = (budget * total as f64) as usize;
                assert!(plan.bytes().0 <= capacity);
                let (again, all) = plan.flops();
                assert_eq!(all - again, best(&blocks, capacity), "{budget} {blocks:?}");
            }
        }
    }

    #[test]
    fn half_of_equal_blocks_is_kept_whatever_their_size() {
        for bytes in [1, 4096, 4099, 5_219_123] {
            let blocks = vec![Block { bytes, operations: 7 }; 4];
            let plan = RecomputePlan::new(blocks, 0.5);
            assert_eq!(plan.keep, [false, false, true, true], "{bytes}");
        }
    }

    #[test]
    fn large_blocks_stay_within_the_budget_too() {
        let blocks: Vec<Block> =
            (1..40).map(|i| Block { bytes: 1_000_003 * i, operations: i * i }).collect();
        for budget in [0.1, 0.35, 0.77] {
            let plan = RecomputePlan::new(blocks.clone(), budget);
            let (kept, all) = plan.bytes();
            assert!(
                kept as f64 <= budget * all as f64 && kept as f64 > (budget - 0.06) * all as f64
            );
        }
    }
}
