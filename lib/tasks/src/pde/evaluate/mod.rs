//! Evaluation: the errors of trained models on unseen trajectories, compared with those of simple baselines.
//!
//! From every start frame of every trajectory the operator is rolled out in the latent space of its codec, and every
//! state is decoded and compared with the ground truth in physical units. The baselines are persistence, the mean of
//! the training data, and the reconstruction by the codec. A regression model is compared with the mean of the training
//! solutions and with the solution of the nearest training sample.

mod batch;
pub(crate) mod errors;
mod partial;
pub mod pictures;
mod plan;
pub(crate) mod protocol;
mod report;
mod result;
mod scores;
pub(crate) mod spectrum;
mod views;

pub use batch::{Batch, Cost, Frames, Space};
pub use errors::{Errors, Quantities};
pub use partial::Partial;
pub use plan::{Plan, RegimePlan, Request, Start};
pub use protocol::{Protocol, Trained};
pub use report::{metrics_csv, metrics_json, rows, summary, times};
pub use result::{Evaluation, Regime};
pub use scores::{Model, Scores};
pub use spectrum::{BANDS, Spectrum, in_bands};
pub use views::{Averaged, Views};

use crate::TrainedModel;
use data::fields::split_set::TrajectorySet;
use learn::score::Bits;
use rayon::prelude::*;
use result::RolloutSums;
use scores::rollout;
use unix::Result;

/// States computed per batch of rollouts.
const BATCH: usize = 1024;

/// The model and the data of an evaluation.
#[derive(Clone, Copy)]
pub struct Evaluator<'a> {
    /// The model to evaluate.
    pub model: &'a dyn TrainedModel,
    /// The test trajectories.
    pub set: &'a TrajectorySet,
    /// The training split, if a baseline needs it.
    pub train: Option<&'a TrajectorySet>,
    /// The rollouts to evaluate.
    pub plan: &'a Plan,
}

impl Evaluator<'_> {
    fn rollouts(&self, starts: &[Start]) -> Result<Batch> {
        self.model.rollouts(self.set, self.train, self.plan, starts)
    }
}

/// Runs an evaluation to the end of its plan, continuing from `result`. Calls `done` with the result so far after each
/// batch of rollouts; if it returns an error, the evaluation stops, and a later call can continue it.
pub fn evaluate(
    evaluator: &Evaluator,
    mut result: Evaluation,
    mut done: impl FnMut(&Evaluation) -> Result<()>,
) -> Result<Evaluation> {
    let plan = evaluator.plan;
    result.steps = plan.steps;
    let (grid, channels) = evaluator.model.shape();
    let spectrum = Spectrum::new(grid, channels);
    for (number, planned) in plan.regimes.iter().enumerate() {
        if result.regimes.len() == number {
            result.regimes.push(Regime {
                parameter: planned.parameter.clone(),
                trajectories: planned.trajectories.len(),
                by_start: vec![Scores::default(); plan.starts.len()],
                spectrum: Vec::new(),
                spectra: Vec::new(),
                costs: Vec::new(),
                sums: Vec::new(),
            });
        }
        let starts = plan.rollouts(planned);
        let from = result.regimes[number].rollouts();
        for starts in starts[from..].chunks((BATCH / (plan.steps + 1)).max(1)) {
            let batch = evaluator.rollouts(starts)?;
            let regime = &mut result.regimes[number];
            for (start, measured) in
                starts.iter().zip(measure(&batch, starts.len(), plan, &spectrum))
            {
                regime.sums.push(measured.sums);
                add(&mut regime.spectrum, &measured.spectrum);
                for (at, (model, energies)) in measured.spectra.iter().enumerate() {
                    if regime.spectra.len() == at {
                        regime.spectra.push((*model, Vec::new()));
                    }
                    add(&mut regime.spectra[at].1, energies);
                }
                if let Some(at) = plan.starts.iter().position(|frame| *frame == start.frame) {
                    regime.by_start[at].merge(&measured.scores);
                }
            }
            for cost in &batch.costs {
                match regime.costs.iter_mut().find(|own| own.model == cost.model) {
                    None => regime.costs.push(*cost),
                    Some(own) => {
                        own.evaluations += cost.evaluations;
                        own.denoisings += cost.denoisings;
                        own.seconds.0 += cost.seconds.0;
                        own.rewards += cost.rewards;
                        own.reward_seconds.0 += cost.reward_seconds.0;
                    }
                }
            }
            done(&result)?;
        }
    }
    Ok(result)
}

/// Adds the energies of one rollout to their sums over rollouts.
fn add(sums: &mut Vec<Bits>, energies: &[f64]) {
    sums.resize(energies.len(), Bits(0.0));
    sums.iter_mut().zip(energies).for_each(|(sum, energy)| sum.0 += energy);
}

/// The errors of one rollout, and the spectra of its last state.
struct Measured {
    scores: Scores,
    sums: RolloutSums,
    spectrum: Vec<f64>,
    spectra: Vec<(Model, Vec<f64>)>,
}

/// Measures every rollout of a batch. Uses all threads.
fn measure(batch: &Batch, rollouts: usize, plan: &Plan, spectrum: &Spectrum) -> Vec<Measured> {
    let one = |number: usize| {
        let energies = |frames: &Frames| {
            let state = frames.at(number, plan.steps).iter().map(|u| f64::from(*u));
            spectrum.energies(state.collect())
        };
        let scores = Scores::of(batch, number, plan.steps, spectrum);
        let fields = scores.iter().filter(|(space, ..)| *space == "field");
        let all: Vec<Errors> = fields.map(|(.., steps)| rollout(steps)).collect();
        Measured {
            sums: RolloutSums {
                elements: all[0].elements(),
                target: Bits(all[0].sums()[1]),
                squared: all.iter().map(|errors| Bits(errors.sums()[0])).collect(),
                variance: batch.variances.get(number).map(|variance| Bits(*variance)),
                rank_correlation: batch.rank_correlations.get(number).map(|rank| Bits(*rank)),
            },
            scores,
            spectrum: energies(&batch.field().truth),
            spectra: batch
                .predictions()
                .map(|(model, frames)| (*model, energies(frames)))
                .collect(),
        }
    };
    (0..rollouts).into_par_iter().map(one).collect()
}
