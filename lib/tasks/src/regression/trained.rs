//! A trained model of a steady problem: inputs in physical units to solutions.

use super::model::{Steady, SteadyModel};
use crate::pde::grid_of;
use crate::pde::latents::Condition;
use crate::pde::models::Patches;
use crate::pde::normalisation::Normalisation;
use crate::regression::task::{Preparation, SteadyTask, predict};
use data::fields::parameter::Parameter;
use data::fields::split_set::TrajectorySet;
use learn::params::{Builder, Params};
use learn::pass::Pass;
use learn::trained::{Origin, Parts, Weights};
use std::path::Path;
use tensor::{Device, Tape};
use unix::{Context, Error, Result};

/// Inputs that go through the model at once.
const BATCH: usize = 64;

/// A model with its weights and normalisations.
#[derive(Clone, Debug)]
pub struct TrainedSteady {
    origin: Origin,
    model: Steady,
    params: Params,
    preparation: Preparation,
}

impl TrainedSteady {
    /// Opens a checkpoint, or a run directory, of which the best checkpoint is taken.
    ///
    /// Errors: 66 when there is none, 65 when it is damaged or of another stage.
    pub fn open(path: &Path, weights: Weights) -> Result<Self> {
        let parts = Parts::read::<SteadyTask>(path, weights)?;
        Self::new(&parts).context(|| parts.origin.checkpoint.display().to_string())
    }

    /// From its parts. Errors: 65 when they do not fit each other.
    pub fn new(parts: &Parts) -> Result<Self> {
        let config: SteadyModel = parts.section("model")?;
        let normalisation = [
            Normalisation::from_buffers("input", &parts.buffers)?,
            Normalisation::from_buffers("field", &parts.buffers)?,
        ];
        let grid = grid_of("field.grid", &parts.buffers)?;
        let cut = |part: usize| {
            Patches::new(&grid, normalisation[part].channels(), config.patch).map_err(Error::data)
        };
        let patches = [cut(0)?, cut(1)?];
        let mut builder = Builder::new(0);
        let [input, output] = &patches;
        let model = Steady::new(&mut builder, &config, [input, output], Condition::FEATURES);
        let mut params = builder.finish();
        params.assign(&parts.weights)?;
        let condition = Condition::from_buffers(&parts.buffers)?;
        let preparation = Preparation { patches, normalisation, condition };
        Ok(Self { origin: parts.origin.clone(), model, params, preparation })
    }

    /// The same, computing on `device`.
    pub fn on(mut self, device: Device) -> Result<Self> {
        self.params = self.params.to_device(device)?;
        Ok(self)
    }

    /// Where it came from.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Numbers in the model.
    pub fn parameters(&self) -> usize {
        self.params.count()
    }

    /// How fields become what it reads.
    pub fn preparation(&self) -> &Preparation {
        &self.preparation
    }

    /// Refuses (65) a data set whose fields it cannot read.
    pub fn require_fields_of(&self, set: &TrajectorySet) -> Result<()> {
        let [input, output] = &self.preparation.patches;
        let shape = set.shape();
        let sizes = (set.inputs(), shape.channels, shape.frames);
        if shape.grid == input.grid()
            && sizes == (input.channels(), input.channels() + output.channels(), 1)
        {
            return Ok(());
        }
        Err(Error::data(format!(
            "the data has {} channels, {} of them inputs, on a grid of {:?}; the model reads {} inputs on \
             {:?}: it was trained on other data",
            shape.channels,
            set.inputs(),
            shape.grid,
            input.channels(),
            input.grid()
        )))
    }

    /// Solutions [x.., states] for inputs [x.., inputs] in physical units.
    pub fn solve(&self, inputs: &[Vec<f32>], parameters: &[&Parameter]) -> Result<Vec<Vec<f32>>> {
        let tape = Tape::without_gradients();
        let pass = Pass::frozen(&tape, &self.params);
        let mut found = Vec::with_capacity(inputs.len());
        for (inputs, parameters) in inputs.chunks(BATCH).zip(parameters.chunks(BATCH)) {
            found.extend(predict(&self.model, &pass, &self.preparation, inputs, parameters)?);
        }
        Ok(found)
    }
}
