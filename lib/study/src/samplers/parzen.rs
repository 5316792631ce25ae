//! A mixture of products of truncated normal and categorical distributions, one component for each trial and one for
//! the prior: the Parzen estimator of TPE (Bergstra et al. 2011; Falkner et al. 2018 for products).

use super::Random;
use crate::space::Domain;
use crate::trial::Trial;
use libm::{erf, erfc};
use statrs::function::erf::erfc_inv;
use std::f64::consts::{PI, SQRT_2};

/// Trials of the full weight; older ones have less.
const RECENT: usize = 25;

/// The density of a group of parameters.
#[derive(Clone, Debug)]
pub struct Mixture {
    log_weights: Vec<f64>,
    cumulative: Vec<f64>,
    axes: Vec<Axis>,
}

/// One parameter, in every component.
#[derive(Clone, Debug)]
enum Axis {
    /// Probabilities [components][choices], row by row.
    Categorical(usize, Vec<f64>),
    /// Truncated to the range of the domain.
    Normal {
        domain: Domain,
        mean: Vec<f64>,
        deviation: Vec<f64>,
        /// Logarithm of what the density is divided by: the mass within the range and, without a step, σ√(2π).
        log_norm: Vec<f64>,
    },
}

impl Mixture {
    /// The density around the trials that have all parameters of the group, in the order of their numbers, and a prior
    /// over the whole space.
    pub fn of(group: &[(&str, Domain)], trials: &[&Trial]) -> Self {
        let row = |trial: &&Trial| -> Option<Vec<f64>> {
            group.iter().map(|(name, _)| trial.point.get(*name).copied()).collect()
        };
        let rows: Vec<Vec<f64>> = trials.iter().filter_map(row).collect();
        let n = rows.len();
        let ramp = |i: usize| {
            let (first, count) = (1.0 / n as f64, n - RECENT);
            if count == 1 { first } else { first + (1.0 - first) * i as f64 / (count - 1) as f64 }
        };
        let weight = |i: usize| if i + RECENT < n { ramp(i) } else { 1.0 };
        let mut weights: Vec<f64> = (0..n).map(weight).chain([1.0]).collect();
        let total: f64 = weights.iter().sum();
        weights.iter_mut().for_each(|weight| *weight /= total);
        let mut sum = 0.0;
        let cumulative = weights.iter().map(|weight| {
            sum += weight;
            sum
        });
        let axes = group.iter().enumerate().map(|(i, (_, domain))| {
            let column = rows.iter().map(|row| row[i]);
            match *domain {
                Domain::Categorical(choices) => categorical(choices, column, n),
                Domain::Numeric { log, .. } => {
                    normal(*domain, column.map(|x| if log { x.ln() } else { x }).collect())
                }
            }
        });
        Self {
            cumulative: cumulative.collect(),
            log_weights: weights.iter().map(|weight| weight.ln()).collect(),
            axes: axes.collect(),
        }
    }

    /// A random point, with one number for each parameter of the group.
    pub fn sample(&self, random: &mut Random) -> Vec<f64> {
        let last = self.cumulative.len() - 1;
        let component = pick(&self.cumulative[..last], random.uniform());
        let number = |axis: &Axis| match axis {
            Axis::Categorical(choices, probabilities) => {
                let row = &probabilities[component * choices..][..*choices];
                let mut sum = 0.0;
                let u = random.uniform();
                let below = row[..choices - 1].iter().take_while(|p| {
                    sum += **p;
                    sum < u
                });
                below.count() as f64
            }
            Axis::Normal { domain, mean, deviation, .. } => {
                let (low, high) = domain.range();
                let (mean, deviation) = (mean[component], deviation[component]);
                let [a, b] = [low, high].map(|end| (end - mean) / deviation);
                let p = phi(a) + random.uniform() * (phi(b) - phi(a));
                // Φ⁻¹(p).
                let z = -SQRT_2 * erfc_inv(2.0 * p);
                domain.at((mean + deviation * z).clamp(low, high))
            }
        };
        self.axes.iter().map(number).collect()
    }

    /// The logarithm of the density at a point, with respect to the logarithm of parameters for which that is searched;
    /// of a parameter with a step, the logarithm of the probability.
    pub fn log_density(&self, point: &[f64]) -> f64 {
        let mut logs = self.log_weights.clone();
        for (axis, x) in self.axes.iter().zip(point) {
            axis.add_log_density(*x, &mut logs);
        }
        let most = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let most = if most == f64::NEG_INFINITY { 0.0 } else { most };
        logs.iter().map(|log| (log - most).exp()).sum::<f64>().ln() + most
    }
}

