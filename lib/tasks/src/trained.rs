//! Trained models behind one interface for all tasks, as programs use them.

use crate::TASKS;
use crate::pde::evaluate::{Batch, Plan, Request, Start};
use crate::pde::{TrainedCodec, TrainedOperator};
use crate::regression::TrainedRegression;
use data::fields::field::Field;
use data::fields::split_set::TrajectorySet;
use data::fields::write::Header;
use learn::trained::{Origin, Parts, Weights};
use std::ops::Range;
use std::path::{Path, PathBuf};
use tensor::Device;
use unix::{Context, Error, Result};

/// A model with its trained weights, together with the models that it depends on.
pub trait TrainedModel: Send + Sync {
    /// Restores the model from its checkpoint. Errors: 65 when its parts do not match, 66 when a model that it depends
    /// on cannot be found.
    fn restore(parts: &Parts, opener: &Opener) -> Result<Self>
    where
        Self: Sized;

    /// Task, origin and number of parameters of every trained model in use, this one first.
    fn models(&self) -> Vec<(&'static str, Origin, usize)>;

    /// Grid of the fields that it predicts, and their number of channels.
    fn shape(&self) -> (&[usize], usize);

    /// Tokens and features of its latent states, if it has any.
    fn latent(&self) -> Option<[usize; 2]> {
        None
    }

    /// The operator whose latent states it predicts, if it has one.
    fn operator(&self) -> Option<&TrainedOperator> {
        None
    }

    /// The model, if it is one of regression, which may read records.
    fn regression(&self) -> Option<&TrainedRegression> {
        None
    }

    /// Whether its baselines need the training split.
    fn needs_training_data(&self) -> bool {
        false
    }

    /// Which predictions are scored. Errors: 2 when a rollout is longer than the trajectories of `set`; 65 when the
    /// model cannot read its fields.
    fn plan(&self, set: &TrajectorySet, request: &Request) -> Result<Plan>;

    /// Ground truth, predictions and baselines for some rollouts of a plan, all of one regime. `train` is the training
    /// split; it is given if [`TrainedModel::needs_training_data`].
    fn rollouts(
        &self,
        set: &TrajectorySet,
        train: Option<&TrajectorySet>,
        plan: &Plan,
        starts: &[Start],
    ) -> Result<Batch>;

    /// The header of the file of predictions for the trajectories of `inputs`. Errors: 65 when the model cannot read
    /// its fields.
    fn output(&self, inputs: &Field, request: &Request) -> Result<Header>;

    /// The predictions for the trajectories `which` of `inputs`, concatenated, in the layout of
    /// [`TrainedModel::output`].
    fn predict(&self, inputs: &Field, which: Range<usize>, request: &Request) -> Result<Vec<f32>>;

    /// The codec, if the model is one.
    fn encoder(&self) -> Option<&TrainedCodec> {
        None
    }
}

/// How to open trained models.
#[derive(Clone, Debug)]
pub struct Opener {
    /// Which weights of the checkpoints to use.
    pub weights: Weights,
    /// The device to compute on.
    pub device: Device,
    /// Replacements for the models that a model depends on: name, and run directory or checkpoint.
    pub with: Vec<(String, PathBuf)>,
}

impl Opener {
    /// Opens a checkpoint of any task; for a run directory, the best checkpoint.
    ///
    /// Errors: 66 when there is no checkpoint; 65 when it or a dependency is damaged or they do not match; 2 for a
    /// replacement of something that it does not depend on.
    pub fn open(&self, path: &Path) -> Result<Box<dyn TrainedModel>> {
        let parts = Parts::read(path, self.weights)?;
        let known = TASKS.iter().find(|entry| entry.spec.name == parts.task);
        let Some(entry) = known else {
            let (checkpoint, task) = (parts.origin.checkpoint.display(), &parts.task);
            return Err(Error::data(format!("{checkpoint}: unknown task {task}")));
        };
        if let Some((name, _)) = self.with.iter().find(|(n, _)| !parts.dependencies.contains_key(n))
        {
            let checkpoint = parts.origin.checkpoint.display();
            return Err(Error::usage(format!(
                "--with {name}: {checkpoint} does not need a {name}"
            )));
        }
        (entry.restore)(&parts, self).context(|| parts.origin.checkpoint.display().to_string())
    }

    /// Opens the trained model `name` that `parts` depend on: the recorded one, or its replacement.
    ///
    /// Errors: 66 when it cannot be found, 65 when it is not the one that the model was trained with, 2 when its path
    /// is not recorded and no replacement is given.
    pub fn dependency<M>(
        &self,
        parts: &Parts,
        name: &str,
        restore: impl FnOnce(&Parts, &Self) -> Result<(M, String)>,
    ) -> Result<M> {
        let Some(recorded) = parts.dependencies.get(name) else {
            return Err(Error::data(format!("its manifest records no {name}")));
        };
        let replaced = self.with.iter().find(|(own, _)| own == name).map(|(_, path)| path);
        let Some(path) = replaced.or(recorded.path.as_ref()) else {
            return Err(Error::usage(format!("needs a {name}: add --with {name}=RUN")));
        };
        let hint =
            || format!("the {name} that it depends on; give its new path with --with {name}=RUN");
        let found = Parts::read(path, self.weights).context(hint)?;
        let (model, hash) = restore(&found, self)?;
        if hash != recorded.hash {
            return Err(Error::data(format!(
                "trained with a different {name} ({}) than {} ({hash}); add --with {name}=RUN with the run or \
                 checkpoint of that {name}",
                recorded.hash, found.origin
            )));
        }
        Ok(model)
    }
}

/// Rejects (65) fields whose grid or numbers of inputs and states differ from what a model reads.
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
