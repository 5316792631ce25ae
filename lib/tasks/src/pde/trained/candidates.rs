//! Candidates for test-time search, and their rewards: samples of a corrector or a student, or the predictions of an
//! operator for several values of the parameter.

use super::corrector::{SEED, Stage};
use super::forecast::{Forecast, Predicted};
use super::{TrainedCritic, TrainedOperator};
use crate::pde::corrector::Draws;
use crate::pde::evaluate::{Method, RolloutPlan, Start};
use crate::pde::search::{Choice, Node, Reward, Search, Searched, World};
use crate::statistics::rank_correlation;
use data::fields::solvers::physics::Physics;
use data::fields::split_set::TrajectorySet;
use rayon::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tensor::{Tensor, Var};
use unix::{Error, Result};

/// Memory limit for the fields of candidates, in bytes.
const MEMORY: usize = 256 << 20;
/// Maximum number of rows per forward pass.
const ROWS: usize = 256;

/// The candidates of a batch of rollouts, all of one regime.
pub(super) struct Candidates<'a> {
    source: Source<'a>,
    operator: &'a TrainedOperator,
    search: Search,
    /// The equation; None if neither reward nor penalty needs it.
    physics: Option<Physics>,
    /// The critic, if it is the reward, and the conditions of each rollout for critic and operator, [n, F] each.
    critic: Option<(Arc<TrainedCritic>, [Tensor; 2])>,
    /// The operator's conditions: of each rollout, [n, F], or of each guess, [K, F].
    features: Tensor,
    /// Ground truth, [n, steps + 1, points].
    truth: Vec<f32>,
    steps: usize,
    points: usize,
    /// Time spent on rewards, summed over all threads, in nanoseconds.
    nanoseconds: AtomicU64,
}

/// The source of candidates.
pub(super) enum Source<'a> {
    /// Samples of a corrector or student, with the IDs of the rollouts.
    Samples(&'a Stage, Vec<u64>),
    /// The operator, conditioned on each parameter value of the data.
    Guesses,
}

impl<'a> Candidates<'a> {
    /// Errors: 2 when there is no reward for the equation of the data.
    pub fn new(
        operator: &'a TrainedOperator,
        source: Source<'a>,
        search: Search,
        plan: &RolloutPlan,
        set: &TrajectorySet,
        starts: &[Start],
    ) -> Result<Self> {
        let (parameters, time) = (plan.parameters(set, starts), plan.time_step(set));
        let Some(field) = set.field_of(starts[0].trajectory) else {
            return Err(Error::bug("a file of the split is not open"));
        };
        let physics = match search.reward == Reward::Critic && search.penalty == 0.0 {
            true => None,
            false => Some(Physics::of(field, plan.equation, parameters[0], time)?),
        };
        let critic = match (search.reward, &plan.critic) {
            (Reward::Critic, Some(critic)) => {
                let own = critic.features_of(&parameters, time)?;
                let conditions = operator.condition().features_of(&parameters, time)?;
                Some((critic.clone(), [own, conditions]))
            }
            (Reward::Critic, None) => return Err(Error::bug("a search by a critic without one")),
            _ => None,
        };
        let points = set.shape().frame_len();
        let mut truth = vec![0.0; starts.len() * (plan.steps + 1) * points];
        for (start, rows) in starts.iter().zip(truth.chunks_exact_mut((plan.steps + 1) * points)) {
            for (step, row) in rows.chunks_exact_mut(points).enumerate() {
                let frame = plan.frame(*start, step);
                set.read_frames(start.trajectory, frame..frame + 1, row)?;
            }
        }
        let conditions = match source {
            Source::Samples(..) => parameters,
            Source::Guesses => plan.regimes.iter().map(|regime| &regime.parameter).collect(),
        };
        let features = operator.condition().features_of(&conditions, time)?;
        let (steps, nanoseconds) = (plan.steps, AtomicU64::new(0));
        Ok(Self {
            source,
            operator,
            search,
            physics,
            critic,
            features,
            truth,
            steps,
            points,
            nanoseconds,
        })
    }

    /// Returns the forecasts of the search, of the mean of the same number of candidates, and of the oracle.
    pub fn forecasts(&self) -> [Forecast<'_>; 3] {
        let all = [
            (Method::Search, Choice::Reward),
            (Method::CandidateMean, Choice::Mean),
            (Method::Oracle, Choice::Oracle),
        ];
        all.map(|(model, choice)| Forecast::new(model, move |first, _| self.rollout(first, choice)))
    }

