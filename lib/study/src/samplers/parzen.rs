//! The Parzen estimator of TPE (Bergstra et al. 2011; Falkner et al. 2018 for products): a mixture of products of
//! truncated normal and categorical distributions, with one component per trial and one for the prior.

use super::Random;
use crate::space::Domain;
use crate::trial::Trial;
use libm::{erf, erfc};
use statrs::function::erf::erfc_inv;
use std::cell::Cell;
use std::collections::HashMap;
use std::f64::consts::{PI, SQRT_2};

/// The number of most recent trials with full weight; older ones weigh less.
const FULL_WEIGHT_TRIALS: usize = 25;

/// Components whose log density is this far below the largest do not change the sum in f64.
const NEGLIGIBLE: f64 = 45.0;

/// The density of a group of parameters. It has n + 1 components: one per trial, then the prior.
#[derive(Clone, Debug)]
pub struct Mixture {
    /// Cumulative weights of the components.
    cumulative: Vec<f64>,
    /// Per component, the log weight minus log σ√(2π) for each parameter without a step.
    log_scale: Vec<f64>,
    /// Per component, the log of the mass of its normal distributions within the range, which normalises them; NaN
    /// until it is needed.
    log_mass: Vec<Cell<f64>>,
    axes: Vec<Axis>,
}

/// The distributions of one parameter in all components of the mixture.
#[derive(Clone, Debug)]
enum Axis {
    /// The choice of each trial.
    Categorical { choices: usize, observed: Vec<u32> },
    /// Normal distributions truncated to the range of the domain.
    Continuous { domain: Domain, mean: Vec<f64>, inverse_deviation: Vec<f64> },
    /// Truncated normal distributions of a parameter with a step. Many trials share a value, so there are fewer
    /// distributions [mean, σ] than components; `index` maps a component to its distribution.
    Stepped { domain: Domain, step: f64, normals: Vec<[f64; 2]>, index: Vec<u32> },
}

impl Mixture {
    /// Builds the density of the trials that have all parameters of the group, in order of their numbers, with a prior
    /// over the whole space. The group is sorted by name.
    pub fn of(group: &[(&str, Domain)], trials: &[&Trial]) -> Self {
        let mut columns = vec![Vec::with_capacity(trials.len() + 1); group.len()];
        let mut n = 0;
        for trial in trials {
            // One pass: looking up each parameter would take a third of the time of a suggestion.
            let mut entries = trial.point.iter();
            let has_all = columns.iter_mut().zip(group).all(|(column, (name, domain))| {
                let found = entries.find(|(key, _)| key == name);
                column.extend(found.map(|(_, value)| domain.coordinate(*value)));
                found.is_some()
            });
            n += usize::from(has_all);
            if !has_all {
                columns.iter_mut().for_each(|column| column.truncate(n));
            }
        }
        let ramp = |i: usize| {
            let (first, count) = (1.0 / n as f64, n - FULL_WEIGHT_TRIALS);
            if count == 1 { first } else { first + (1.0 - first) * i as f64 / (count - 1) as f64 }
        };
        let weight = |i: usize| if i + FULL_WEIGHT_TRIALS < n { ramp(i) } else { 1.0 };
        let mut weights: Vec<f64> = (0..n).map(weight).chain([1.0]).collect();
        let total: f64 = weights.iter().sum();
        weights.iter_mut().for_each(|weight| *weight /= total);
        let mut log_scale: Vec<f64> = weights.iter().map(|weight| weight.ln()).collect();
        let axes = group.iter().zip(columns).map(|((_, domain), column)| match *domain {
            Domain::Categorical(choices) => {
                let observed = column.iter().map(|choice| *choice as u32).collect();
                Axis::Categorical { choices, observed }
            }
            Domain::Numeric { .. } => normal(*domain, column, &mut log_scale),
        });
        let axes = axes.collect();
        let mut sum = 0.0;
        weights.iter_mut().for_each(|weight| {
            sum += *weight;
            *weight = sum;
        });
        let log_mass = vec![Cell::new(f64::NAN); n + 1];
        Self { cumulative: weights, log_scale, log_mass, axes }
    }

    /// Samples a point: one number per parameter of the group.
    pub fn sample(&self, random: &mut Random) -> Vec<f64> {
        let last = self.cumulative.len() - 1;
        let u = random.uniform();
        let component = self.cumulative[..last].partition_point(|sum| *sum < u);
        self.axes.iter().map(|axis| axis.sample(component, random)).collect()
    }

