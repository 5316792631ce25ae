//! The evaluation protocol: which model was evaluated on which data, and how.

use super::plan::Plan;
use crate::TrainedModel;
use data::fields::split_set::TrajectorySet;
use learn::trained::Origin;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

/// Definitions of the quantities, as written to the report.
pub const DEFINITIONS: [(&str, &str); 17] = [
    (
        "nrmse",
        "sqrt(sum of squared errors / sum of squared targets), sums over all elements of all rollouts \
         of the regime; of a rollout as a whole, over its steps from 1 on",
    ),
    (
        "nrmse_of_starts",
        "nrmse of the rollouts from each start frame by itself, and the mean of these over the start \
         frames; what the table and the summary show",
    ),
    (
        "nrmse_pdebench",
        "mean over rollouts and steps of sqrt(mean over the grid of squared error / that of squared \
         target); the definition of PDEBench's code",
    ),
    (
        "nrmse_task_scale",
        "rmse of the regime / root mean square of the targets of all regimes at steps from 1 on: one \
         scale for all regimes",
    ),
    ("rmse", "root mean square of the error"),
    ("mae", "mean absolute error"),
    ("max_error", "largest absolute error"),
    (
        "conserved_rmse",
        "root mean square over states and channels of the error of the mean over the grid",
    ),
    ("boundary_rmse", "root mean square of the error at the cells of the border"),
    (
        "fourier_rmse_low",
        "root mean square of the part of the error with wave numbers 0 to 3 (in two dimensions their \
         length, rounded); the squares of the three bands add up to that of rmse",
    ),
    ("fourier_rmse_middle", "the same for wave numbers 4 to 11"),
    ("fourier_rmse_high", "the same for wave numbers from 12 on"),
    ("persistence", "baseline: the initial state at every step"),
    (
        "mean",
        "baseline: the mean of the training data; of steady problems, the mean of the training solutions of the \
         regime, point by point",
    ),
    (
        "nearest",
        "baseline of steady problems: the solution of the training sample of the regime with the nearest input",
    ),
    ("codec", "decode(encode(target)): a lower bound for every operator on these latents"),
    (
        "latent_weighted",
        "latents normalised by channel, each channel weighted by its variance as in the operator's loss; \
         `latent` is latents as they are, `field` is the decoded field in physical units",
    ),
];

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
    /// Tokens and features of a latent state.
    pub latent: Option<[usize; 2]>,
    /// The model and its dependencies, by task.
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
            time_step: set.frame_interval() * plan.stride as f64,
            steps: plan.steps,
            start_frames: plan.starts.clone(),
            trajectories: plan.regimes.iter().map(|r| r.trajectories.len()).sum(),
            rollouts: plan.count(),
            latent: model.latent(),
            models: (models.into_iter())
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
        self.models.iter().try_for_each(|(task, model)| write!(f, "; {task} {}", model.origin))
    }
}