    fn rollout(&self, first: &[f32], choice: Choice) -> Result<Predicted> {
        let ([rows, columns], dim) = self.operator.tokens();
        let width = rows * columns * dim;
        let decoded = self.operator.codec().decode(first)?;
        let node = |(rollout, (latent, field)): (usize, (&[f32], &[f32]))| Node {
            rollout,
            latent: latent.to_vec(),
            field: field.to_vec(),
        };
        let pairs = first.chunks_exact(width).zip(decoded.chunks_exact(self.points));
        let nodes: Vec<Node> = pairs.enumerate().map(node).collect();
        let truth = |rollout: usize, step: usize| {
            &self.truth[(rollout * (self.steps + 1) + step) * self.points..][..self.points]
        };
        // Rollouts are independent; as many are searched at once as the memory limit allows.
        let paths = if choice == Choice::Reward { self.search.beam.max(1) } else { 1 };
        let bytes = paths * self.search.candidates * self.points * size_of::<f32>();
        let mut found: Vec<Searched> = Vec::with_capacity(nodes.len());
        for nodes in nodes.chunks((MEMORY / bytes).max(1)) {
            found.extend(self.search.rollout(self, nodes.to_vec(), self.steps, choice, truth)?);
        }
        let mut states = Vec::with_capacity(first.len() * (self.steps + 1));
        for (first, searched) in first.chunks_exact(width).zip(&found) {
            states.extend_from_slice(first);
            searched.states.iter().for_each(|node| states.extend_from_slice(&node.latent));
        }
        let drawn: usize = found.iter().map(|searched| searched.drawn).sum();
        let expanded: usize = found.iter().map(|searched| searched.expanded).sum();
        let scored: usize = found.iter().map(|searched| searched.scored).sum();
        let [operator, denoisings] = match &self.source {
            // The operator runs once per state, for all its candidates.
            Source::Samples(stage, _) => {
                [expanded, drawn * stage.trained.model.method.evaluations()]
            }
            Source::Guesses => [drawn, 0],
        };
        let rank_correlations = match choice {
            Choice::Reward => found.iter().map(of_candidates).collect(),
            _ => Vec::new(),
        };
        let spent = Duration::from_nanos(self.nanoseconds.swap(0, Ordering::Relaxed));
        Ok(Predicted {
            states,
            evaluations: [operator as u64, denoisings as u64],
            rank_correlations,
            rewards: (scored as u64, spent.as_secs_f64() / rayon::current_num_threads() as f64),
        })
    }
}