    /// Computes the log density at a point. Parameters with `log: true` contribute the density of their logarithm,
    /// parameters with a step their probability.
    pub fn log_density(&self, point: &[f64]) -> f64 {
        let mut logs = self.log_scale.clone();
        let mut stepped = Vec::new();
        for (axis, x) in self.axes.iter().zip(point) {
            match axis {
                Axis::Categorical { choices, observed } => {
                    let [hit, miss] = categorical(*choices, observed.len()).map(f64::ln);
                    for (log, choice) in logs.iter_mut().zip(observed) {
                        *log += if *choice == *x as u32 { hit } else { miss };
                    }
                    logs[observed.len()] -= (*choices as f64).ln();
                }
                Axis::Continuous { domain, mean, inverse_deviation } => {
                    let x = domain.coordinate(*x);
                    for ((log, mean), inverse) in logs.iter_mut().zip(mean).zip(inverse_deviation) {
                        let z = (x - mean) * inverse;
                        *log -= 0.5 * z * z;
                    }
                }
                Axis::Stepped { domain, step, normals, index } => {
                    let ends = [-0.5, 0.5].map(|share| domain.coordinate(x + share * step));
                    let logs = vec![f64::NAN; normals.len()];
                    stepped.push(Masses { normals, index, ends, logs });
                }
            }
        }
        // Masses take most of the time, so they are skipped for components whose other factors are already negligible.
        // The bound is valid because the mass at the point is below 1, and the normalising mass is above 1/3, as
        // each mean lies within the range and no σ exceeds its width. The prior comes first because its density is
        // nowhere small.
        let most_gain = 3.0_f64.ln() * self.axes.len() as f64;
        let mut most = f64::NEG_INFINITY;
        for (i, log) in logs.iter_mut().enumerate().rev() {
            if *log + most_gain > most - NEGLIGIBLE {
                *log += stepped.iter_mut().map(|masses| masses.log(i)).sum::<f64>();
                *log -= self.log_mass(i);
                most = most.max(*log);
            }
        }
        let large = logs.iter().filter(|log| **log > most - NEGLIGIBLE);
        large.map(|log| (log - most).exp()).sum::<f64>().ln() + most
    }

    /// Returns the log of the mass of a component's normal distributions within the range.
    fn log_mass(&self, component: usize) -> f64 {
        let known = &self.log_mass[component];
        if known.get().is_nan() {
            let of = |axis: &Axis| {
                let (domain, mean, deviation) = axis.normal(component)?;
                let (low, high) = domain.range();
                Some(log_mass((low - mean) / deviation, (high - mean) / deviation))
            };
            known.set(self.axes.iter().filter_map(of).sum());
        }
        known.get()
    }
}

impl Axis {
    /// Samples from a component.
    fn sample(&self, component: usize, random: &mut Random) -> f64 {
        let u = random.uniform();
        if let Some((domain, mean, deviation)) = self.normal(component) {
            let (low, high) = domain.range();
            let [a, b] = [low, high].map(|end| normal_cdf((end - mean) / deviation));
            // Φ⁻¹(a + u·(b - a)).
            let z = -SQRT_2 * erfc_inv(2.0 * (a + u * (b - a)));
            return domain.at((mean + deviation * z).clamp(low, high));
        }
        let Self::Categorical { choices, observed } = self else { return f64::NAN };
        let [hit, miss] = categorical(*choices, observed.len());
        let probability = |choice: usize| match observed.get(component) {
            None => 1.0 / *choices as f64,
            Some(observed) if choice == *observed as usize => hit,
            Some(_) => miss,
        };
        let mut sum = 0.0;
        let below = (0..choices - 1).take_while(|choice| {
            sum += probability(*choice);
            sum < u
        });
        below.count() as f64
    }

    /// Returns domain, mean and σ of a component's normal distribution; `None` for a categorical parameter.
    fn normal(&self, component: usize) -> Option<(&Domain, f64, f64)> {
        match self {
            Self::Categorical { .. } => None,
            Self::Continuous { domain, mean, inverse_deviation } => {
                Some((domain, mean[component], 1.0 / inverse_deviation[component]))
            }
            Self::Stepped { domain, normals, index, .. } => {
                let [mean, deviation] = normals[index[component] as usize];
                Some((domain, mean, deviation))
            }
        }
    }
}

/// Log masses at one value of a parameter with a step.
struct Masses<'a> {
    normals: &'a [[f64; 2]],
    index: &'a [u32],
    /// The bounds of the interval that rounds to the value.
    ends: [f64; 2],
    /// Log mass per distribution; NaN until computed.
    logs: Vec<f64>,
}

impl Masses<'_> {
    /// Returns the log mass of a component.
    fn log(&mut self, component: usize) -> f64 {
        let i = self.index[component] as usize;
        if self.logs[i].is_nan() {
            let [mean, deviation] = self.normals[i];
            let [left, right] = self.ends.map(|end| (end - mean) / deviation);
            self.logs[i] = log_mass(left, right);
        }
        self.logs[i]
    }
}

