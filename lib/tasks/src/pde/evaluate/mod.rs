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
mod scores;
pub(crate) mod spectrum;

pub use batch::{Batch, Frames, Space};
pub use errors::{Errors, Quantities};
pub use partial::Partial;
pub use plan::{Plan, RegimePlan, Request, Start};
pub use protocol::{Protocol, Trained};
pub use report::{metrics_csv, metrics_json, rows, summary};
pub use scores::{Model, Scores};
pub use spectrum::{BANDS, Spectrum, in_bands};

use crate::TrainedModel;
use data::fields::parameter::Parameter;
use data::fields::split_set::TrajectorySet;
use learn::score::Bits;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use unix::Result;

/// States computed per batch of rollouts.
const BATCH: usize = 1024;

/// The results for one parameter value.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Regime {
    /// The parameter value.
    pub parameter: Parameter,
    /// Number of trajectories.
    pub trajectories: usize,
    /// Errors of the rollouts by start frame, in the order of the plan.
    pub by_start: Vec<Scores>,
    /// Sum over rollouts of the spectrum (mean square by wave number) of the last state: of the ground truth, and of
    /// the prediction.
    pub spectra: [Vec<Bits>; 2],
    /// NRMSE of each rollout, in the order of the plan.
    nrmse: Vec<Bits>,
}

impl Regime {
    /// Number of rollouts.
    pub fn rollouts(&self) -> usize {
        self.nrmse.len()
    }

    /// Errors over all rollouts.
    pub fn scores(&self) -> Scores {
        merged(self.by_start.iter())
    }

    /// Index and NRMSE of the rollout at this quantile of the errors: 0.5 for the median, 1 for the worst.
    pub fn at_quantile(&self, quantile: f64) -> (usize, f64) {
        let mut order: Vec<_> = self.nrmse.iter().map(|nrmse| nrmse.0).enumerate().collect();
        order.sort_by(|a, b| a.1.total_cmp(&b.1));
        order[((order.len() - 1) as f64 * quantile) as usize]
    }
}

/// The result of an evaluation.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Evaluation {
    /// Steps per rollout.
    pub steps: usize,
    /// Results by parameter value, in ascending order.
    pub regimes: Vec<Regime>,
}

impl Evaluation {
    /// Number of evaluated rollouts.
    pub fn rollouts(&self) -> usize {
        self.regimes.iter().map(Regime::rollouts).sum()
    }

    /// Errors over all rollouts.
    pub fn overall(&self) -> Scores {
        merged(self.regimes.iter().flat_map(|regime| &regime.by_start))
    }
}

fn merged<'a>(all: impl Iterator<Item = &'a Scores>) -> Scores {
    let mut sum = Scores::default();
    all.for_each(|scores| sum.merge(scores));
    sum
}

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
            let waves = vec![Bits(0.0); spectrum.wave_numbers()];
            result.regimes.push(Regime {
                parameter: planned.parameter.clone(),
                trajectories: planned.trajectories.len(),
                by_start: vec![Scores::default(); plan.starts.len()],
                spectra: [waves.clone(), waves],
                nrmse: Vec::new(),
            });
        }
        let starts = plan.rollouts(planned);
        let from = result.regimes[number].rollouts();
        for starts in starts[from..].chunks((BATCH / (plan.steps + 1)).max(1)) {
            let batch = evaluator.rollouts(starts)?;
            let regime = &mut result.regimes[number];
            for (start, (scores, spectra)) in
                starts.iter().zip(measure(&batch, starts.len(), plan, &spectrum))
            {
                let nrmse = scores.nrmse(batch.field().models[0].0).unwrap_or(f64::NAN);
                regime.nrmse.push(Bits(nrmse));
                for (sum, one) in regime.spectra.iter_mut().zip(spectra) {
                    sum.iter_mut().zip(one).for_each(|(sum, energy)| sum.0 += energy);
                }
                if let Some(at) = plan.starts.iter().position(|frame| *frame == start.frame) {
                    regime.by_start[at].merge(&scores);
                }
            }
            done(&result)?;
        }
    }
    Ok(result)
}

/// The errors of every rollout of a batch, and the spectra of truth and prediction at the last step. Uses all threads.
fn measure(
    batch: &Batch,
    rollouts: usize,
    plan: &Plan,
    spectrum: &Spectrum,
) -> Vec<(Scores, [Vec<f64>; 2])> {
    let one = |rollout: usize| {
        let last = [&batch.field().truth, batch.prediction()].map(|frames| {
            let state = frames.at(rollout, plan.steps).iter().map(|u| f64::from(*u));
            spectrum.energies(state.collect())
        });
        (Scores::of(batch, rollout, plan.steps, spectrum), last)
    };
    (0..rollouts).into_par_iter().map(one).collect()
}
