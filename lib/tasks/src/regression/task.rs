//! Stage `steady`: from the inputs of a steady problem to its solution, e.g. from the coefficient of
//! Darcy flow to the pressure.
//!
//! L = mean over samples of ‖û - u‖²/(‖u‖² + floor·σ²·n), relative to each solution's own energy.

use super::model::{Steady, SteadyModel};
use crate::pde::latents::Condition;
use crate::pde::models::Patches;
use crate::pde::normalisation::Normalisation;
use crate::pde::sources::{FieldSource, Fields, Sources, joined, one, weight_violations};
use data::fields::parameter::Parameter;
use data::fields::split_set::TrajectorySet;
use data::fields::stats::Stats;
use data::inputs::InputFile;
use learn::config::Config;
use learn::params::{Builder, Params};
use learn::pass::Pass;
use learn::score::Scores;
use learn::task::{Batch, Buffers, ConfigOf, Define, Direction, Loss, Spec, Task};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::path::PathBuf;
use tensor::ops::squared_error::SquaredError;
use tensor::random::{Philox, Purpose};
use tensor::{Dtype, Tensor};
use unix::config::{Violations, within};
use unix::{Error, Result};

/// What the model is trained on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SteadyData {
    /// The split manifest that `ds-prep split` wrote.
    pub split: PathBuf,
    /// The statistics that `ds-prep stats` wrote for it.
    pub stats: PathBuf,
    /// How much of what is read is of this data set, beside the weights of the others.
    #[serde(default = "one")]
    pub weight: f64,
    /// More data sets of fields of the same kind, read in proportion to their weights.
    #[serde(default)]
    pub others: Vec<FieldSource>,
    /// Turn and mirror each square, input and solution alike, at random; for problems without a
    /// direction of their own.
    #[serde(default)]
    pub turn: bool,
}

/// What is minimised.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SteadyLoss {
    /// Added to the relative energy of a solution, in units of the variance of the data.
    pub floor: f64,
}

impl Default for SteadyLoss {
    fn default() -> Self {
        Self { floor: 0.1 }
    }
}

/// The configuration of the task.
pub type SteadyConfig = Config<SteadyData, SteadyModel, SteadyLoss>;

/// Error of the solutions of a regime.
const METRIC: &str = "nrmse";

/// How fields of a steady problem become what its model reads, and back.
#[derive(Clone, Debug)]
pub struct Preparation {
    /// Of the input and of the solution.
    pub patches: [Patches; 2],
    /// Of the input and of the solution.
    pub normalisation: [Normalisation; 2],
    /// How the parameter enters.
    pub condition: Condition,
}

impl Preparation {
    /// Splits the channels of a field [x.., inputs and states]: the inputs, or the states.
    pub fn part(&self, field: &[f32], part: usize) -> Vec<f32> {
        let [inputs, states] = [0, 1].map(|i| self.patches[i].channels());
        let own = if part == 0 { 0..inputs } else { inputs..inputs + states };
        field.chunks_exact(inputs + states).flat_map(|point| &point[own.clone()]).copied().collect()
    }

    /// A part of a field, normalised and patch by patch.
    pub fn prepare(&self, values: &[f32], part: usize, out: &mut [f32]) {
        let mut normalised = vec![0.0; values.len()];
        self.normalisation[part].apply(values, &mut normalised);
        self.patches[part].cut(&normalised, out);
    }

    /// The solution that a model's output means.
    pub fn solution(&self, patches: &[f32]) -> Vec<f32> {
        let (mut joined, mut out) = (vec![0.0; patches.len()], vec![0.0; patches.len()]);
        self.patches[1].join(patches, &mut joined);
        self.normalisation[1].invert(&joined, &mut out);
        out
    }

    /// The condition of a sample.
    pub fn features(&self, parameter: &Parameter) -> [f32; Condition::FEATURES] {
        self.condition.features(parameter, 1.0)
    }

