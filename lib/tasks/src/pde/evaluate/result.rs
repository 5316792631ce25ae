//! The result of an evaluation: errors by regime, start frame and rollout.

use super::batch::Cost;
use super::errors::{Quantities, nrmse};
use super::scores::{Method, Scores};
use crate::statistics::{geometric_mean, rank_correlation};
use data::fields::parameter::Parameter;
use learn::evaluate::{Stratum, bootstrap, interval};
use learn::score::{Bits, quantile};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Sums over the fields of one rollout: over steps 1 and later, or the only state of a steady problem.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RolloutSums {
    /// Number of values.
    pub elements: u64,
    /// Σ t².
    pub target: Bits,
    /// Σ (p - t)², by model in the order of [`Scores::models`].
    pub squared: Vec<Bits>,
    /// Mean variance of the views.
    pub variance: Option<Bits>,
    /// Rank correlation of the rewards and errors of the candidates of a search.
    pub rank_correlation: Option<Bits>,
}

impl RolloutSums {
    pub fn nrmse(&self, model: usize) -> f64 {
        nrmse(self.squared[model].0, self.target.0)
    }

    fn rmse(&self, model: usize) -> f64 {
        (self.squared[model].0 / self.elements as f64).sqrt()
    }
}

/// The results for one parameter value.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Regime {
    /// The parameter value.
    pub parameter: Parameter,
    /// Number of trajectories.
    pub trajectories: usize,
    /// Errors of the rollouts by start frame, in the order of the plan.
    pub by_start: Vec<Scores>,
    /// Sum over rollouts of the spectrum (mean square by wave number) of the last state of the ground truth.
    pub spectrum: Vec<Bits>,
    /// Spectra of the predictions of each evaluated model, summed like `spectrum`.
    pub spectra: Vec<(Method, Vec<Bits>)>,
    /// Cost of the evaluated models.
    pub costs: Vec<Cost>,
    /// Sums of each rollout, in the order of the plan: by trajectory, then by start frame.
    pub sums: Vec<RolloutSums>,
}

impl Regime {
    /// Number of rollouts.
    pub fn rollouts(&self) -> usize {
        self.sums.len()
    }

    /// Returns the errors over all rollouts.
    pub fn scores(&self) -> Scores {
        merged(self.by_start.iter())
    }

    /// Returns index and NRMSE of the rollout at this quantile of the evaluated model's errors: 0.5 for the median, 1
    /// for the maximum.
    pub fn at_quantile(&self, quantile: f64) -> (usize, f64) {
        let mut order: Vec<_> = self.sums.iter().map(|sums| sums.nrmse(0)).enumerate().collect();
        order.sort_by(|a, b| a.1.total_cmp(&b.1));
        order[((order.len() - 1) as f64 * quantile) as usize]
    }
}

/// The result of an evaluation.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Evaluation {
    /// Steps per rollout.
    pub steps: usize,
    /// Root mean square of the fields of the validation split.
    pub validation_rms: Option<Bits>,
    /// Results by parameter value, in ascending order.
    pub regimes: Vec<Regime>,
}

impl Evaluation {
    /// Number of evaluated rollouts.
    pub fn rollouts(&self) -> usize {
        self.regimes.iter().map(Regime::rollouts).sum()
    }

    /// Number of rollouts in which the error of the evaluated model is not finite.
    pub fn diverged(&self) -> usize {
        let all = self.regimes.iter().flat_map(|regime| &regime.sums);
        all.filter(|sums| sums.squared.first().is_some_and(|sum| !sum.0.is_finite())).count()
    }

    /// Returns the errors over all rollouts of some regimes.
    pub fn scores(&self, regimes: Range<usize>) -> Scores {
        merged(self.regimes[regimes].iter().flat_map(|regime| &regime.by_start))
    }

    /// Returns the errors over all rollouts.
    pub fn overall(&self) -> Scores {
        self.scores(0..self.regimes.len())
    }

    /// Returns a model's cost per rollout step: evaluations of the operator and of the denoiser, and seconds.
    pub fn cost(&self, regimes: Range<usize>, model: Method) -> Option<[f64; 3]> {
        let regimes = &self.regimes[regimes];
        let all =
            regimes.iter().flat_map(|regime| &regime.costs).filter(|cost| cost.model == model);
        let rollouts: usize = regimes.iter().map(Regime::rollouts).sum();
        let steps = (rollouts * self.steps.max(1)) as f64;
        let sum = |sums: Option<[f64; 3]>, cost: &Cost| {
            let [evaluations, denoisings, seconds] = sums.unwrap_or_default();
            let counts = [cost.evaluations, cost.denoisings].map(|count| count as f64);
            Some([evaluations + counts[0], denoisings + counts[1], seconds + cost.seconds.0])
        };
        all.fold(None, sum).map(|sums| sums.map(|sum| sum / steps))
    }

