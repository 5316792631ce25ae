//! Trained models as programs use them, whatever their task.

use crate::TASKS;
use crate::pde::TrainedCodec;
use crate::pde::evaluate::{Batch, Plan, Request, Start};
use data::fields::field::Field;
use data::fields::split_set::TrajectorySet;
use data::fields::write::{Header, Partial};
use learn::trained::{Origin, Parts, Weights};
use serde_json::Value;
use std::ops::Range;
use std::path::{Path, PathBuf};
use tensor::Device;
use unix::publish::hash_file;
use unix::{Context, Error, Result};

/// Trajectories that are predicted at once.
const BATCH: usize = 16;

/// A model with its trained weights, and those of the models that it needs.
pub trait TrainedModel: Send + Sync {
    /// The trained models that are used, this one first: task, origin, number of parameters.
    fn models(&self) -> Vec<(&'static str, Origin, usize)>;

    /// Grid points along each axis of the fields that it predicts, and their channels.
    fn shape(&self) -> (&[usize], usize);

    /// Tokens and features of its latents, where it has any.
    fn latent(&self) -> Option<[usize; 2]> {
        None
    }

    /// Whether the baselines that it is compared with need the training split.
    fn needs_training_data(&self) -> bool {
        false
    }

    /// Which predictions are scored. Errors: 2 when a rollout does not fit into the trajectories of `set`; 65 when the
    /// model cannot read its fields.
    fn plan(&self, set: &TrajectorySet, request: &Request) -> Result<Plan>;

    /// Ground truth, predictions and baselines for some rollouts of a plan, all of one regime; `train` is the
    /// training split where [`TrainedModel::needs_training_data`].
    fn rollouts(
        &self,
        set: &TrajectorySet,
        train: Option<&TrajectorySet>,
        plan: &Plan,
        starts: &[Start],
    ) -> Result<Batch>;

    /// The file of predictions for the trajectories of `inputs`. Errors: 65 when the model cannot read its fields.
    fn output(&self, inputs: &Field, request: &Request) -> Result<Header>;

    /// The predictions for some trajectories of `inputs`, one after another as [`TrainedModel::output`] says.
    fn predict(&self, inputs: &Field, which: Range<usize>, request: &Request) -> Result<Vec<f32>>;

    /// The codec, where the model is one.
    fn encoder(&self) -> Option<&TrainedCodec> {
        None
    }
}

/// How trained models are opened.
#[derive(Clone, Debug)]
pub struct Opener {
    /// Which weights of their checkpoints.
    pub weights: Weights,
    /// Where they compute.
    pub device: Device,
    /// What replaces the models that they need: name, and run directory or checkpoint.
    pub with: Vec<(String, PathBuf)>,
}

impl Opener {
    /// Opens a checkpoint of any task; of a run directory the best one.
    ///
    /// Errors: 66 when there is none; 65 when it, or what it needs, is damaged or does not fit; 2 for a replacement
    /// of something that it does not need.
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

    /// Opens the trained model `name` that `parts` depend on: the one recorded, or its replacement.
    ///
    /// Errors: 66 when it cannot be found, 65 when it is another one than the model was trained with.
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
        let hint = || {
            format!("the {name} that it needs; another path of it is given by --with {name}=RUN")
        };
        let found = Parts::read(path, self.weights).context(hint)?;
        let (model, hash) = restore(&found, self)?;
        if hash != recorded.hash {
            return Err(Error::data(format!(
                "trained with another {name} ({}) than {} ({hash}); add --with {name}=RUN with the run or \
                 checkpoint of that {name}",
                recorded.hash, found.origin
            )));
        }
        Ok(model)
    }
}

/// Makes the file `output` of the predictions for all trajectories of the file `inputs`, or what is missing of it: an
/// interrupted call is continued after the last trajectories that it stored. `done` is called with the number of
/// trajectories that are stored, and of all.
///
/// Errors: those of `done`, 65 when the model cannot read the inputs, 66, 73 when the output is there already and not to
/// be replaced, 74; 75 when another process writes it.
pub fn predict_file(
    model: &dyn TrainedModel,
    inputs: &Path,
    output: &Path,
    replace: bool,
    request: &Request,
    mut done: impl FnMut(usize, usize) -> Result<()>,
) -> Result<()> {
    let field = Field::open(inputs)?;
    let mut header = model.output(&field, request).context(|| inputs.display().to_string())?;
    let text = |text: String| Value::from(text);
    let parameter = field.parameter().into_iter().flat_map(|parameter| parameter.iter());
    header.attributes.extend(parameter.map(|(name, value)| (name.into(), Value::from(value))));
    header.attributes.push(("predicted_from".into(), text(inputs.display().to_string())));
    header.attributes.push(("predicted_from_blake3".into(), text(hash_file(inputs)?)));
    for (task, origin, _) in model.models() {
        header.attributes.push((task.into(), text(origin.to_string())));
        header.attributes.push((format!("{task}_blake3"), text(origin.blake3)));
    }
    let mut partial = Partial::open(output, &header)?;
    let (length, all) = (header.shape.trajectory_len(), field.trajectories());
    done(partial.done(), all)?;
    while partial.done() < all {
        let which = partial.done()..all.min(partial.done() + BATCH);
        let predictions = model.predict(&field, which.clone(), request)?;
        for (trajectory, values) in which.clone().zip(predictions.chunks_exact(length)) {
            partial.writer().write(trajectory, values)?;
        }
        partial.advance(which.end)?;
        unix::fail::point("save.after_shard").map_err(|cause| Error::io(output, cause))?;
        done(which.end, all)?;
    }
    if replace && output.exists() {
        std::fs::remove_file(output).map_err(|cause| Error::create(output, cause))?;
    }
    partial.publish()
}

/// Refuses (65) fields on another grid, or with other numbers of inputs and states, than a model reads.
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
