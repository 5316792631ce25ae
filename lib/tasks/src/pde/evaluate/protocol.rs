//! The protocol of an evaluation: the data and the rollouts that are scored.

use super::plan::RolloutPlan;
use super::rollouts::Rollouts;
use super::views::Views;
use crate::pde::codec::CodecTask;
use data::fields::split_set::TrajectorySet;
use learn::task::Define;
use serde::Serialize;
use std::fmt;

/// The data and the rollouts that are scored.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Protocol {
    /// Name of the split.
    #[serde(skip)]
    pub on: String,
    /// `reconstruction` for a codec, which receives the target, else `prediction`.
    pub measures: &'static str,
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
    #[serde(skip)]
    pub views: usize,
    /// Number of samples of each rollout, whose mean is the model `ensemble`; 1 for a single forecast.
    #[serde(skip)]
    pub members: usize,
    /// Task and number of parameters of each model.
    #[serde(skip)]
    pub models: Vec<(&'static str, usize)>,
}

impl Protocol {
    /// Describes an evaluation of `model` on `set`.
    pub fn of(set: &TrajectorySet, plan: &RolloutPlan, model: &dyn Rollouts) -> Self {
        let models = model.models();
        let is_codec = models[0].0 == CodecTask::SPEC.name;
        Self {
            on: set.name().to_string(),
            measures: if is_codec { "reconstruction" } else { "prediction" },
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
            models: models.into_iter().map(|(task, _, parameters)| (task, parameters)).collect(),
        }
    }

    /// Formats the grid, e.g. `1024` or `64 x 64`.
    pub fn points(&self) -> String {
        let sides: Vec<String> = self.grid.iter().map(ToString::to_string).collect();
        sides.join(" x ")
    }
}

/// Writes a one-line summary.
impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { on, frames, steps, stride, time_step, rollouts, trajectories, .. } = self;
        write!(
            f,
            "{on}: {} of {trajectories} trajectories of {frames} frames on {} points",
            self.measures,
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
        Ok(())
    }
}