    /// Named tensors, for a checkpoint.
    fn buffers(&self) -> Buffers {
        let mut buffers = self.normalisation[0].buffers("input");
        buffers.extend(self.normalisation[1].buffers("field"));
        let grid: Vec<f64> = self.patches[0].grid().iter().map(|n| *n as f64).collect();
        buffers.push(("field.grid".into(), Tensor::of(&grid, &[grid.len()])));
        buffers.extend(self.condition.buffers());
        buffers
    }
}

/// The task.
pub struct SteadyTask {
    model: Steady,
    preparation: Preparation,
    data: SteadyData,
    loss: SteadyLoss,
    train: Sources<TrajectorySet>,
    validation: Sources<TrajectorySet>,
    augmentation: Philox,
    input_files: Vec<InputFile>,
}

impl SteadyTask {
    /// The field of a sample, and its parameter.
    fn read(set: &Sources<TrajectorySet>, sample: u64) -> Result<(Vec<f32>, &Parameter)> {
        let (set, sample) = set.find(sample);
        let mut field = vec![0.0; set.shape().frame_len()];
        set.read(sample as usize, &mut field)?;
        Ok((field, set.entry(sample as usize).parameter))
    }

    /// One of the eight symmetries of the square.
    fn augment(&self, pass: u64, place: u64, field: &mut [f32]) {
        let &[side, other] = self.preparation.patches[0].grid() else { return };
        if !self.data.turn || side != other {
            return;
        }
        let symmetry = self.augmentation.at_update(pass).below(place, 0, 8);
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

impl Define for SteadyTask {
    const SPEC: Spec =
        Spec::new("steady", METRIC, Direction::Minimize, include_str!("steady.yaml"));
    type Data = SteadyData;
    type Model = SteadyModel;
    type Loss = SteadyLoss;

    fn violations(config: &SteadyConfig) -> Violations {
        let mut violations: Violations = within("model", config.model.core.violations()).collect();
        let weights = config.data.others.iter().map(|o| o.weight);
        violations.extend(weight_violations(config.data.weight, weights));
        if config.loss.floor.is_nan() || config.loss.floor <= 0.0 {
            violations.push(("loss.floor".into(), "must be a positive number".into()));
        }
        violations
    }

    fn open(config: &ConfigOf<Self>) -> Result<(Self, Params)> {
        let SteadyData { split, stats, weight, others, .. } = &config.data;
        let fields = Fields::open(split, stats, *weight, others)?;
        let count = |set: &TrajectorySet| set.len() as u64;
        let sources = Sources::new(fields.train, count);
        let train = sources.first();
        let (shape, inputs) = (train.shape(), train.inputs());
        if shape.frames != 1 || inputs == 0 || inputs == shape.channels {
            return Err(Error::data(format!(
                "{}: {} frames of {} channels, {inputs} of them inputs, are no steady problem; wanted are \
                 1 frame with inputs and states",
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
        let moments = |part: Range<usize>| {
            let of = |stats: &Stats| -> Vec<(f64, f64)> {
                let own = stats.channels.iter().skip(part.start).take(part.len());
                own.map(|c| (c.mean, c.std)).collect()
            };
            let all: Vec<_> = fields.stats.iter().map(|(s, weight)| (of(s), *weight)).collect();
            Normalisation::mixed(&all)
        };
        let of_set = |set: &TrajectorySet| -> Vec<f64> {
            (0..set.len()).map(|i| set.entry(i).parameter.value).collect()
        };
        let parameters: Vec<f64> = sources.iter().flat_map(of_set).collect();
        let preparation = Preparation {
            patches,
            normalisation: [moments(0..inputs), moments(inputs..shape.channels)],
            condition: Condition::new(&parameters, 1.0),
        };
        let mut builder = Builder::new(config.seed);
        let [input, output] = &preparation.patches;
        let model = Steady::new(&mut builder, &config.model, [input, output], Condition::FEATURES);
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

impl Task for SteadyTask {
    fn sources(&self) -> Vec<(u64, f64)> {
        self.train.shares()
    }

    fn data_hash(&self) -> String {
        joined(self.train.iter().map(TrajectorySet::manifest_hash))
    }

    fn input_files(&self) -> Vec<InputFile> {
        self.input_files.clone()
    }

    fn batch(&self, pass: u64, first: u64, samples: &[u64]) -> Result<Batch> {
        let lengths = [0, 1].map(|part| self.preparation.patches[part].field_len());
        let [mut inputs, mut solutions] =
            lengths.map(|length| Tensor::arbitrary(&[samples.len(), length], Dtype::F32));
        let (mut features, mut weights) = (Vec::new(), Vec::new());
        let rows = inputs
            .write::<f32>()
            .chunks_exact_mut(lengths[0])
            .zip(solutions.write::<f32>().chunks_exact_mut(lengths[1]));
        for ((place, sample), (input, solution)) in (first..).zip(samples).zip(rows) {
            let (mut field, parameter) = Self::read(&self.train, *sample)?;
            self.augment(pass, place, &mut field);
            let [given, u] = [0, 1].map(|part| self.preparation.part(&field, part));
            let relative = self.preparation.normalisation[1].energy(&u);
            weights.push((1.0 / (relative + self.loss.floor)) as f32);
            self.preparation.prepare(&given, 0, input);
            self.preparation.prepare(&u, 1, solution);
            features.extend(self.preparation.features(parameter));
        }
        let features = Tensor::of(&features, &[samples.len(), Condition::FEATURES]);
        Ok(Batch::new(samples.len() as f64)
            .with("inputs", inputs)
            .with("solutions", solutions)
            .with("features", features)
            .with("weights", Tensor::of(&weights, &[samples.len()])))
    }

    fn loss(&self, pass: &Pass, batch: &Batch) -> Result<Loss> {
        let input = |name: &str| batch.input(pass, name);
        let (x, features) = (input("inputs")?, input("features")?);
        let (u, weights) = (input("solutions")?, input("weights")?);
        let found = self.model.forward(pass, &x, &features)?;
        let points = pass.full(&[u.shape()[1]], 1.0)?;
        Ok(pass.apply(SquaredError, &[&found, &u, &weights, &points])?.into())
    }

    fn validation_samples(&self) -> u64 {
        self.validation.samples()
    }

    fn evaluate(&self, pass: &Pass, samples: &[u64], scores: &mut Scores) -> Result<()> {
        let read = |sample: &u64| Self::read(&self.validation, *sample);
        let fields: Vec<(Vec<f32>, &Parameter)> =
            samples.iter().map(read).collect::<Result<_>>()?;
        let given: Vec<Vec<f32>> =
            fields.iter().map(|(f, _)| self.preparation.part(f, 0)).collect();
        let parameters: Vec<&Parameter> = fields.iter().map(|(_, parameter)| *parameter).collect();
        let found = predict(&self.model, pass, &self.preparation, &given, &parameters)?;
        for ((field, parameter), found) in fields.iter().zip(&found) {
            let solution = self.preparation.part(field, 1);
            scores.nrmse(METRIC, &parameter.to_string(), found, &solution);
        }
        Ok(())
    }

    fn buffers(&self) -> Buffers {
        self.preparation.buffers()
    }
}

/// The solutions [x.., states] for inputs [x.., inputs] in physical units.
pub(crate) fn predict(
    model: &Steady,
    pass: &Pass,
    preparation: &Preparation,
    inputs: &[Vec<f32>],
    parameters: &[&Parameter],
) -> Result<Vec<Vec<f32>>> {
    let [given, solved] = [0, 1].map(|part| preparation.patches[part].field_len());
    let mut x = Tensor::arbitrary(&[inputs.len(), given], Dtype::F32);
    for (input, out) in inputs.iter().zip(x.write::<f32>().chunks_exact_mut(given)) {
        preparation.prepare(input, 0, out);
    }
    let features: Vec<f32> = parameters.iter().flat_map(|p| preparation.features(p)).collect();
    let features = Tensor::of(&features, &[inputs.len(), Condition::FEATURES]);
    let found = model.forward(pass, &pass.data(&x)?, &pass.data(&features)?)?.value().to_host()?;
    Ok(found.read::<f32>().chunks_exact(solved).map(|u| preparation.solution(u)).collect())
}
