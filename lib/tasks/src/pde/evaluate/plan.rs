//! Plans the rollouts of an evaluation.

use super::views::Views;
use crate::pde::TrainedCritic;
use crate::pde::search::Search;
use data::fields::generate::Equation;
use data::fields::parameter::Parameter;
use data::fields::split_set::TrajectorySet;
use std::sync::Arc;
use unix::{Error, Result};

/// One rollout: a trajectory and its start frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    /// Index of the trajectory in its set.
    pub trajectory: usize,
    /// Frame of the initial state.
    pub frame: usize,
}

/// The rollouts of one parameter value.
#[derive(Clone, Debug)]
pub struct RegimePlan {
    /// The parameter value.
    pub parameter: Parameter,
    /// Indices of the trajectories in the set.
    pub trajectories: Vec<usize>,
}

/// The rollouts that the user requested.
#[derive(Clone, Copy, Debug)]
pub struct RolloutRequest {
    /// Steps per rollout.
    pub steps: usize,
    /// Frames per step; None for the default of the model.
    pub stride: Option<usize>,
    /// Number of start frames per trajectory, spread evenly from frame `from` to the last one from which a rollout
    /// fits; 0 for all of these frames.
    pub starts: usize,
    /// The first start frame: earlier frames are not used.
    pub from: usize,
    /// Maximum number of trajectories per parameter value.
    pub max_trajectories: Option<usize>,
    /// Number of views to average, at least 1.
    pub views: usize,
    /// The equation of the data, if its files do not name it.
    pub equation: Option<Equation>,
    /// Number of samples of each rollout, at least 1; more than 1 only for generative models.
    pub members: usize,
    /// Test-time search, if requested.
    pub search: Option<Search>,
}

impl RolloutRequest {
    /// Refuses (2) more than one view for a model that does not predict.
    pub fn refuse_views(&self) -> Result<()> {
        match self.views {
            1 => Ok(()),
            _ => Err(Error::usage("--views: a codec predicts nothing; evaluate an operator")),
        }
    }
}

/// The rollouts of an evaluation: from every start frame of every trajectory.
#[derive(Clone, Debug)]
pub struct RolloutPlan {
    /// Steps per rollout.
    pub steps: usize,
    /// Frames per step.
    pub stride: usize,
    /// Start frames, strictly increasing.
    pub starts: Vec<usize>,
    /// Trajectories by parameter value, in ascending order.
    pub regimes: Vec<RegimePlan>,
    /// Views to average; none for a single one.
    pub views: Option<Views>,
    /// Number of samples of each rollout.
    pub members: usize,
    /// Test-time search.
    pub search: Option<Search>,
    /// The critic of a search with [`crate::pde::search::Reward::Critic`].
    pub critic: Option<Arc<TrainedCritic>>,
    /// The equation of the data, if its files do not name it.
    pub equation: Option<Equation>,
}

impl RolloutPlan {
    /// Plans the rollouts of `request`, with `stride` frames per step unless the request overrides it.
    ///
    /// Errors: 2 when no rollout fits, 65 for a set without trajectories.
    pub fn of_rollouts(
        set: &TrajectorySet,
        request: &RolloutRequest,
        stride: usize,
    ) -> Result<Self> {
        let (steps, stride) = (request.steps, request.stride.unwrap_or(stride));
        let frames = set.shape().frames;
        let last = frames.saturating_sub(request.from);
        let span = steps.checked_mul(stride).filter(|span| *span > 0 && *span < last);
        let Some(span) = span else {
            let given = match request.from {
                0 => String::new(),
                from => format!(" from frame {from} on"),
            };
            return Err(Error::usage(format!(
                "{steps} steps of {stride} frames{given} do not fit into trajectories of {frames} frames; \
                 choose other --steps and --stride"
            )));
        };
        let starts = spread(last - span, request.starts).into_iter().map(|at| request.from + at);
        Self::of(set, steps, stride, starts.collect(), request.max_trajectories)
    }

    /// Plans the evaluation of steady problems, whose trajectories have a single frame.
    ///
    /// Errors: 65 for a set without trajectories.
    pub fn of_frames(set: &TrajectorySet, request: &RolloutRequest) -> Result<Self> {
        Self::of(set, 0, 1, vec![0], request.max_trajectories)
    }

    fn of(
        set: &TrajectorySet,
        steps: usize,
        stride: usize,
        starts: Vec<usize>,
        limit: Option<usize>,
    ) -> Result<Self> {
        let mut regimes: Vec<RegimePlan> = Vec::new();
        for trajectory in 0..set.len() {
            let parameter = set.entry(trajectory).parameter;
            let known = regimes.iter().position(|r| r.parameter.is_same_regime(parameter));
            let at = known.unwrap_or_else(|| {
                let parameter = parameter.clone();
                regimes.push(RegimePlan { parameter, trajectories: Vec::new() });
                regimes.len() - 1
            });
            if limit.is_none_or(|limit| regimes[at].trajectories.len() < limit) {
                regimes[at].trajectories.push(trajectory);
            }
        }
        regimes.retain(|regime| !regime.trajectories.is_empty());
        if regimes.is_empty() {
            return Err(Error::data(format!("the {} split has no trajectories", set.name())));
        }
        regimes.sort_by(|a, b| {
            let (a, b) = (&a.parameter, &b.parameter);
            a.name.cmp(&b.name).then(a.value.total_cmp(&b.value))
        });
        Ok(Self {
            steps,
            stride,
            starts,
            regimes,
            views: None,
            members: 1,
            search: None,
            critic: None,
            equation: None,
        })
    }

    /// Returns the rollouts of one regime, trajectory by trajectory.
    pub fn rollouts(&self, regime: &RegimePlan) -> Vec<Start> {
        let of =
            |trajectory: usize| self.starts.iter().map(move |&frame| Start { trajectory, frame });
        regime.trajectories.iter().flat_map(|&trajectory| of(trajectory)).collect()
    }

    /// Returns the frame of state `step` of a rollout.
    pub fn frame(&self, start: Start, step: usize) -> usize {
        start.frame + step * self.stride
    }

    /// Returns the parameter of each rollout.
    pub fn parameters<'a>(&self, set: &'a TrajectorySet, starts: &[Start]) -> Vec<&'a Parameter> {
        starts.iter().map(|start| set.entry(start.trajectory).parameter).collect()
    }

    /// Time per step.
    pub fn time_step(&self, set: &TrajectorySet) -> f64 {
        self.stride as f64 * set.frame_interval()
    }

    /// Total number of rollouts.
    pub fn count(&self) -> usize {
        self.regimes.iter().map(|r| r.trajectories.len() * self.starts.len()).sum()
    }
}

/// Returns `count` of `total` indices, spread evenly and including the first and the last; all indices if `count` is 0.
fn spread(total: usize, count: usize) -> Vec<usize> {
    match count.min(total) {
        0 => (0..total).collect(),
        1 => vec![0],
        count => (0..count).map(|i| (i * (total - 1) + (count - 1) / 2) / (count - 1)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_spread_from_end_to_end() {
        assert_eq!(spread(169, 8), [0, 24, 48, 72, 96, 120, 144, 168]);
        assert_eq!(spread(5, 8), [0, 1, 2, 3, 4]);
        assert_eq!(spread(5, 0), [0, 1, 2, 3, 4]);
        assert_eq!(spread(10, 3), [0, 5, 9]);
        assert_eq!((spread(7, 1), spread(1, 8)), (vec![0], vec![0]));
    }
}
