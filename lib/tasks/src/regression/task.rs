//! Task `regression`: predicts the solution of a steady problem from its inputs, e.g. the pressure of Darcy flow from
//! the coefficient.
//!
//! L = mean over samples of ‖û - u‖²/(‖u‖² + floor·σ²·n), relative to the energy of each solution.

use super::model::{Regression, RegressionModel};
use crate::pde::latents::Condition;
use crate::pde::models::Patches;
use crate::pde::sources::{
    FieldSource, Fields, Sources, joined, normalisation, one, positive, weight_violations,
};
use crate::pde::tokens::FieldTokens;
use data::fields::parameter::Parameter;
use data::fields::split_set::TrajectorySet;
use data::inputs::InputFile;
use learn::config::Config;
use learn::forward::Forward;
use learn::params::{Builder, ParamSet};
use learn::score::Scores;
use learn::task::{Batch, Buffers, ConfigOf, Define, Direction, Loss, Predictions, Spec, Task};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use tensor::Tensor;
use tensor::ops::squared_error::SquaredError;
use tensor::random::{Philox, Purpose};
use unix::config::{Violations, within};
use unix::{Error, Result};

/// The training and validation data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RegressionData {
    /// Split manifest written by `ds-prep split`.
    pub split: PathBuf,
    /// Statistics of the training split, written by `ds-prep stats`.
    pub stats: PathBuf,
    /// Sampling weight of this data set, relative to the weights of the others.
    #[serde(default = "one")]
    pub weight: f64,
    /// Additional data sets with the same grid and channels, sampled in proportion to their weights.
    #[serde(default)]
    pub additional: Vec<FieldSource>,
    /// Data augmentation: apply a random rotation or reflection of the square to input and solution alike. Only for
    /// problems without a preferred direction.
    #[serde(default)]
    pub random_rotation: bool,
}

/// The loss function.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RegressionLoss {
    /// Added to the relative energy of a solution, in units of the variance of the data; prevents division by very
    /// small energies.
    pub floor: f64,
}

impl Default for RegressionLoss {
    fn default() -> Self {
        Self { floor: 0.1 }
    }
}

/// The configuration of the task.
pub type RegressionConfig = Config<RegressionData, RegressionModel, RegressionLoss>;

/// Error of the solutions of each regime.
const METRIC: &str = "nrmse";

/// Converts fields of a steady problem to the tensors of its model and back.
#[derive(Clone, Debug)]
pub struct Preparation {
    /// Patches and normalisation of the input and of the solution.
    pub tokens: [FieldTokens; 2],
    /// Features of the equation's parameter.
    pub condition: Condition,
}

impl Preparation {
    /// The inputs or the states of a field [x.., inputs and states].
    pub fn part(&self, field: &[f32], part: usize) -> Vec<f32> {
        let [inputs, states] = [0, 1].map(|i| self.tokens[i].patches.channels());
        let own = if part == 0 { 0..inputs } else { inputs..inputs + states };
        field.chunks_exact(inputs + states).flat_map(|point| &point[own.clone()]).copied().collect()
    }

    /// The model inputs for fields [n, x.., inputs] in physical units and their parameters.
    ///
    /// Errors: those of [`Condition::features`].
    pub fn batch(&self, inputs: &[f32], parameters: &[&Parameter]) -> Result<Batch> {
        Ok(Batch::new(parameters.len() as f64)
            .with("inputs", self.tokens[0].cut_all(inputs))
            .with("features", self.condition.features_of(parameters, 1.0)?))
    }

    /// Predicts the solutions [n, x.., states] in physical units for a batch on the device of `forward`.
    pub fn predict(
        &self,
        model: &Regression,
        forward: &Forward,
        batch: &Batch,
    ) -> Result<Vec<f32>> {
        let (x, features) = (batch.input(forward, "inputs")?, batch.input(forward, "features")?);
        let found = model.forward(forward, &x, &features)?.value().to_host()?;
        Ok(self.tokens[1].join_all(&found))
    }
}

