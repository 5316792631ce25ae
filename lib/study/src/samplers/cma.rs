use super::{Random, by_merit};
use crate::space::{Domain, Space};
use crate::trial::{Point, Trial};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Replaces variances that are not positive.
const EPSILON: f64 = 1e-8;
/// Maximum step size.
const MAX_SIGMA: f64 = 1e32;
/// Minimum step size. Parameters are scaled to [0, 1], so the mean no longer moves below it.
const MIN_SIGMA: f64 = 1e-20;

/// CMA-ES, the covariance matrix adaptation evolution strategy (Hansen 2016), with the formulas of the Python package
/// cmaes. It searches the unconditional numeric parameters, each scaled to [0, 1]; the others are sampled at random.
///
/// The initial mean is the centre of the space, the initial step size 1/6. Optuna marks each trial with the generation
/// it was drawn from and stores the optimizer state in a trial. Here the state is recomputed from the records alone:
/// every `population` ended trials, in order of their numbers, form a generation, whether or not they were drawn from
/// its distribution. With one worker the result is the same. With several, some trials of a generation were drawn from
/// an earlier one, but none is discarded. Pruned and infeasible trials rank after complete ones.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Cma {
    /// Number of trials per generation; default: 4 + ⌊3 ln d⌋ for d parameters.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 2, max = 65536))]
    pub population: Option<usize>,
}

impl Cma {
    /// Finds the violation of a space without any parameter that CMA-ES can search.
    pub(super) fn violations(space: &Space) -> Vec<(String, String)> {
        let text = "the space has no unconditional numeric parameter; use another sampler";
        if axes(space).is_empty() { vec![("kind".into(), text.into())] } else { Vec::new() }
    }

    pub(super) fn suggest(&self, space: &Space, trials: &[Trial], random: &mut Random) -> Point {
        let axes = axes(space);
        let mut point = Point::new();
        if !axes.is_empty() {
            let mut state = CmaState::new(axes.len(), self.population);
            let ended = trials.iter().filter(|trial| trial.is_informative());
            let rows: Vec<(&Trial, Vec<f64>)> =
                ended.filter_map(|trial| Some((trial, places(&axes, trial)?))).collect();
            for generation in rows.chunks_exact(state.population()) {
                let mut ranked: Vec<&(&Trial, Vec<f64>)> = generation.iter().collect();
                ranked.sort_by(|a, b| by_merit(a.0, b.0));
                state.tell(&ranked.iter().map(|(_, row)| row.as_slice()).collect::<Vec<_>>());
            }
            for ((name, domain), place) in axes.iter().zip(state.sample(random)) {
                let (low, high) = domain.range();
                point.insert(name.to_string(), domain.at(low + (high - low) * place));
            }
        }
        random.complete(space, point)
    }
}

/// Returns the parameters that CMA-ES searches.
fn axes(space: &Space) -> Vec<(&str, Domain)> {
    let domain = |name| (name, space.0[name].domain());
    let numeric = |(name, domain): &(&str, Domain)| {
        matches!(domain, Domain::Numeric { .. })
            && !domain.is_single()
            && space.0[*name].when().is_empty()
    };
    space.order().into_iter().map(domain).filter(numeric).collect()
}

/// Returns the position of a trial in [0, 1]^d; `None` if it lacks a parameter.
fn places(axes: &[(&str, Domain)], trial: &Trial) -> Option<Vec<f64>> {
    let scaled = |(name, domain): &(&str, Domain)| {
        let (low, high) = domain.range();
        Some((domain.coordinate(*trial.point.get(*name)?) - low) / (high - low))
    };
    axes.iter().map(scaled).collect()
}

/// The distribution of a generation, N(mean, sigma² covariance), in [0, 1]^d. Equations: Hansen 2016, "The CMA
/// Evolution Strategy: A Tutorial", arXiv:1604.00772.
#[derive(Clone, Debug)]
pub struct CmaState {
    /// The mean [d].
    pub mean: Vec<f64>,
    /// The step size.
    pub sigma: f64,
    /// The covariance matrix [d, d].
    pub covariance: Vec<f64>,
    /// The evolution path of the step size [d].
    pub path_sigma: Vec<f64>,
    /// The evolution path of the covariance matrix [d].
    pub path: Vec<f64>,
    generation: i32,
    /// Recombination weights, the best trial first (eq. 53).
    weights: Vec<f64>,
    mu_eff: f64,
    c_1: f64,
    c_mu: f64,
}

