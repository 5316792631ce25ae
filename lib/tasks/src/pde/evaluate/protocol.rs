//! The evaluation protocol: which model was evaluated on which data, and how.

use super::plan::Plan;
use super::views::Views;
use crate::TrainedModel;
use crate::pde::search::Search;
use data::fields::split_set::TrajectorySet;
use learn::trained::Origin;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

/// A trained model as named in a report.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Trained {
    /// The checkpoint, and which of its weights.
    #[serde(flatten)]
    pub origin: Origin,
    /// Number of parameters.
    pub parameters: usize,
}

/// What was evaluated on which data.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Protocol {
    /// Task of the model.
    pub task: &'static str,
    /// Path of the split manifest.
    pub split: String,
    /// BLAKE3 of the split manifest.
    pub split_hash: String,
    /// Name of the split.
    pub on: String,
    /// Grid points along each axis.
    pub grid: Vec<usize>,
    /// Frames per trajectory.
    pub frames: usize,
    /// Time between frames.
    pub frame_interval: f64,
    /// Frames per step.
    pub stride: usize,
    /// Time per step.
    pub time_step: f64,
    /// Steps per rollout; 0 for a steady problem.
    pub steps: usize,
    /// Start frames of the rollouts.
    pub start_frames: Vec<usize>,
    /// Number of trajectories.
    pub trajectories: usize,
    /// Number of rollouts.
    pub rollouts: usize,
    /// Number of views whose predictions are averaged as the model `views`; 1 for none.
    pub views: usize,
    /// Test-time search, if there was one.
    pub search: Option<Search>,
    /// Samples of each rollout, whose mean is the model `ensemble`; 1 for a single forecast.
    pub members: usize,
    /// Tokens and features of a latent state.
    pub latent: Option<[usize; 2]>,
    /// The model, its dependencies and the critic of its search, by task.
    #[serde(flatten)]
    pub models: BTreeMap<&'static str, Trained>,
}

impl Protocol {
    /// The protocol of an evaluation of `model` on `set`, opened from the manifest `split`.
    pub fn of(split: &Path, set: &TrajectorySet, plan: &Plan, model: &dyn TrainedModel) -> Self {
        let models = model.models();
        Self {
            task: models[0].0,
            split: split.display().to_string(),
            split_hash: set.manifest_hash().to_string(),
            on: set.name().to_string(),
            grid: model.shape().0.to_vec(),
            frames: set.shape().frames,
            frame_interval: set.frame_interval(),
            stride: plan.stride,
            time_step: plan.time_step(set),
            steps: plan.steps,
            start_frames: plan.starts.clone(),
            trajectories: plan.regimes.iter().map(|r| r.trajectories.len()).sum(),
            rollouts: plan.count(),
            views: plan.views.as_ref().map_or(1, Views::count),
            members: plan.members,
            search: plan.search,
            latent: model.latent(),
            models: (models.into_iter().chain(plan.critic.iter().map(|critic| critic.model())))
                .map(|(task, origin, parameters)| (task, Trained { origin, parameters }))
                .collect(),
        }
    }

    /// The grid as text: `1024`, `64 x 64`.
    pub fn points(&self) -> String {
        let sides: Vec<String> = self.grid.iter().map(ToString::to_string).collect();
        sides.join(" x ")
    }
}

/// A one-line summary.
impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { on, frames, steps, stride, time_step, rollouts, trajectories, .. } = self;
        write!(
            f,
            "{on}: {trajectories} trajectories of {frames} frames on {} points",
            self.points()
        )?;
        if *steps > 0 {
            let (starts, time_step) = (self.start_frames.len(), *time_step as f32);
            write!(
                f,
                ", {starts} start frames each: {rollouts} rollouts of {steps} steps of {stride} frames (dt = \
                 {time_step})"
            )?;
        }
        if self.members > 1 {
            write!(f, ", {} members", self.members)?;
        }
        if self.views > 1 {
            write!(f, ", {} views", self.views)?;
        }
        self.models.iter().try_for_each(|(task, model)| write!(f, "; {task} {}", model.origin))
    }
}