/// The task.
pub struct RegressionTask {
    model: Regression,
    preparation: Preparation,
    data: RegressionData,
    loss: RegressionLoss,
    train: Sources<TrajectorySet>,
    validation: Sources<TrajectorySet>,
    augmentation: Philox,
    input_files: Vec<InputFile>,
}

impl RegressionTask {
    /// The field of a sample and its parameter.
    fn read(set: &Sources<TrajectorySet>, sample: u64) -> Result<(Vec<f32>, &Parameter)> {
        let (set, sample) = set.find(sample);
        let mut field = vec![0.0; set.shape().frame_len()];
        set.read(sample as usize, &mut field)?;
        Ok((field, set.entry(sample as usize).parameter))
    }

    /// One of the eight symmetries of the square, applied at random.
    fn augment(&self, micro_batch: u64, place: u64, field: &mut [f32]) {
        let &[side, other] = self.preparation.tokens[0].patches.grid() else { return };
        if !self.data.random_rotation || side != other {
            return;
        }
        let symmetry = self.augmentation.at_update(micro_batch).below(place, 0, 8);
        let channels = field.len() / (side * side);
        let old = field.to_vec();
        for (at, point) in field.chunks_exact_mut(channels).enumerate() {
            let [mut x, mut y] = [at / side, at % side];
            x = if symmetry & 1 == 0 { x } else { side - 1 - x };
            y = if symmetry & 2 == 0 { y } else { side - 1 - y };
            let from = if symmetry & 4 == 0 { x * side + y } else { y * side + x };
            point.copy_from_slice(&old[from * channels..][..channels]);
        }
    }
}

impl Define for RegressionTask {
    const SPEC: Spec =
        Spec::new("regression", METRIC, Direction::Minimize, include_str!("regression.yaml"));
    type Data = RegressionData;
    type Model = RegressionModel;
    type Loss = RegressionLoss;

    fn violations(config: &RegressionConfig) -> Violations {
        let mut violations: Violations =
            within("model", config.model.backbone.violations()).collect();
        let weights = config.data.additional.iter().map(|o| o.weight);
        violations.extend(weight_violations(config.data.weight, weights));
        violations.extend(positive("loss.floor", config.loss.floor));
        violations
    }

    fn open(config: &ConfigOf<Self>) -> Result<(Self, ParamSet)> {
        let RegressionData { split, stats, weight, additional, .. } = &config.data;
        let fields = Fields::open(split, stats, *weight, additional)?;
        let count = |set: &TrajectorySet| set.len() as u64;
        let sources = Sources::new(fields.train, count);
        let train = sources.first();
        let (shape, inputs) = (train.shape(), train.inputs());
        if shape.frames != 1 || inputs == 0 || inputs == shape.channels {
            return Err(Error::data(format!(
                "{}: {} frames of {} channels, {inputs} of them inputs; a steady problem has 1 frame \
                 with inputs and states",
                config.data.split.display(),
                shape.frames,
                shape.channels
            )));
        }
        let cut = |channels: usize| {
            Patches::new(&shape.grid, channels, config.model.patch).map_err(|why| {
                Error::config(format!("model: {why} of {}", config.data.split.display()))
            })
        };
        let patches = [cut(inputs)?, cut(shape.channels - inputs)?];
        let all = sources.iter().flat_map(|set| (0..set.len()).map(|i| set.entry(i).parameter));
        let condition = Condition::new(all.map(|p| (p.names(), vec![p.value], 1.0)));
        let [input, output] = patches;
        let mut builder = Builder::new(config.seed);
        let patches = [&input, &output];
        let model = Regression::new(&mut builder, &config.model, patches, condition.width());
        let tokens = [(input, 0..inputs), (output, inputs..shape.channels)];
        let tokens = tokens.map(|(patches, part)| FieldTokens {
            patches,
            normalisation: normalisation(&fields.stats, part),
        });
        let preparation = Preparation { tokens, condition };
        let task = Self {
            model,
            preparation,
            data: config.data.clone(),
            loss: config.loss.clone(),
            validation: Sources::new(fields.validation, count),
            train: sources,
            augmentation: Philox::new(config.seed, Purpose::Augmentation),
            input_files: fields.input_files,
        };
        builder.check()?;
        Ok((task, builder.finish()))
    }
}