/// Returns, for the component of one of n trials, the probability of the trial's choice and of each other choice.
fn categorical(choices: usize, n: usize) -> [f64; 2] {
    let prior = 1.0 / (n as f64 + 1.0);
    [1.0 + prior, prior].map(|p| p / (1.0 + choices as f64 * prior))
}

/// Builds normal distributions around the observations. σ is the larger distance to a neighbour, within bounds.
/// Subtracts log σ√(2π) from `log_scale` if there is no step.
fn normal(domain: Domain, mut mean: Vec<f64>, log_scale: &mut [f64]) -> Axis {
    let ((low, high), n) = (domain.range(), mean.len());
    let range = high - low;
    let min_deviation = range / (n as f64 + 2.0).min(100.0);
    let mut deviation = vec![min_deviation; n];
    if n == 1 {
        deviation[0] = (mean[0] - low).max(high - mean[0]);
    }
    // Gaps below the smallest σ do not matter. Every larger gap lies between the largest observation of one cell of
    // that width and the smallest of the next non-empty one. Distances to the ends of the range do not count.
    let mut cells = vec![None; 100.min(n + 2)];
    let scale = cells.len() as f64 / range;
    for (i, x) in mean.iter().enumerate() {
        let cell = (((x - low) * scale) as usize).min(cells.len() - 1);
        let (first, last) = cells[cell].unwrap_or((i, i));
        cells[cell] = Some((
            if *x < mean[first] { i } else { first },
            if *x >= mean[last] { i } else { last },
        ));
    }
    let filled: Vec<(usize, usize)> = cells.into_iter().flatten().collect();
    for pair in filled.windows(2) {
        let (left, right) = (pair[0].1, pair[1].0);
        let gap = mean[right] - mean[left];
        for i in [left, right] {
            deviation[i] = deviation[i].max(gap);
        }
    }
    deviation.iter_mut().for_each(|deviation| *deviation = deviation.min(range));
    deviation.push(range);
    mean.push(0.5 * (low + high));
    let step = if let Domain::Numeric { step, .. } = domain { step } else { None };
    let Some(step) = step else {
        let log_min_deviation = min_deviation.ln();
        for (log, deviation) in log_scale.iter_mut().zip(&deviation) {
            let log_deviation =
                if *deviation == min_deviation { log_min_deviation } else { deviation.ln() };
            *log -= log_deviation + 0.5 * (2.0 * PI).ln();
        }
        deviation.iter_mut().for_each(|deviation| *deviation = 1.0 / *deviation);
        return Axis::Continuous { domain, mean, inverse_deviation: deviation };
    };
    let (mut normals, mut known) = (Vec::new(), HashMap::new());
    let index = mean.into_iter().zip(deviation).map(|(mean, deviation)| {
        *known.entry([mean, deviation].map(f64::to_bits)).or_insert_with(|| {
            normals.push([mean, deviation]);
            normals.len() as u32 - 1
        })
    });
    let index = index.collect();
    Axis::Stepped { domain, step, normals, index }
}

/// Computes Φ(x), the distribution function of the standard normal distribution.
fn normal_cdf(x: f64) -> f64 {
    0.5 * erfc(-x / SQRT_2)
}

/// Computes log(Φ(b) - Φ(a)) for a < b, without cancellation in the tails.
pub(crate) fn log_mass(a: f64, b: f64) -> f64 {
    if a < -9.0 && b > 9.0 {
        return 0.0;
    }
    if a > 0.0 {
        return log_mass(-b, -a);
    }
    if b > 0.0 {
        // If a < 0 < b: Φ(b) - Φ(a) = (erf(b/√2) - erf(a/√2)) / 2, a sum of positive numbers.
        return (0.5 * (erf(b / SQRT_2) - erf(a / SQRT_2))).ln();
    }
    if a > -37.0 {
        return (normal_cdf(b) - normal_cdf(a)).ln();
    }
    // Φ(a) underflows.
    let (large, small) = (log_phi(b), log_phi(a));
    large + (-(small - large).exp()).ln_1p()
}

/// Computes log Φ(x) for x <= 0.
fn log_phi(x: f64) -> f64 {
    if x > -20.0 {
        return normal_cdf(x).ln();
    }
    // The asymptotic series of Mills' ratio (Abramowitz and Stegun 26.2.12); at x = -20 the sixth term is below 1e-12.
    let (square, mut term, mut sum) = (x * x, 1.0, 1.0);
    for k in 1..8 {
        term *= -((2 * k - 1) as f64) / square;
        sum += term;
    }
    -0.5 * square - (-x).ln() - 0.5 * (2.0 * PI).ln() + f64::ln(sum)
}
