//! Samplers, which choose the parameters of the next trial, one per file.

mod cma;
mod grid;
mod parzen;
mod random;
mod sobol;
mod tpe;

use crate::space::Space;
use crate::trial::{Point, State, Trial};
pub use cma::{Cma, CmaState};
pub use parzen::Mixture;
pub(crate) use parzen::log_mass;
pub use random::Random;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
pub use tpe::{Tpe, split_trials};

/// The sampler of a study or round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Sampler {
    /// Uniform, or log-uniform for parameters with `log: true`.
    Random,
    /// Grid search: every combination once, for parameters with finitely many values.
    Grid,
    /// A scrambled Sobol sequence (Burley 2020), which covers the space more evenly than random sampling.
    Sobol,
    /// A tree-structured Parzen estimator (Bergstra et al. 2011).
    Tpe(Tpe),
    /// Covariance matrix adaptation, CMA-ES (Hansen 2016), for numeric parameters.
    Cma(Cma),
}

impl Default for Sampler {
    fn default() -> Self {
        Self::Tpe(Tpe::default())
    }
}

impl Sampler {
    /// Lists problems with the sampler settings for this space. Each key is relative to the sampler section or is the
    /// name of a parameter.
    pub fn violations(&self, space: &Space) -> Vec<(String, String)> {
        match self {
            Self::Grid => grid::violations(space),
            Self::Sobol => sobol::violations(space),
            Self::Cma(_) => Cma::violations(space),
            Self::Random | Self::Tpe(_) => Vec::new(),
        }
    }

    /// Returns the number of distinct points, if the sampler is exhaustive.
    pub fn count(&self, space: &Space) -> Option<u64> {
        matches!(self, Self::Grid).then(|| grid::count(space))
    }

    /// Suggests the parameters of trial `number`, given the other trials in order of their numbers; `None` if every
    /// combination has been tried.
    pub fn suggest(
        &self,
        space: &Space,
        trials: &[Trial],
        number: u64,
        seed: u64,
    ) -> Option<Point> {
        let mut random = Random::new(seed, number);
        match self {
            Self::Random => Some(random.complete(space, Point::new())),
            Self::Grid => grid::suggest(space, number),
            Self::Sobol => Some(sobol::suggest(space, number, seed)),
            Self::Tpe(tpe) => Some(tpe.suggest(space, trials, number, &mut random)),
            Self::Cma(cma) => Some(cma.suggest(space, trials, &mut random)),
        }
    }
}

/// Orders ended trials from best to worst: complete ones by value, then pruned ones by last step, latest first, then
/// infeasible ones.
pub(crate) fn by_merit(a: &Trial, b: &Trial) -> Ordering {
    let rank = |trial: &Trial| match (trial.state, trial.value, trial.last()) {
        (State::Complete, Some(value), _) => (0, 0, value),
        (State::Pruned, _, Some((step, value))) => (1, u64::MAX - step, value),
        _ => (2, 0, 0.0),
    };
    let ((kind, step, value), other) = (rank(a), rank(b));
    let by_value = value.partial_cmp(&other.2);
    let by_value = by_value.unwrap_or_else(|| value.is_nan().cmp(&other.2.is_nan()));
    kind.cmp(&other.0).then(step.cmp(&other.1)).then(by_value)
}
