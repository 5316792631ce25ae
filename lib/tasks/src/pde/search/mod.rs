//! Test-time search: at every step of a rollout several candidates are drawn, and one is chosen by a reward that either
//! uses the equation or was trained to score candidates, but does not use the ground truth.
//!
//! With a horizon above 1 the search looks ahead: the paths of candidates with the highest discounted rewards are
//! extended step by step, and the first candidate of the best path is chosen (beam search with a receding horizon).
//! Rollouts are searched independently: the result of one does not depend on the others.

use serde::{Deserialize, Serialize};
use unix::Result;

/// The parameters of a search.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Search {
    /// Number of candidates per state, K.
    pub candidates: usize,
    /// Number of paths that are extended, B.
    pub beam: usize,
    /// Number of steps of a path, H.
    pub horizon: usize,
    /// Maximum number of scored candidates per rollout. If fewer than K are left, one candidate is used unscored.
    pub budget: Option<usize>,
    /// Do not look ahead if the reward of the best candidate exceeds the second best by at least this margin.
    pub margin: Option<f64>,
    /// Discount factor of the reward for every further step.
    pub discount: f64,
    /// The reward of a step.
    pub reward: Reward,
    /// Weight of the penalties for states that the equation cannot reach, which are subtracted from the reward.
    pub penalty: f64,
}

/// The reward of a step between two states.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    Serialize,
    Deserialize,
    clap::ValueEnum,
    strum::Display,
)]
#[strum(serialize_all = "lowercase")]
#[serde(rename_all = "lowercase")]
pub enum Reward {
    /// The residual of the discretised equation by the trapezoidal rule: cheap, and blind to small errors.
    #[default]
    Residual,
    /// The distance to the solution from the earlier state: exact, and as expensive as a solver.
    Solver,
    /// The error that a trained critic predicts, in units of the normalised latents.
    Critic,
}

/// Searches of common sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, strum::Display)]
#[strum(serialize_all = "lowercase")]
pub enum Preset {
    /// 4 candidates, one step ahead.
    Default,
    /// 8 candidates, two steps ahead with 3 paths.
    Enhanced,
    /// 16 candidates, two steps ahead with 5 paths.
    Aggressive,
}

impl Preset {
    /// Returns the search of the preset.
    pub fn search(self) -> Search {
        let (candidates, beam, horizon) = match self {
            Self::Default => (4, 1, 1),
            Self::Enhanced => (8, 3, 2),
            Self::Aggressive => (16, 5, 2),
        };
        let (budget, margin, discount, penalty) = (None, None, 1.0, 0.0);
        let reward = Reward::default();
        Search { candidates, beam, horizon, budget, margin, discount, reward, penalty }
    }
}

/// A state from which a rollout continues.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Index of the rollout in the batch.
    pub rollout: usize,
    /// The latent state.
    pub latent: Vec<f32>,
    /// The decoded state.
    pub field: Vec<f32>,
}

/// The source of candidates and rewards.
pub trait World: Sync {
    /// Draws `count` candidates for the next state of each node. `step` is the step of the rollouts. The candidates of
    /// a node are numbered consecutively from its entry in `numbers`; their noise only depends on rollout, step and
    /// number.
    fn candidates(
        &self,
        nodes: &[Node],
        step: usize,
        numbers: &[u64],
        count: usize,
    ) -> Result<Vec<Vec<Node>>>;

    /// Decodes the latents of `nodes`.
    fn decode(&self, nodes: &mut [Node]) -> Result<()>;

    /// Returns the rewards of rollout steps, each between two decoded states; larger is better. Each reward is
    /// independent of the others.
    fn rewards(&self, steps: &[(&Node, &Node)]) -> Result<Vec<f64>>;
}

/// The rule by which the next state is chosen among the candidates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The candidate with the best path of the search.
    Reward,
    /// The candidate nearest to the ground truth, which a perfect reward would choose without looking ahead.
    Oracle,
    /// The mean of the candidates in latent space.
    Mean,
}

/// The result of searching one rollout.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Searched {
    /// The states from step 1 on.
    pub states: Vec<Node>,
    /// Number of candidates that were drawn.
    pub drawn: usize,
    /// Number of states from which candidates were drawn.
    pub expanded: usize,
    /// Number of candidates that were scored by a reward.
    pub scored: usize,
    /// Reward and error of the candidates of every searched step, for rank correlations.
    pub candidates: Vec<Vec<[f64; 2]>>,
}

