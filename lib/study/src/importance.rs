//! Parameter importances by PED-ANOVA (Watanabe et al. 2023, arXiv:2304.10255), and condPED-ANOVA (arXiv:2601.20800)
//! for conditional parameters, with the formulas of Optuna 5's `PedAnovaImportanceEvaluator`.
//!
//! The importance of a parameter is the Pearson divergence between its density among the best tenth of the complete
//! trials and its density among all complete trials. Densities are discrete: over the choices, or over a grid of at
//! most 50 cells.

use crate::samplers::log_mass;
use crate::space::{Domain, Parameter, Space};
use crate::study::Study;
use crate::trial::{State, Trial};
use unix::Result;

/// Fraction of the trials that count as good.
const GOOD: f64 = 0.1;
/// Maximum number of grid cells.
const MAX_CELLS: usize = 50;
/// Added to densities before division.
const EPSILON: f64 = 1e-12;
/// Minimum standard deviation in cells: 90 % of the normal distribution around a value lies within its cell.
const MIN_DEVIATION: f64 = 0.5 / 1.64;

/// The importance of one parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct Importance {
    /// Name of the parameter.
    pub parameter: String,
    /// Importance, normalised to sum to 1 over all parameters.
    pub importance: f64,
    /// Number of complete trials in which it was active.
    pub trials: usize,
}

impl Study {
    /// Computes the importances in a round; `None` with fewer than two complete trials. Errors: 65, 66, 74.
    pub fn importances(&self, round: usize) -> Result<Option<Vec<Importance>>> {
        let space = self.space_of(round)?;
        Ok(space.and_then(|space| importances(&space, &self.trials(round, &space))))
    }
}

/// Computes the importance of each parameter that has more than one value, in descending order; `None` with fewer than
/// two complete trials. If every divergence is 0, all importances are equal.
///
/// A conditional parameter is evaluated on the trials in which it was active. If it was active in a fraction b of all
/// trials and a fraction a of the good ones, its divergence is multiplied by a²/b, so that a parameter that is rarely
/// active, or rarely active in good trials, counts less. Whether it was active counts towards the parameters in its
/// condition.
pub fn importances(space: &Space, trials: &[Trial]) -> Option<Vec<Importance>> {
    let finite = |trial: &Trial| trial.value.filter(|value| value.is_finite());
    let all: Vec<(&Trial, f64)> = trials
        .iter()
        .filter(|trial| trial.state == State::Complete)
        .filter_map(|trial| Some((trial, finite(trial)?)))
        .collect();
    if all.len() < 2 {
        return None;
    }
    let mut values: Vec<f64> = all.iter().map(|(_, value)| *value).collect();
    values.sort_by(f64::total_cmp);
    let worst = values[(GOOD * values.len() as f64).ceil() as usize - 1];
    let good = all.iter().filter(|(_, value)| *value <= worst).count() as f64;
    let share = good / all.len() as f64;
    let of = |(name, parameter): (&String, &Parameter)| {
        let domain = parameter.domain();
        let number = |(trial, value): &(&Trial, f64)| {
            trial.point.get(name).map(|number| (*number, *value <= worst))
        };
        let active: Vec<(f64, bool)> = all.iter().filter_map(number).collect();
        let best: Vec<f64> = active.iter().filter(|(_, good)| *good).map(|(x, _)| *x).collect();
        let mut importance = 0.0;
        if active.len() >= 2 && !best.is_empty() {
            let everywhere: Vec<f64> = active.iter().map(|(x, _)| *x).collect();
            let is_log_int = matches!(parameter, Parameter::Int { log: true, .. });
            let divergence = divergence(domain, is_log_int, &best, &everywhere);
            let (a, b) = (best.len() as f64 / good, active.len() as f64 / all.len() as f64);
            importance = a * a / b * divergence * share * share;
        }
        Importance { parameter: name.clone(), importance, trials: active.len() }
    };
    let searched = space.0.iter().filter(|(_, parameter)| !parameter.domain().is_single());
    let mut found: Vec<Importance> = searched.map(of).collect();
    let (sum, count) = (found.iter().map(|own| own.importance).sum::<f64>(), found.len() as f64);
    for own in &mut found {
        own.importance = if sum == 0.0 { 1.0 / count } else { own.importance / sum };
    }
    found.sort_by(|a, b| b.importance.total_cmp(&a.importance));
    Some(found)
}