/// The first place whose cumulative probability is not below `u`.
fn pick(cumulative: &[f64], u: f64) -> usize {
    cumulative.partition_point(|sum| *sum < u)
}

fn categorical(choices: usize, column: impl Iterator<Item = f64>, n: usize) -> Axis {
    let components = n + 1;
    let mut probabilities = vec![1.0 / components as f64; components * choices];
    for (row, choice) in probabilities.chunks_exact_mut(choices).zip(column) {
        row[choice as usize] += 1.0;
    }
    for row in probabilities.chunks_exact_mut(choices) {
        let sum: f64 = row.iter().sum();
        row.iter_mut().for_each(|p| *p /= sum);
    }
    Axis::Categorical(choices, probabilities)
}

/// Normal distributions around the observations, as wide as the larger gap to a neighbour, within bounds.
fn normal(domain: Domain, mut mean: Vec<f64>) -> Axis {
    let ((low, high), n) = (domain.range(), mean.len());
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by(|a, b| mean[*a].total_cmp(&mean[*b]));
    let at = |place: usize| mean[order[place]];
    let range = high - low;
    let narrowest = range / (n as f64 + 2.0).min(100.0);
    let mut deviation = vec![0.0; n + 1];
    for place in 0..n {
        let left = if place == 0 { low } else { at(place - 1) };
        let right = if place + 1 == n { high } else { at(place + 1) };
        let gap = match place {
            // The distance to the end of the range does not count, except for a single observation.
            0 if n > 1 => right - at(0),
            _ if n > 1 && place + 1 == n => at(place) - left,
            _ => (at(place) - left).max(right - at(place)),
        };
        deviation[order[place]] = gap.max(narrowest).min(range);
    }
    deviation[n] = range;
    mean.push(0.5 * (low + high));
    let is_continuous = matches!(domain, Domain::Numeric { step: None, .. });
    let norm = |(mean, deviation): (&f64, &f64)| {
        let mass = log_mass((low - mean) / deviation, (high - mean) / deviation);
        if is_continuous { mass + deviation.ln() + 0.5 * (2.0 * PI).ln() } else { mass }
    };
    let log_norm = mean.iter().zip(&deviation).map(norm).collect();
    Axis::Normal { domain, mean, deviation, log_norm }
}

impl Axis {
    /// Adds the logarithm of each component's density at `x`.
    fn add_log_density(&self, x: f64, logs: &mut [f64]) {
        match self {
            Self::Categorical(choices, probabilities) => {
                let column = probabilities.iter().skip(x as usize).step_by(*choices);
                logs.iter_mut().zip(column).for_each(|(log, p)| *log += p.ln());
            }
            Self::Normal { domain, mean, deviation, log_norm } => {
                let Domain::Numeric { step, log: is_log, .. } = *domain else { return };
                let place = |x: f64| if is_log { x.ln() } else { x };
                let ends = step.map(|step| [x - step / 2.0, x + step / 2.0].map(place));
                let x = place(x);
                for (i, log) in logs.iter_mut().enumerate() {
                    let z = |x: f64| (x - mean[i]) / deviation[i];
                    *log -= log_norm[i];
                    *log += match ends {
                        Some([left, right]) => log_mass(z(left), z(right)),
                        None => -0.5 * z(x) * z(x),
                    };
                }
            }
        }
    }
}

/// Φ(x), the distribution function of the standard normal distribution.
fn phi(x: f64) -> f64 {
    0.5 * erfc(-x / SQRT_2)
}

/// log(Φ(b) - Φ(a)) for a < b, without cancellation in the tails.
fn log_mass(a: f64, b: f64) -> f64 {
    if a > 0.0 {
        return log_mass(-b, -a);
    }
    if b > 0.0 {
        // Across the middle: Φ(b) - Φ(a) = (erf(b/√2) - erf(a/√2)) / 2, a sum of positive numbers.
        return (0.5 * (erf(b / SQRT_2) - erf(a / SQRT_2))).ln();
    }
    // Φ(x) = erfc(-x/√2) / 2; far out the difference is dominated by b.
    let (large, small) = (log_phi(b), log_phi(a));
    large + (-(small - large).exp()).ln_1p()
}

/// log Φ(x) for x <= 0.
fn log_phi(x: f64) -> f64 {
    if x > -20.0 {
        return phi(x).ln();
    }
    // The asymptotic series of Mills' ratio (Abramowitz and Stegun 26.2.12); at x = -20 the sixth term is below 1e-12.
    let (square, mut term, mut sum) = (x * x, 1.0, 1.0);
    for k in 1..8 {
        term *= -((2 * k - 1) as f64) / square;
        sum += term;
    }
    -0.5 * square - (-x).ln() - 0.5 * (2.0 * PI).ln() + f64::ln(sum)
}
