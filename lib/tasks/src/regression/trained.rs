//! A trained regression model: maps inputs in physical units to solutions.
//!
//! The baselines are the pointwise mean of the training solutions, and the solution of the training sample with the
//! nearest input. Both use the training samples with the same parameter value, or all samples if there are none.

use super::model::{Regression, RegressionModel, on_grid};
use super::pairs::part_of;
use super::task::{Preparation, RegressionTask, patches};
use crate::common::condition::Condition;
use crate::common::normalisation::Normalisation;
use crate::common::tokens::FieldTokens;
use crate::pde::evaluate::{
    Batch, Cost, Frames, Method, RolloutPlan, RolloutRequest, Rollouts, Space, Start, Views,
    require_fields,
};
use crate::trained::Opener;
use data::fields::field::{Field, Shape};
use data::fields::parameter::Parameter;
use data::fields::split_set::TrajectorySet;
use data::fields::write::Header;
use data::records::ValueShape;
use learn::score::Bits;
use learn::task::Define;
use learn::trained::{Origin, Parts, TrainedModel};
use rayon::prelude::*;
use std::ops::Range;
use std::time::Instant;
use unix::{Error, Result};

/// Maximum number of inputs per forward pass.
const BATCH: usize = 64;
/// Maximum size of these inputs in bytes, unless a single one is larger. Activations are a few hundred times larger.
const BATCH_BYTES: usize = 4 << 20;

/// A model with its weights and normalisations.
#[derive(Clone, Debug)]
pub struct TrainedRegression {
    trained: TrainedModel<Regression>,
    config: RegressionModel,
    preparation: Preparation,
}

impl TrainedRegression {
    /// Predicts solutions [n, x.., states] from inputs [n, x.., inputs] in physical units. `parameters` is empty for
    /// records.
    pub fn solve(&self, inputs: &[f32], parameters: &[&Parameter]) -> Result<Vec<f32>> {
        let length = self.preparation.tokens[0].field_len();
        let size = (BATCH_BYTES / (4 * length)).clamp(1, BATCH);
        let mut found = Vec::new();
        for (number, inputs) in inputs.chunks(size * length).enumerate() {
            let own = parameters.iter().skip(number * size).take(size);
            let batch = self.preparation.batch(inputs, &own.copied().collect::<Vec<_>>())?;
            found.extend(self.trained.run(|forward, model| {
                self.preparation.predict(model, forward, &batch.to_device(forward.device())?)
            })?);
        }
        Ok(found)
    }

    /// Describes the origin of the model; `data` is the hash of the data that it must have been trained on.
    pub fn model(&self, data: Option<String>) -> learn::evaluate::Model {
        let TrainedModel { origin, params, .. } = &self.trained;
        let (task, parameters) = (RegressionTask::SPEC.name, params.count());
        learn::evaluate::Model { task, origin: origin.clone(), parameters, data }
    }

    /// Returns the shapes of inputs and targets, if the model was trained on records.
    pub fn sides(&self) -> [ValueShape; 2] {
        self.preparation.sides()
    }

    /// Returns the model for inputs on a different grid with the same number of axes.
    ///
    /// Errors (78): the model cannot be built for this grid, or its parameters depend on the grid.
    pub fn on_grid(&self, grid: &[usize]) -> Result<Self> {
        let Self { trained: TrainedModel { origin, params, mode, .. }, config, .. } = self;
        let (model, preparation) = on_grid(grid, config, 0, &self.preparation, params)?;
        let (origin, params) = (origin.clone(), params.clone());
        let trained = TrainedModel { origin, model, params, mode: *mode };
        Ok(Self { trained, preparation, config: config.clone() })
    }

    /// Returns whether the model was trained on records rather than fields.
    pub fn reads_records(&self) -> bool {
        self.preparation.condition.is_none()
    }

    /// Number of grid points along each side of an input patch.
    fn patch(&self) -> usize {
        self.preparation.tokens[0].patches.side()
    }

    fn require_fields_of(&self, shape: &Shape, inputs: usize) -> Result<()> {
        if self.reads_records() {
            return Err(Error::data("fields, but the model was trained on records of arrays"));
        }
        let [input, output] = self.preparation.tokens.each_ref().map(|tokens| &tokens.patches);
        let found = (&shape.grid[..], inputs, shape.channels - inputs);
        require_fields(found, (input.grid(), input.channels(), output.channels()))?;
        match shape.frames {
            1 => Ok(()),
            frames => Err(Error::data(format!(
                "the data has {frames} frames, but steady problems have 1"
            ))),
        }
    }