impl Candidates<'_> {
    /// Returns the normalised latents of the nodes, [states, tokens, dim].
    fn normalised<'n>(&self, nodes: impl Iterator<Item = &'n Node>) -> Tensor {
        let ([rows, columns], dim) = self.operator.tokens();
        let mut all = Vec::new();
        for node in nodes {
            let start = all.len();
            all.resize(start + node.latent.len(), 0.0);
            self.operator.scale().apply(&node.latent, &mut all[start..]);
        }
        Tensor::from_slice(&all, &[all.len() / (rows * columns * dim), rows * columns, dim])
    }

    /// Adds the time since `began`, on `threads` threads, to the time spent on rewards.
    fn spent(&self, began: Instant, threads: usize) {
        let spent = began.elapsed().as_nanos() * threads as u128;
        self.nanoseconds.fetch_add(u64::try_from(spent).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Returns the errors that the critic predicts for steps; empty without a critic.
    fn predicted_errors(&self, steps: &[(&Node, &Node)]) -> Result<Vec<f64>> {
        let Some((critic, features)) = &self.critic else { return Ok(Vec::new()) };
        let began = Instant::now();
        let mut all = Vec::with_capacity(steps.len());
        for steps in steps.chunks(ROWS) {
            let from = self.normalised(steps.iter().map(|(from, _)| *from));
            let to = self.normalised(steps.iter().map(|(_, to)| *to));
            let conditions = [0, 1].map(|which| {
                let (of_rollout, width) = (&features[which], features[which].width());
                let rows = of_rollout.read::<f32>();
                let row = |from: &Node| &rows[from.rollout * width..][..width];
                let conditions: Vec<f32> =
                    steps.iter().flat_map(|(from, _)| row(from)).copied().collect();
                Tensor::from_slice(&conditions, &[steps.len(), width])
            });
            all.extend(critic.errors([&from, &to], [&conditions[0], &conditions[1]])?);
        }
        self.spent(began, rayon::current_num_threads());
        Ok(all)
    }

    /// Returns the conditions of `count` candidates of each node, [nodes · count, F]: the condition of the rollout, or
    /// those of the guesses in turn, starting with the first candidate's number.
    fn conditions(&self, nodes: &[Node], numbers: &[u64], count: usize) -> Tensor {
        let width = self.features.width();
        let all: Vec<&[f32]> = self.features.read::<f32>().chunks_exact(width).collect();
        let of_candidate = |node: &Node, number: u64| match &self.source {
            Source::Samples(..) => all[node.rollout],
            Source::Guesses => all[(number % all.len() as u64) as usize],
        };
        let rows = nodes.iter().zip(numbers).flat_map(|(node, first)| {
            (*first..first + count as u64).flat_map(move |number| of_candidate(node, number))
        });
        let conditions: Vec<f32> = rows.copied().collect();
        Tensor::from_slice(&conditions, &[nodes.len() * count, width])
    }
}

/// Computes the rank correlation of candidates' rewards and negative errors (Spearman), averaged over steps.
fn of_candidates(searched: &Searched) -> f64 {
    let of_step = |candidates: &Vec<[f64; 2]>| {
        let column = |at: usize| -> Vec<f64> { candidates.iter().map(|own| own[at]).collect() };
        -rank_correlation(&column(0), &column(1))
    };
    let all: Vec<f64> =
        searched.candidates.iter().map(of_step).filter(|rank| !rank.is_nan()).collect();
    all.iter().sum::<f64>() / all.len() as f64
}

impl World for Candidates<'_> {
    fn candidates(
        &self,
        nodes: &[Node],
        step: usize,
        numbers: &[u64],
        count: usize,
    ) -> Result<Vec<Vec<Node>>> {
        let ([rows, columns], dim) = self.operator.tokens();
        let width = rows * columns * dim;
        let mut all = Vec::with_capacity(nodes.len());
        let some = (ROWS / count).max(1);
        for (nodes, numbers) in nodes.chunks(some).zip(numbers.chunks(some)) {
            let copies =
                self.normalised(nodes.iter().flat_map(|node| std::iter::repeat_n(node, count)));
            let features = self.conditions(nodes, numbers, count);
            let found = match &self.source {
                Source::Samples(stage, ids) => {
                    let of_node = |(node, first): (&Node, &u64)| {
                        let (id, first) = (ids[node.rollout], *first);
                        (first..first + count as u64).map(move |number| (id, number))
                    };
                    let rows = nodes.iter().zip(numbers).flat_map(of_node).collect();
                    let draws = Draws { seed: SEED, rows };
                    self.operator.run(|frozen, operator| {
                        let operate =
                            |z: &Var, features: &Var| operator.forward(frozen, z, features);
                        stage.trained.run(|forward, correction| {
                            let z = forward.data(&copies)?;
                            let how = (step, &draws);
                            correction
                                .advance(forward, &z, &features, how, operate)?
                                .value()
                                .to_host()
                        })
                    })?
                }
                Source::Guesses => self.operator.run(|forward, operator| {
                    let (z, features) = (forward.data(&copies)?, forward.data(&features)?);
                    operator.forward(forward, &z, &features)?.value().to_host()
                })?,
            };
            let mut states = found.read::<f32>().chunks_exact(width);
            for node in nodes {
                let next = |state: &[f32]| {
                    let mut latent = vec![0.0; width];
                    self.operator.scale().invert(state, &mut latent);
                    Node { rollout: node.rollout, latent, field: Vec::new() }
                };
                all.push(states.by_ref().take(count).map(next).collect());
            }
        }
        Ok(all)
    }

    fn decode(&self, nodes: &mut [Node]) -> Result<()> {
        let latents: Vec<f32> = nodes.iter().flat_map(|node| &node.latent).copied().collect();
        let fields = self.operator.codec().decode(&latents)?;
        for (node, field) in nodes.iter_mut().zip(fields.chunks_exact(self.points)) {
            node.field = field.to_vec();
        }
        Ok(())
    }

    fn rewards(&self, steps: &[(&Node, &Node)]) -> Result<Vec<f64>> {
        let predicted = self.predicted_errors(steps)?;
        let of_step = |(number, (from, to)): (usize, &(&Node, &Node))| {
            let began = Instant::now();
            let (from, to) = (&from.field[..], &to.field[..]);
            let reward = -match (self.search.reward, &self.physics) {
                (Reward::Residual, Some(physics)) => physics.residual(from, to),
                (Reward::Solver, Some(physics)) => physics.solver_error(from, to),
                _ => predicted[number],
            };
            let penalty = match (self.search.penalty, &self.physics) {
                (factor, Some(physics)) if factor > 0.0 => factor * physics.violation(from, to),
                _ => 0.0,
            };
            self.spent(began, 1);
            reward - penalty
        };
        Ok(steps.par_iter().enumerate().map(of_step).collect())
    }
}
