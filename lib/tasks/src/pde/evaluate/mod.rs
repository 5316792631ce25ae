//! Evaluation: what trained models do on trajectories that they have not seen, and what they are
//! worth beside the simplest of predictions.
//!
//! From every start frame of every trajectory the operator is rolled out in the latents of the codec,
//! without looking at the truth again, and every state is decoded and compared with the truth in
//! physical units. Beside it stand persistence (the start stays), the mean of the training data, and
//! the codec alone, the floor of every method on its latents.

mod batch;
pub(crate) mod errors;
pub mod pictures;
mod plan;
pub(crate) mod protocol;
mod report;
mod scores;
pub(crate) mod spectrum;

pub use batch::{Batch, Models};
pub use errors::{Errors, FieldErrors, Quantities, Sums};
pub use plan::{Plan, RegimePlan, Start};
pub use protocol::{DEFINITIONS, Protocol, Trained};
pub use report::{Row, metrics_csv, metrics_json, rows, summary};
pub use scores::{AllScores, Model, Scores};
pub use spectrum::{BANDS, Spectrum, in_bands};

use data::fields::parameter::Parameter;
use data::fields::split_set::TrajectorySet;
use rayon::prelude::*;
use scores::Means;
use unix::Result;

/// Rollouts that are made at once.
const BATCH: usize = 64;

/// The result for one parameter value.
#[derive(Clone, Debug)]
pub struct Regime {
    /// The regime.
    pub parameter: Parameter,
    /// Trajectories.
    pub trajectories: usize,
    /// Rollouts.
    pub rollouts: usize,
    /// Errors of all rollouts together.
    pub scores: AllScores,
    /// Errors of the rollouts from each start frame, in the order of the plan.
    pub by_start: Vec<AllScores>,
    /// Mean square of the states of the last step by wave number: of the truth, and of the forecast
    /// (without an operator, of the reconstruction).
    pub spectra: [Vec<f64>; 2],
    /// The rollout whose error is the median.
    pub typical: Start,
}

/// The result of an evaluation.
#[derive(Clone, Debug)]
pub struct Evaluation {
    /// Steps of a rollout.
    pub steps: usize,
    /// By parameter value, ascending.
    pub regimes: Vec<Regime>,
    /// Errors over all rollouts.
    pub overall: AllScores,
}

/// Makes the rollouts of a plan and measures them; `done` hears of rollouts as they are finished, and may
/// end it.
pub fn evaluate(
    models: Models,
    set: &TrajectorySet,
    plan: &Plan,
    mut done: impl FnMut(usize) -> Result<()>,
) -> Result<Evaluation> {
    models.codec.require_fields_of(set)?;
    let mut overall = AllScores::new(plan.steps, models.operator.is_some());
    let mut regimes = Vec::new();
    for regime in &plan.regimes {
        let starts = plan.rollouts(regime);
        let mut rollouts = Vec::new();
        for starts in starts.chunks(BATCH) {
            let batch = Batch::run(models, set, plan, starts)?;
            rollouts.extend(measure(models, &batch, starts.len(), plan.steps));
            done(starts.len())?;
        }
        let empty = AllScores::new(plan.steps, models.operator.is_some());
        let (mut scores, mut by_start) = (empty.clone(), vec![empty; plan.starts.len()]);
        let waves = spectrum_of(models).wave_numbers();
        let mut spectra = [vec![0.0; waves], vec![0.0; waves]];
        for (start, rollout) in starts.iter().zip(&rollouts) {
            scores.merge(&rollout.scores);
            if let Some(at) = plan.starts.iter().position(|frame| *frame == start.frame) {
                by_start[at].merge(&rollout.scores);
            }
            for (sum, one) in spectra.iter_mut().zip(&rollout.spectra) {
                sum.iter_mut().zip(one).for_each(|(s, e)| *s += e / starts.len() as f64);
            }
        }
        overall.merge(&scores);
        regimes.push(Regime {
            parameter: regime.parameter.clone(),
            trajectories: regime.trajectories.len(),
            rollouts: starts.len(),
            typical: starts[median(&rollouts)],
            scores,
            by_start,
            spectra,
        });
    }
    Ok(Evaluation { steps: plan.steps, regimes, overall })
}

fn spectrum_of(models: Models) -> Spectrum {
    Spectrum::new(models.codec.grid(), models.codec.channels())
}

/// The measures of one rollout.
struct Rollout {
    scores: AllScores,
    spectra: [Vec<f64>; 2],
}

/// Measures every rollout of a batch by itself, on all threads.
fn measure(models: Models, batch: &Batch, rollouts: usize, steps: usize) -> Vec<Rollout> {
    let (means, spectrum) = (Means::of(models), spectrum_of(models));
    let one = |rollout: usize| {
        let mut scores = AllScores::new(steps, batch.has_forecast());
        scores.add(batch, rollout, &means, &spectrum);
        let last = [batch.truth(rollout, steps), batch.prediction(rollout, steps)];
        let spectra =
            last.map(|field| spectrum.energies(field.iter().map(|u| f64::from(*u)).collect()));
        Rollout { scores, spectra }
    };
    (0..rollouts).into_par_iter().map(one).collect()
}

/// The rollout with the median error: of the operator, else of the codec.
fn median(rollouts: &[Rollout]) -> usize {
    let error = |i: &usize| {
        let field = &rollouts[*i].scores.field;
        let sums = field.rollout(Model::Operator).or_else(|| field.rollout(Model::Codec));
        sums.map_or(f64::NAN, |sums| sums.errors().nrmse())
    };
    let mut order: Vec<usize> = (0..rollouts.len()).collect();
    order.sort_by(|a, b| error(a).total_cmp(&error(b)));
    order[(order.len() - 1) / 2]
}