impl CmaState {
    /// Creates the initial distribution in `d` dimensions, for generations of at least 2 trials.
    pub fn new(d: usize, population: Option<usize>) -> Self {
        let n = d as f64;
        let population = population.unwrap_or(4 + (3.0 * n.ln()) as usize).max(2);
        let raw: Vec<f64> = (1..=population)
            .map(|i| ((population as f64 + 1.0) / 2.0).ln() - (i as f64).ln())
            .collect();
        let effective = |weights: &[f64]| {
            weights.iter().sum::<f64>().powi(2) / weights.iter().map(|w| w * w).sum::<f64>()
        };
        let (best, worst) = raw.split_at(population / 2);
        let (mu_eff, mu_eff_minus) = (effective(best), effective(worst));
        let c_1 = 2.0 / ((n + 1.3).powi(2) + mu_eff);
        let c_mu = 2.0 * (mu_eff - 2.0 + 1.0 / mu_eff) / ((n + 2.0).powi(2) + mu_eff);
        let c_mu = c_mu.min(1.0 - c_1 - EPSILON);
        let alpha = (1.0 + c_1 / c_mu)
            .min(1.0 + 2.0 * mu_eff_minus / (mu_eff + 2.0))
            .min((1.0 - c_1 - c_mu) / (n * c_mu));
        let positive: f64 = raw.iter().filter(|w| **w > 0.0).sum();
        let negative: f64 = -raw.iter().filter(|w| **w < 0.0).sum::<f64>();
        let scaled = |w: &f64| if *w >= 0.0 { w / positive } else { w * alpha / negative };
        Self {
            mean: vec![0.5; d],
            sigma: 1.0 / 6.0,
            covariance: identity(d),
            path_sigma: vec![0.0; d],
            path: vec![0.0; d],
            generation: 0,
            weights: raw.iter().map(scaled).collect(),
            mu_eff,
            c_1,
            c_mu,
        }
    }

    /// Number of trials per generation.
    pub fn population(&self) -> usize {
        self.weights.len()
    }

    /// Samples a point of [0, 1]^d: the first of 10·d draws inside the bounds, or else one more draw clamped to them.
    fn sample(&self, random: &mut Random) -> Vec<f64> {
        let d = self.mean.len();
        let (values, vectors) = eigen(self.covariance.clone(), d);
        let root = compose(&values, &vectors, f64::sqrt);
        let mut draw = || -> Vec<f64> {
            let z: Vec<f64> = (0..d).map(|_| random.normal()).collect();
            self.mean.iter().zip(mat_vec(&root, &z)).map(|(m, y)| m + self.sigma * y).collect()
        };
        let within = |x: &Vec<f64>| x.iter().all(|x| (0.0..=1.0).contains(x));
        let found = (0..10 * d).map(|_| draw()).find(within);
        found.unwrap_or_else(|| draw().iter().map(|x| x.clamp(0.0, 1.0)).collect())
    }

    /// Updates the distribution with a generation [population, d], the best point first.
    pub fn tell(&mut self, points: &[&[f64]]) {
        let (d, n) = (self.mean.len(), self.mean.len() as f64);
        let mu = self.population() / 2;
        self.generation += 1;
        let (values, vectors) = eigen(std::mem::take(&mut self.covariance), d);
        let covariance = compose(&values, &vectors, |value| value);
        let inverse_root = compose(&values, &vectors, |value| 1.0 / value.sqrt());
        let step = |point: &&[f64]| -> Vec<f64> {
            point.iter().zip(&self.mean).map(|(x, m)| (x - m) / self.sigma).collect()
        };
        let mut steps: Vec<Vec<f64>> = points.iter().map(step).collect();
        // A point drawn from another distribution may be many standard deviations away and would make the step size
        // explode. Such points are moved closer (Hansen 2011, "Injecting external solutions into CMA-ES"), with a bound
        // that points drawn from this distribution do not reach in practice.
        let most = n.sqrt() + 6.0;
        let mut lengths = Vec::with_capacity(steps.len());
        for step in &mut steps {
            let length = norm(&mat_vec(&inverse_root, step));
            if length > most {
                step.iter_mut().for_each(|y| *y *= most / length);
            }
            lengths.push(length.min(most));
        }
        // Eq. 41.
        let mut mean_step = vec![0.0; d];
        for (weight, step) in self.weights[..mu].iter().zip(&steps) {
            mean_step.iter_mut().zip(step).for_each(|(sum, y)| *sum += weight * y);
        }
        self.mean.iter_mut().zip(&mean_step).for_each(|(m, y)| *m += self.sigma * y);

        let c_sigma = (self.mu_eff + 2.0) / (n + self.mu_eff + 5.0);
        let d_sigma =
            1.0 + 2.0 * (((self.mu_eff - 1.0) / (n + 1.0)).sqrt() - 1.0).max(0.0) + c_sigma;
        let chi = n.sqrt() * (1.0 - 1.0 / (4.0 * n) + 1.0 / (21.0 * n * n));
        let gain = (c_sigma * (2.0 - c_sigma) * self.mu_eff).sqrt();
        for (p, y) in self.path_sigma.iter_mut().zip(mat_vec(&inverse_root, &mean_step)) {
            *p = (1.0 - c_sigma) * *p + gain * y;
        }
        let length = norm(&self.path_sigma);
        self.sigma *= (c_sigma / d_sigma * (length / chi - 1.0)).exp();
        self.sigma = self.sigma.clamp(MIN_SIGMA, MAX_SIGMA);

        // Eq. 45: the path stalls while the step size grows fast.
        let start = (1.0 - (1.0 - c_sigma).powi(2 * (self.generation + 1))).sqrt();
        let stalls = length / start >= (1.4 + 2.0 / (n + 1.0)) * chi;
        let c_c = (4.0 + self.mu_eff / n) / (n + 4.0 + 2.0 * self.mu_eff / n);
        let gain = if stalls { 0.0 } else { (c_c * (2.0 - c_c) * self.mu_eff).sqrt() };
        for (p, y) in self.path.iter_mut().zip(&mean_step) {
            *p = (1.0 - c_c) * *p + gain * y;
        }

        // Eq. 46 and 47.
        let lost = if stalls { self.c_1 * c_c * (2.0 - c_c) } else { 0.0 };
        let keep = 1.0 + lost - self.c_1 - self.c_mu * self.weights.iter().sum::<f64>();
        self.covariance = covariance.iter().map(|x| keep * x).collect();
        add_outer(&mut self.covariance, self.c_1, &self.path);
        for ((weight, step), length) in self.weights.iter().zip(&steps).zip(lengths) {
            let weight =
                if *weight < 0.0 { weight * n / (length * length + EPSILON) } else { *weight };
            add_outer(&mut self.covariance, self.c_mu * weight, step);
        }
    }
}