    /// Reads the input and the solution of a sample.
    fn read(&self, set: &TrajectorySet, sample: usize) -> Result<[Vec<f32>; 2]> {
        let mut field = vec![0.0; set.shape().frame_len()];
        set.read(sample, &mut field)?;
        let (channels, inputs) = (set.shape().channels, set.inputs());
        Ok([0..inputs, inputs..channels].map(|part| part_of(&field, channels, part)))
    }

    /// Returns the mean of the training solutions of a regime, and the solutions of the training samples whose inputs
    /// are nearest to `inputs`. Reads the training split once, one sample at a time.
    fn baselines(
        &self,
        inputs: &[Vec<f32>],
        parameter: &Parameter,
        train: &TrajectorySet,
    ) -> Result<(Vec<f32>, Vec<f32>)> {
        let same = |i: &usize| train.entry(*i).parameter.is_same_regime(parameter);
        let mut members: Vec<usize> = (0..train.len()).filter(same).collect();
        if members.is_empty() {
            members = (0..train.len()).collect();
        }
        let mut mean = vec![0.0; self.preparation.tokens[1].field_len()];
        let mut nearest = vec![(f64::INFINITY, Vec::new()); inputs.len()];
        for &member in &members {
            let [own, solution] = self.read(train, member)?;
            let count = members.len() as f64;
            mean.iter_mut().zip(&solution).for_each(|(m, u)| *m += f64::from(*u) / count);
            nearest.par_iter_mut().zip(inputs).for_each(|(nearest, input)| {
                let pairs = input.iter().zip(&own);
                let distance = pairs.map(|(a, b)| f64::from(a - b).powi(2)).sum();
                if distance < nearest.0 {
                    *nearest = (distance, solution.clone());
                }
            });
        }
        let nearest = nearest.into_iter().flat_map(|(_, solution)| solution).collect();
        Ok((mean.into_iter().map(|m| m as f32).collect(), nearest))
    }
}

impl Rollouts for TrainedRegression {
    /// Restores the model from its checkpoint. Errors: 65 when parts of the checkpoint are inconsistent.
    fn restore(parts: &Parts, opener: &Opener) -> Result<Self> {
        let config: RegressionModel = parts.section("model")?;
        let normalisations =
            [Normalisation::restore("input", parts)?, Normalisation::restore("field", parts)?];
        let grid = |name: &str| -> Result<Vec<usize>> {
            let values = parts.buffer(&format!("{name}.grid"))?;
            match values.iter().all(|n| (1.0..1e9).contains(n)) {
                true => Ok(values.iter().map(|n| *n as usize).collect()),
                false => Err(Error::data(format!(
                    "the checkpoint's {name}.grid is {values:?}; expected positive grid sizes"
                ))),
            }
        };
        // Older checkpoints do not record the grid of the input, which equals that of the field.
        let grids = [grid("input").or_else(|_| grid("field"))?, grid("field")?];
        let [of_input, of_target] = normalisations;
        let [from, mut to] = grids;
        if to == [1] {
            // A single point is a target without a grid.
            to.clear();
        }
        let sides = [
            ValueShape { grid: from, channels: of_input.channels() },
            ValueShape { grid: to, channels: of_target.channels() },
        ];
        let [input, target] = patches(&sides, config.patch).map_err(Error::data)?;
        let tokens = [
            FieldTokens { patches: input, normalisation: of_input },
            FieldTokens { patches: target, normalisation: of_target },
        ];
        let has_condition = parts.buffers.iter().any(|(name, _)| name.starts_with("condition"));
        let condition = has_condition.then(|| Condition::restore(parts)).transpose()?;
        let preparation = Preparation { tokens, condition };
        let features = preparation.features();
        let trained = parts.restore(opener.mode, |b| {
            Ok(Regression::new(b, &config, &preparation.tokens, features))
        })?;
        Ok(Self { trained, preparation, config })
    }

    fn models(&self) -> Vec<(&'static str, Origin, usize)> {
        let TrainedModel { origin, params, .. } = &self.trained;
        vec![(RegressionTask::SPEC.name, origin.clone(), params.count())]
    }

    fn shape(&self) -> (&[usize], usize) {
        let output = &self.preparation.tokens[1].patches;
        (output.grid(), output.channels())
    }