/// A path of the beam: the index of its first candidate, its last state and its discounted reward.
#[derive(Clone)]
struct Path {
    first: usize,
    end: Node,
    total: f64,
}

/// Returns the RMS of the difference.
fn distance(a: &[f32], b: &[f32]) -> f64 {
    let squares = a.iter().zip(b).map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2));
    (squares.sum::<f64>() / a.len() as f64).sqrt()
}

/// Returns the index of the largest value, the first one in case of ties; NaN is chosen only if all values are NaN.
fn best(values: impl Iterator<Item = f64>) -> usize {
    let better = |(a, x): (usize, f64), (b, y): (usize, f64)| {
        if y > x || x.is_nan() && !y.is_nan() { (b, y) } else { (a, x) }
    };
    values.enumerate().reduce(better).map_or(0, |(at, _)| at)
}

impl Search {
    /// Rolls out the initial states `nodes` for `steps` steps. `truth(rollout, step)` is the true field; with
    /// [`Choice::Reward`] it is only used for [`Searched::candidates`].
    pub fn rollout<'a>(
        &self,
        world: &impl World,
        mut nodes: Vec<Node>,
        steps: usize,
        choice: Choice,
        truth: impl Fn(usize, usize) -> &'a [f32] + Sync,
    ) -> Result<Vec<Searched>> {
        let mut all = vec![Searched::default(); nodes.len()];
        for step in 0..steps {
            let affords = |own: &Searched, count: usize| {
                choice != Choice::Reward
                    || self.budget.is_none_or(|most| own.scored + count <= most)
            };
            let (searching, others): (Vec<usize>, Vec<usize>) =
                (0..nodes.len()).partition(|at| affords(&all[*at], self.candidates));
            for (group, count) in [(searching, self.candidates), (others, 1)] {
                let from: Vec<Node> = group.iter().map(|at| nodes[*at].clone()).collect();
                let mut drawn = world.candidates(&from, step, &vec![0; from.len()], count)?;
                world_decode(world, &mut drawn)?;
                let mut beams = match choice == Choice::Reward && count > 1 {
                    true => rewards(world, &from, &drawn)?,
                    false => vec![Vec::new(); drawn.len()],
                };
                for ((at, rewards), candidates) in group.iter().zip(&beams).zip(&drawn) {
                    let own = &mut all[*at];
                    own.drawn += count;
                    own.expanded += 1;
                    if !rewards.is_empty() {
                        own.scored += count;
                        let error = |to: &Node| distance(&to.field, truth(to.rollout, step + 1));
                        let errors = candidates.iter().map(error);
                        own.candidates
                            .push(rewards.iter().zip(errors).map(|(r, e)| [*r, e]).collect());
                    }
                }
                if choice == Choice::Reward && count > 1 {
                    self.look_ahead(world, (&drawn, &mut beams), step, &group, &mut all)?;
                }
                for (number, (at, candidates)) in group.into_iter().zip(drawn).enumerate() {
                    let next = match choice {
                        Choice::Reward => candidates[best(beams[number].iter().copied())].clone(),
                        Choice::Mean => mean(world, &candidates)?,
                        Choice::Oracle => {
                            let to = truth(candidates[0].rollout, step + 1);
                            let errors = candidates.iter().map(|own| -distance(&own.field, to));
                            candidates[best(errors)].clone()
                        }
                    };
                    all[at].states.push(next.clone());
                    nodes[at] = next;
                }
            }
        }
        Ok(all)
    }

    /// Where a search looks ahead, replaces the rewards of candidates by the totals of the best paths that start with
    /// them. `group` contains the rollout of each set of candidates.
    fn look_ahead(
        &self,
        world: &impl World,
        (drawn, totals): (&[Vec<Node>], &mut [Vec<f64>]),
        step: usize,
        group: &[usize],
        all: &mut [Searched],
    ) -> Result<()> {
        let cost = self.beam * self.candidates;
        let mut beams: Vec<(usize, Vec<Path>)> = Vec::new();
        for (at, (candidates, rewards)) in drawn.iter().zip(&*totals).enumerate() {
            let path = |first: usize| Path {
                first,
                end: candidates[first].clone(),
                total: rewards[first],
            };
            let mut paths: Vec<Path> = (0..candidates.len()).map(path).collect();
            keep(&mut paths, self.beam.max(2));
            let margin = paths[0].total - paths.get(1).map_or(f64::NEG_INFINITY, |path| path.total);
            if self.margin.is_none_or(|enough| margin < enough) {
                paths.truncate(self.beam);
                beams.push((at, paths));
            }
        }
        let mut factor = 1.0;
        for depth in 1..self.horizon {
            factor *= self.discount;
            let affords = |(at, _): &(usize, Vec<Path>)| {
                self.budget.is_none_or(|most| all[group[*at]].scored + cost <= most)
            };
            beams.retain(affords);
            let ends =
                beams.iter().flat_map(|(_, paths)| paths.iter().map(|path| path.end.clone()));
            let ends: Vec<Node> = ends.collect();
            // The candidates of each path have distinct numbers.
            let first = |place: usize| (place * self.candidates) as u64;
            let numbers: Vec<u64> =
                beams.iter().flat_map(|(_, paths)| (0..paths.len()).map(first)).collect();
            let mut next = world.candidates(&ends, step + depth, &numbers, self.candidates)?;
            world_decode(world, &mut next)?;
            let rewards = rewards(world, &ends, &next)?;
            let mut next = next.into_iter().zip(rewards);
            for (at, paths) in &mut beams {
                let mut longer = Vec::new();
                for (path, (candidates, rewards)) in paths.iter().zip(&mut next) {
                    all[group[*at]].expanded += 1;
                    all[group[*at]].drawn += candidates.len();
                    all[group[*at]].scored += candidates.len();
                    longer.extend(candidates.into_iter().zip(rewards).map(|(end, reward)| Path {
                        first: path.first,
                        end,
                        total: path.total + factor * reward,
                    }));
                }
                keep(&mut longer, self.beam);
                *paths = longer;
                // Only candidates with a path of this length are compared.
                let own = &mut totals[*at];
                own.fill(f64::NEG_INFINITY);
                for path in paths.iter() {
                    own[path.first] = own[path.first].max(path.total);
                }
            }
        }
        Ok(())
    }
}

