//! The common interface of models of fields for evaluations and predictions.

use super::batch::Batch;
use super::plan::{RolloutPlan, RolloutRequest, Start};
use crate::pde::TrainedOperator;
use crate::trained::Opener;
use data::fields::field::Field;
use data::fields::split_set::TrajectorySet;
use data::fields::write::Header;
use learn::trained::{Origin, Parts};
use std::ops::Range;
use unix::{Error, Result};

/// A model of fields with its trained weights, together with the models that it depends on.
pub trait Rollouts: Send + Sync {
    /// Restores the model from its checkpoint. Errors: 65 when parts of the checkpoint are inconsistent, 66 when a
    /// model that it depends on cannot be found.
    fn restore(parts: &Parts, opener: &Opener) -> Result<Self>
    where
        Self: Sized;

    /// Task, origin and number of parameters of every trained model in use, starting with this model.
    fn models(&self) -> Vec<(&'static str, Origin, usize)>;

    /// Grid and number of channels of the predicted fields.
    fn shape(&self) -> (&[usize], usize);

    /// Number of tokens and features of the latent states, if the model has any.
    fn latent(&self) -> Option<[usize; 2]> {
        None
    }

    /// The operator whose latent states the model predicts, if any.
    fn operator(&self) -> Option<&TrainedOperator> {
        None
    }

    /// Returns whether the baselines need the training split.
    fn needs_training_data(&self) -> bool {
        false
    }

    /// Plans the rollouts to score. Errors: 2 when a rollout is longer than the trajectories of `set`; 65 when the
    /// model cannot read the fields of `set`.
    fn plan(&self, set: &TrajectorySet, request: &RolloutRequest) -> Result<RolloutPlan>;

    /// Computes ground truth, predictions and baselines for rollouts of a plan, all of one regime. `train`, the
    /// training split, is given if [`Rollouts::needs_training_data`].
    fn rollouts(
        &self,
        set: &TrajectorySet,
        train: Option<&TrajectorySet>,
        plan: &RolloutPlan,
        starts: &[Start],
    ) -> Result<Batch>;

    /// Returns the header of the prediction file for the trajectories of `inputs`. Errors: 65 when the model cannot
    /// read the fields of `inputs`.
    fn output(&self, inputs: &Field, request: &RolloutRequest) -> Result<Header>;

    /// Predicts the trajectories `which` of `inputs`, concatenated, in the layout of [`Rollouts::output`].
    fn predict(
        &self,
        inputs: &Field,
        which: Range<usize>,
        request: &RolloutRequest,
    ) -> Result<Vec<f32>>;
}

/// Refuses (65) fields whose grid or numbers of inputs and states differ from those that a model reads.
pub(crate) fn require_fields(
    found: (&[usize], usize, usize),
    expected: (&[usize], usize, usize),
) -> Result<()> {
    if found == expected {
        return Ok(());
    }
    let text = |(grid, inputs, states): (&[usize], usize, usize)| {
        format!("{inputs} inputs and {states} states on a grid of {grid:?}")
    };
    let (found, expected) = (text(found), text(expected));
    Err(Error::data(format!("the data has {found}, the model was trained on {expected}")))
}