    fn needs_training_data(&self) -> bool {
        true
    }

    fn plan(&self, set: &TrajectorySet, request: &RolloutRequest) -> Result<RolloutPlan> {
        self.require_fields_of(set.shape(), set.inputs())?;
        let views = Views::of(set.fields(), request, self.patch())?;
        Ok(RolloutPlan { views, ..RolloutPlan::of_frames(set, request)? })
    }

    fn rollouts(
        &self,
        set: &TrajectorySet,
        train: Option<&TrajectorySet>,
        plan: &RolloutPlan,
        starts: &[Start],
    ) -> Result<Batch> {
        let Some(train) = train.filter(|train| !train.is_empty()) else {
            return Err(Error::data("the training split is empty; the baselines need it"));
        };
        self.require_fields_of(train.shape(), train.inputs())?;
        let (mut inputs, mut truth, mut parameters) = (Vec::new(), Vec::new(), Vec::new());
        for start in starts {
            let [input, solution] = self.read(set, start.trajectory)?;
            inputs.push(input);
            truth.extend(solution);
            parameters.push(set.entry(start.trajectory).parameter);
        }
        let began = Instant::now();
        let (count, first) = (starts.len(), inputs.concat());
        let found = self.solve(&first, &parameters)?;
        let cost = |model, views: usize| {
            let seconds = Bits(began.elapsed().as_secs_f64());
            let (evaluations, reward_seconds) = ((count * views) as u64, Bits(0.0));
            Cost { model, evaluations, denoisings: 0, seconds, rewards: 0, reward_seconds }
        };
        let (mut costs, mut variances) = (vec![cost(Method::Regression, 1)], Vec::new());
        let mut averaged = None;
        if let Some(views) = &plan.views {
            let solve = |inputs: &[f32]| self.solve(inputs, &parameters);
            let all = views.average(&first, count, &found, solve)?;
            (averaged, variances) = (Some(all.fields), all.variances);
            costs.push(cost(Method::Views, views.count()));
        }
        let (mean, nearest) = self.baselines(&inputs, parameters[0], train)?;
        let frames = |values: Vec<f32>| Frames::new(values, 1, mean.len());
        let averaged = averaged.map(|fields| (Method::Views, frames(fields)));
        let (found, nearest, truth) = (frames(found), frames(nearest), frames(truth));
        let baselines = [(Method::Mean, Frames::constant(mean)), (Method::Nearest, nearest)];
        let models = [(Method::Regression, found)].into_iter().chain(averaged).chain(baselines);
        let spaces = vec![Space { name: "field", models: models.collect(), truth }];
        Ok(Batch { spaces, members: Vec::new(), costs, variances, rank_correlations: Vec::new() })
    }

    /// Prepares the file of the predicted solutions of all trajectories. The input file may hold inputs only, or inputs
    /// and solutions.
    fn output(&self, inputs: &Field, request: &RolloutRequest) -> Result<Header> {
        Views::of([inputs], request, self.patch())?;
        let shape = inputs.shape();
        let (_, states) = self.shape();
        if (inputs.inputs(), shape.channels) == (0, self.preparation.tokens[0].patches.channels()) {
            let whole = Shape { channels: shape.channels + states, ..shape.clone() };
            self.require_fields_of(&whole, shape.channels)?;
        } else {
            self.require_fields_of(shape, inputs.inputs())?;
        }
        let shape = Shape { channels: states, ..shape.clone() };
        Ok(Header::tensor(shape, inputs.coordinates().to_vec(), inputs.t().to_vec()))
    }

    fn predict(
        &self,
        inputs: &Field,
        which: Range<usize>,
        request: &RolloutRequest,
    ) -> Result<Vec<f32>> {
        let parameter = inputs.only_regime()?;
        let parameters = vec![&parameter; which.len()];
        let mut given = Vec::new();
        let mut field = vec![0.0; inputs.shape().frame_len()];
        for trajectory in which {
            inputs.read(trajectory, &mut field)?;
            match inputs.inputs() {
                0 => given.extend_from_slice(&field),
                count => given.extend(part_of(&field, inputs.shape().channels, 0..count)),
            }
        }
        let single = self.solve(&given, &parameters)?;
        let solve = |inputs: &[f32]| self.solve(inputs, &parameters);
        match Views::of([inputs], request, self.patch())? {
            None => Ok(single),
            Some(views) => Ok(views.average(&given, parameters.len(), &single, solve)?.fields),
        }
    }
}
