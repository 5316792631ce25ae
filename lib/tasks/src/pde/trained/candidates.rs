//! The candidates of a corrector for test-time search, and their rewards.

use super::corrector::{SEED, Stage};
use super::forecast::{Forecast, Predicted};
use super::{TrainedCorrector, TrainedOperator};
use crate::pde::corrector::Draws;
use crate::pde::evaluate::{Model, Plan, Start, rank_correlation};
use crate::pde::search::{Choice, Node, Reward, Search, Searched, World};
use data::fields::solvers::physics::Physics;
use data::fields::split_set::TrajectorySet;
use tensor::{Tensor, Var};
use unix::{Error, Result};

/// Rows per forward run.
const ROWS: usize = 256;

/// The candidates of some rollouts, all of one regime.
pub(super) struct Candidates<'a> {
    stage: &'a Stage,
    operator: &'a TrainedOperator,
    search: Search,
    physics: Physics,
    /// The condition of each rollout, [n, F].
    features: Tensor,
    ids: Vec<u64>,
    /// Ground truth, [n, steps + 1, points].
    truth: Vec<f32>,
    steps: usize,
    points: usize,
}

impl<'a> Candidates<'a> {
    /// Errors: 2 when there is no reward for the equation of the data.
    pub fn new(
        model: &'a TrainedCorrector,
        search: Search,
        plan: &Plan,
        set: &TrajectorySet,
        starts: &[Start],
    ) -> Result<Self> {
        let (stage, operator) = model.parts();
        let (parameters, time) = (plan.parameters(set, starts), plan.time_step(set));
        let Some(field) = set.field_of(starts[0].trajectory) else {
            return Err(Error::bug("a file of the split is not open"));
        };
        let physics = Physics::of(field, plan.equation, parameters[0], time)?;
        let points = set.shape().frame_len();
        let mut truth = vec![0.0; starts.len() * (plan.steps + 1) * points];
        for (start, rows) in starts.iter().zip(truth.chunks_exact_mut((plan.steps + 1) * points)) {
            for (step, row) in rows.chunks_exact_mut(points).enumerate() {
                let frame = plan.frame(*start, step);
                set.read_frames(start.trajectory, frame..frame + 1, row)?;
            }
        }
        let features = operator.condition().features_of(&parameters, time)?;
        let ids = super::corrector::ids(set, starts);
        let steps = plan.steps;
        Ok(Self { stage, operator, search, physics, features, ids, truth, steps, points })
    }

    /// The search, and beside it the mean of as many candidates and the oracle.
    pub fn forecasts(&self) -> [Forecast<'_>; 3] {
        let all = [
            (Model::Search, Choice::Reward),
            (Model::CandidateMean, Choice::Mean),
            (Model::Oracle, Choice::Oracle),
        ];
        all.map(|(model, choice)| Forecast::new(model, move |first, _| self.rollout(first, choice)))
    }

    fn rollout(&self, first: &[f32], choice: Choice) -> Result<Predicted> {
        let width = first.len() / self.ids.len();
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
        let found = self.search.rollout(self, nodes, self.steps, choice, truth)?;
        let mut states = Vec::with_capacity(first.len() * (self.steps + 1));
        for (first, searched) in first.chunks_exact(width).zip(&found) {
            states.extend_from_slice(first);
            searched.states.iter().for_each(|node| states.extend_from_slice(&node.latent));
        }
        let drawn: usize = found.iter().map(|searched| searched.drawn).sum();
        let expanded: usize = found.iter().map(|searched| searched.expanded).sum();
        let denoisings = drawn * self.stage.trained.model.method.evaluations();
        let rank_correlations = match choice {
            Choice::Reward => found.iter().map(of_candidates).collect(),
            _ => Vec::new(),
        };
        Ok(Predicted {
            states,
            evaluations: [expanded as u64, denoisings as u64],
            rank_correlations,
        })
    }
}

/// Mean over the steps of Spearman's rank correlation of the rewards of candidates and their negative errors.
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
            let mut z = vec![0.0; nodes.len() * width];
            for (node, z) in nodes.iter().zip(z.chunks_exact_mut(width)) {
                self.operator.scale().apply(&node.latent, z);
            }
            let features = self.features.read::<f32>().chunks_exact(self.features.width());
            let features: Vec<&[f32]> = features.collect();
            let repeated: Vec<f32> = (nodes.iter())
                .flat_map(|node| {
                    std::iter::repeat_n(features[node.rollout], count).flatten().copied()
                })
                .collect();
            let repeated =
                Tensor::from_slice(&repeated, &[nodes.len() * count, self.features.width()]);
            let of_node = |(node, first): (&Node, &u64)| {
                let (id, first) = (self.ids[node.rollout], *first);
                (first..first + count as u64).map(move |number| (id, number))
            };
            let draws =
                Draws { seed: SEED, rows: nodes.iter().zip(numbers).flat_map(of_node).collect() };
            let copies: Vec<f32> = z
                .chunks_exact(width)
                .flat_map(|z| std::iter::repeat_n(z, count).flatten().copied())
                .collect();
            let copies = Tensor::from_slice(&copies, &[nodes.len() * count, rows * columns, dim]);
            let found = self.operator.run(|frozen, operator| {
                let operate = |z: &Var, features: &Var| operator.forward(frozen, z, features);
                self.stage.trained.run(|forward, correction| {
                    let z = forward.data(&copies)?;
                    correction
                        .advance(forward, &z, &repeated, (step, &draws), operate)?
                        .value()
                        .to_host()
                })
            })?;
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

    fn reward(&self, from: &Node, to: &Node) -> f64 {
        match self.search.reward {
            Reward::Residual => -self.physics.residual(&from.field, &to.field),
            Reward::Solver => -self.physics.solver_error(&from.field, &to.field),
        }
    }
}