    /// Returns statistics of a model's field errors over the rollouts of some regimes.
    pub fn of_rollouts(&self, regimes: Range<usize>, model: Method) -> Quantities {
        let models = self.regimes[0].by_start[0].models();
        let Some(at) = models.iter().position(|own| *own == model) else { return Vec::new() };
        let all = || self.regimes[regimes.clone()].iter().flat_map(|regime| &regime.sums);
        let errors: Vec<f64> = all().map(|sums| sums.nrmse(at)).collect();
        // The bootstrap resamples all rollouts of a trajectory together.
        let clusters = |number: usize| -> Vec<[f64; 4]> {
            let regime = &self.regimes[number];
            let cluster = |rollouts: &[RolloutSums]| {
                rollouts.iter().fold([0.0; 4], |[squared, target, log, count], sums| {
                    let log = log + sums.nrmse(at).ln();
                    [squared + sums.squared[at].0, target + sums.target.0, log, count + 1.0]
                })
            };
            regime.sums.chunks(regime.by_start.len()).map(cluster).collect()
        };
        let clusters: Vec<_> = regimes.clone().map(clusters).collect();
        let stratum = |(number, clusters): (usize, &Vec<_>)| Stratum {
            number: number as u64,
            clusters: clusters.len(),
        };
        let strata: Vec<_> = regimes.clone().zip(&clusters).map(stratum).collect();
        let resampled = bootstrap(&strata, |draws| {
            let drawn = clusters
                .iter()
                .zip(draws)
                .flat_map(|(all, draws)| draws.iter().map(|cluster| all[*cluster]));
            let [squared, target, log, count] =
                drawn.fold([0.0; 4], |sums, cluster| std::array::from_fn(|i| sums[i] + cluster[i]));
            [nrmse(squared, target), (log / count).exp()]
        });
        let [pooled, geometric] = [0, 1].map(|i| interval(resampled.iter().map(|all| all[i])));
        let mut quantities = vec![
            ("nrmse_low", pooled[0]),
            ("nrmse_high", pooled[1]),
            ("nrmse_geometric_mean", geometric_mean(&errors)),
            ("nrmse_geometric_mean_low", geometric[0]),
            ("nrmse_geometric_mean_high", geometric[1]),
            ("nrmse_p95", quantile(errors, 0.95)),
            ("rmse_p95", quantile(all().map(|sums| sums.rmse(at)).collect(), 0.95)),
        ];
        if let Some([evaluations, denoisings, _]) = self.cost(regimes.clone(), model) {
            quantities.push(("evaluations_per_step", evaluations));
            if denoisings > 0.0 {
                quantities.push(("denoiser_evaluations_per_step", denoisings));
            }
        }
        let ranks: Option<Vec<f64>> = all().map(|sums| Some(sums.rank_correlation?.0)).collect();
        if let Some(ranks) = ranks.filter(|_| model == Method::Search) {
            // The correlation is undefined if all candidates are equal.
            let ranks: Vec<f64> = ranks.into_iter().filter(|rank| !rank.is_nan()).collect();
            let mean = ranks.iter().sum::<f64>() / ranks.len() as f64;
            quantities.push(("reward_rank_correlation", mean));
            let scores = self.scores(regimes.clone());
            let of = |model| scores.nrmse(model);
            let gains = of(Method::Operator).zip(of(Method::Search)).zip(of(Method::Oracle));
            // The fraction is only defined if the oracle improves on the operator.
            if let Some(((operator, search), oracle)) = gains.filter(|((a, _), c)| c < a) {
                let share = (operator - search) / (operator - oracle);
                quantities.push(("oracle_gain_captured", share));
            }
        }
        let variances: Option<Vec<f64>> = all().map(|sums| Some(sums.variance?.0)).collect();
        if let Some(variances) = variances.filter(|_| model == Method::Views) {
            let squared: Vec<f64> = all().map(|sums| sums.squared[at].0).collect();
            let mean = variances.iter().sum::<f64>() / variances.len() as f64;
            quantities.push(("spread", mean.sqrt()));
            quantities.push(("spread_rank_correlation", rank_correlation(&variances, &squared)));
            let relative = |values: &[f64]| -> Vec<f64> {
                values.iter().zip(all()).map(|(value, sums)| value / sums.target.0).collect()
            };
            let correlation = rank_correlation(&relative(&variances), &relative(&squared));
            quantities.push(("spread_rank_correlation_relative", correlation));
        }
        quantities
    }
}

fn merged<'a>(all: impl Iterator<Item = &'a Scores>) -> Scores {
    let mut sum = Scores::default();
    all.for_each(|scores| sum.merge(scores));
    sum
}