/// Computes the Pearson divergence of the density of the best values from the density of all values.
fn divergence(domain: Domain, is_log_int: bool, best: &[f64], all: &[f64]) -> f64 {
    let cells = cells(domain, is_log_int);
    let density = |values: &[f64]| {
        let mut counts = vec![0; cells];
        values.iter().for_each(|x| counts[cell(domain, cells, *x)] += 1);
        match domain {
            Domain::Categorical(_) => categorical(&counts),
            Domain::Numeric { .. } => numeric(&counts),
        }
    };
    let ratio = |(best, all): (f64, f64)| {
        let (best, all) = (best + EPSILON, all + EPSILON);
        all * (best / all - 1.0).powi(2)
    };
    density(best).into_iter().zip(density(all)).map(ratio).sum()
}

/// Returns the number of grid cells.
fn cells(domain: Domain, is_log_int: bool) -> usize {
    match domain {
        Domain::Categorical(choices) => choices,
        Domain::Numeric { low, high, .. } if is_log_int => {
            MAX_CELLS.min(((high - low + 1.0).ln() / 2.0_f64.ln()).ceil() as usize + 1)
        }
        Domain::Numeric { low, high, step: Some(step), .. } => {
            MAX_CELLS.min(((high - low) / step).round() as usize + 1)
        }
        Domain::Numeric { .. } => MAX_CELLS,
    }
}

/// Returns the nearest cell, and the lower one on ties.
fn cell(domain: Domain, cells: usize, x: f64) -> usize {
    let Domain::Numeric { low, high, .. } = domain else { return x as usize };
    let (low, high) = (domain.coordinate(low), domain.coordinate(high));
    let width = (high - low) / (cells - 1) as f64;
    (((domain.coordinate(x) - low) / width - 0.5).ceil().max(0.0) as usize).min(cells - 1)
}

/// Returns the index and count of each non-empty cell.
fn observed(counts: &[usize]) -> Vec<(usize, f64)> {
    let pairs = counts.iter().enumerate().filter(|(_, count)| **count > 0);
    pairs.map(|(at, count)| (at, *count as f64)).collect()
}

/// Computes a mixture of one component per observed choice, weighted by its count, and a uniform prior.
fn categorical(counts: &[usize]) -> Vec<f64> {
    let observed = observed(counts);
    let total = observed.iter().map(|(_, count)| count).sum::<f64>() + 1.0;
    let prior = 1.0 / (observed.len() as f64 + 1.0);
    let choices = counts.len() as f64;
    let of = |choice: usize| {
        let hit = |(at, count): &(usize, f64)| {
            count * (prior + if *at == choice { 1.0 } else { 0.0 }) / (1.0 + choices * prior)
        };
        (observed.iter().map(hit).sum::<f64>() + 1.0 / choices) / total
    };
    (0..counts.len()).map(of).collect()
}

/// Computes a mixture, discretised on the grid, of one normal distribution per observed cell, with the bandwidth of
/// Scott's rule (Scott 1992), and a prior as wide as the grid.
fn numeric(counts: &[usize]) -> Vec<f64> {
    let observed = observed(counts);
    let total: f64 = observed.iter().map(|(_, count)| count).sum();
    let sum = |of: &dyn Fn(f64) -> f64| -> f64 {
        observed.iter().map(|(at, count)| of(*at as f64) * count).sum()
    };
    let mean = sum(&|x| x) / total;
    let deviation = (sum(&|x| (x - mean).powi(2)) / (total - 1.0).max(1.0)).sqrt();
    // The smallest cell whose cumulative count reaches, or exceeds, `least`.
    let reaches = |least: f64, or_exceeds: bool| {
        let mut below = 0.0;
        let found = observed.iter().find(|(_, count)| {
            below += count;
            if or_exceeds { below > least } else { below >= least }
        });
        found.or(observed.last()).map_or(0.0, |(at, _)| *at as f64)
    };
    let quartiles = [(total / 4.0).floor(), (3.0 * total / 4.0).floor()];
    let range = reaches(quartiles[1], true) - reaches(quartiles[0], false);
    let scott = 1.059 * (range / 1.34).min(deviation) * total.powf(-0.2);
    let last = counts.len() as f64 - 1.0;
    let (low, high) = (-0.5, last + 0.5);
    let components =
        observed.iter().map(|(at, count)| (*at as f64, scott.max(MIN_DEVIATION), *count));
    let components: Vec<(f64, f64, f64)> =
        components.chain([(last / 2.0, last + 1.0, 1.0)]).collect();
    let mass = |from: f64, to: f64, mean: f64, deviation: f64| {
        log_mass((from - mean) / deviation, (to - mean) / deviation)
    };
    let of = |x: f64| -> f64 {
        let part = |(mean, deviation, weight): &(f64, f64, f64)| {
            let log =
                mass(x - 0.5, x + 0.5, *mean, *deviation) - mass(low, high, *mean, *deviation);
            weight * log.exp()
        };
        components.iter().map(part).sum::<f64>() / (total + 1.0)
    };
    (0..counts.len()).map(|x| of(x as f64)).collect()
}