fn norm(x: &[f64]) -> f64 {
    x.iter().map(|x| x * x).sum::<f64>().sqrt()
}

fn identity(d: usize) -> Vec<f64> {
    let mut matrix = vec![0.0; d * d];
    matrix.iter_mut().step_by(d + 1).for_each(|x| *x = 1.0);
    matrix
}

/// Multiplies a square matrix by a vector.
fn mat_vec(matrix: &[f64], x: &[f64]) -> Vec<f64> {
    let dot = |row: &[f64]| row.iter().zip(x).map(|(a, b)| a * b).sum();
    matrix.chunks_exact(x.len()).map(dot).collect()
}

/// Adds weight·x·xᵀ.
fn add_outer(matrix: &mut [f64], weight: f64, x: &[f64]) {
    for (row, a) in matrix.chunks_exact_mut(x.len()).zip(x) {
        row.iter_mut().zip(x).for_each(|(sum, b)| *sum += weight * a * b);
    }
}

/// Composes the symmetric matrix with these eigenvectors (rows) and `function` applied to the eigenvalues.
fn compose(values: &[f64], vectors: &[f64], function: impl Fn(f64) -> f64) -> Vec<f64> {
    let mut matrix = vec![0.0; vectors.len()];
    for (value, vector) in values.iter().zip(vectors.chunks_exact(values.len())) {
        add_outer(&mut matrix, function(*value), vector);
    }
    matrix
}

/// Computes the eigenvalues, clamped to be positive, and eigenvectors (rows) of a symmetric matrix [d, d], by Jacobi's
/// method (Golub and Van Loan 2013, section 8.5).
fn eigen(mut a: Vec<f64>, d: usize) -> (Vec<f64>, Vec<f64>) {
    let mut vectors = identity(d);
    // Convergence is quadratic; ten sweeps are plenty.
    for _ in 0..30 {
        let mut rotated = false;
        for p in 0..d {
            for q in p + 1..d {
                let (app, aqq, apq) = (a[p * d + p], a[q * d + q], a[p * d + q]);
                if apq.abs() <= f64::EPSILON * f64::EPSILON.max((app * aqq).abs().sqrt()) {
                    continue;
                }
                rotated = true;
                let tau = (aqq - app) / (2.0 * apq);
                let t = tau.signum() / (tau.abs() + tau.hypot(1.0));
                let c = 1.0 / t.hypot(1.0);
                let s = t * c;
                for k in 0..d {
                    let (x, y) = (a[k * d + p], a[k * d + q]);
                    (a[k * d + p], a[k * d + q]) = (c * x - s * y, s * x + c * y);
                }
                for k in 0..d {
                    let (x, y) = (a[p * d + k], a[q * d + k]);
                    (a[p * d + k], a[q * d + k]) = (c * x - s * y, s * x + c * y);
                    let (x, y) = (vectors[p * d + k], vectors[q * d + k]);
                    (vectors[p * d + k], vectors[q * d + k]) = (c * x - s * y, s * x + c * y);
                }
            }
        }
        if !rotated {
            break;
        }
    }
    let positive = |value: &f64| if *value > 0.0 { *value } else { EPSILON };
    (a.iter().step_by(d + 1).map(positive).collect(), vectors)
}