impl Task for RegressionTask {
    fn sources(&self) -> Vec<(u64, f64)> {
        self.train.shares()
    }

    fn data_hash(&self) -> String {
        joined(self.train.iter().map(TrajectorySet::manifest_hash))
    }

    fn input_files(&self) -> Vec<InputFile> {
        self.input_files.clone()
    }

    fn batch(&self, micro_batch: u64, first: u64, samples: &[u64]) -> Result<Batch> {
        let (mut inputs, mut solutions) = (Vec::new(), Vec::new());
        let (mut parameters, mut weights) = (Vec::new(), Vec::new());
        for (place, sample) in (first..).zip(samples) {
            let (mut field, parameter) = Self::read(&self.train, *sample)?;
            self.augment(micro_batch, place, &mut field);
            let u = self.preparation.part(&field, 1);
            let relative = self.preparation.tokens[1].normalisation.energy(&u);
            weights.push((1.0 / (relative + self.loss.floor)) as f32);
            inputs.extend(self.preparation.part(&field, 0));
            solutions.extend(u);
            parameters.push(parameter);
        }
        let batch = self.preparation.batch(&inputs, &parameters)?;
        Ok(batch
            .with("solutions", self.preparation.tokens[1].cut_all(&solutions))
            .with("weights", Tensor::from_slice(&weights, &[samples.len()])))
    }

    fn loss(&self, forward: &Forward, batch: &Batch) -> Result<Loss> {
        let input = |name: &str| batch.input(forward, name);
        let (x, features) = (input("inputs")?, input("features")?);
        let (u, weights) = (input("solutions")?, input("weights")?);
        let found = self.model.forward(forward, &x, &features)?;
        let points = forward.full(&[u.shape()[1]], 1.0)?;
        Ok(forward.apply(SquaredError, &[&found, &u, &weights, &points])?.into())
    }

    fn validation_samples(&self) -> u64 {
        self.validation.samples()
    }

    fn evaluate(&self, forward: &Forward, samples: &[u64], scores: &mut Scores) -> Result<()> {
        let (mut inputs, mut solutions, mut parameters) = (Vec::new(), Vec::new(), Vec::new());
        for sample in samples {
            let (field, parameter) = Self::read(&self.validation, *sample)?;
            inputs.extend(self.preparation.part(&field, 0));
            solutions.push(self.preparation.part(&field, 1));
            parameters.push(parameter);
        }
        let batch = self.preparation.batch(&inputs, &parameters)?.to_device(forward.device())?;
        let predictions = self.predict(forward, &batch)?;
        let found = predictions.rows("solutions")?;
        for ((solution, parameter), found) in solutions.iter().zip(parameters).zip(found) {
            scores.nrmse(METRIC, &parameter.to_string(), found, solution);
        }
        Ok(())
    }

    /// Predicts `solutions`, in physical units, [x.., states].
    fn predict(&self, forward: &Forward, batch: &Batch) -> Result<Predictions> {
        let solutions = self.preparation.predict(&self.model, forward, batch)?;
        let length = self.preparation.tokens[1].field_len();
        Ok(Predictions::default().with("solutions", length, solutions))
    }

    fn buffers(&self) -> Buffers {
        let [input, solution] = &self.preparation.tokens;
        let mut buffers = input.normalisation.buffers("input");
        buffers.extend(solution.buffers("field"));
        buffers.extend(self.preparation.condition.buffers());
        buffers
    }
}