/// Keeps the `count` best paths, sorted from best to worst.
fn keep(paths: &mut Vec<Path>, count: usize) {
    let rank = |path: &Path| if path.total.is_nan() { f64::NEG_INFINITY } else { path.total };
    paths.sort_by(|a, b| rank(b).total_cmp(&rank(a)));
    paths.truncate(count);
}

/// Decodes the candidates of all nodes in one batch.
fn world_decode(world: &impl World, drawn: &mut [Vec<Node>]) -> Result<()> {
    let sizes: Vec<usize> = drawn.iter().map(Vec::len).collect();
    let mut all: Vec<Node> = drawn.iter_mut().flat_map(std::mem::take).collect();
    world.decode(&mut all)?;
    let mut all = all.into_iter();
    drawn.iter_mut().zip(sizes).for_each(|(own, size)| own.extend(all.by_ref().take(size)));
    Ok(())
}

/// Computes the rewards of all candidates of all states in one batch.
fn rewards(world: &impl World, from: &[Node], drawn: &[Vec<Node>]) -> Result<Vec<Vec<f64>>> {
    let of_state = |(from, to)| std::iter::repeat(from).zip(to);
    let steps: Vec<(&Node, &Node)> = from.iter().zip(drawn).flat_map(of_state).collect();
    let mut all = world.rewards(&steps)?.into_iter();
    Ok(drawn.iter().map(|to| all.by_ref().take(to.len()).collect()).collect())
}

/// Returns the mean of the candidates in latent space, decoded.
fn mean(world: &impl World, candidates: &[Node]) -> Result<Node> {
    let mut mean = candidates[0].clone();
    for (at, value) in mean.latent.iter_mut().enumerate() {
        let sum: f64 = candidates.iter().map(|own| f64::from(own.latent[at])).sum();
        *value = (sum / candidates.len() as f64) as f32;
    }
    world.decode(std::slice::from_mut(&mut mean))?;
    Ok(mean)
}

#[cfg(test)]
mod tests;
