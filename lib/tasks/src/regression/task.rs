//! Task `regression`: predicts the target of a sample from its input, e.g. the pressure of Darcy flow from the
//! coefficient, or one user-supplied array from another.

use super::augment::Augmentation;
use super::crop::Crop;
use super::loss::{Dims, LossKind, RegressionLoss};
use super::model::{Regression, RegressionModel};
use super::pairs::{Opened, Pair, Pairs};
use crate::common::TrainOn;
use crate::common::condition::Condition;
use crate::common::models::{PaddingMode, Patches};
use crate::common::sources::{FieldSource, one, positive, weight_violations};
use crate::common::tokens::FieldTokens;
use data::fields::parameter::Parameter;
use data::inputs::InputFile;
use data::records::{ValueShape, refinement};
use learn::config::Config;
use learn::forward::Forward;
use learn::params::{Builder, ParamSet};
use learn::score::Direction;
use learn::score::Scores;
use learn::task::{Batch, Buffers, ConfigOf, Define, Loss, Predictions, Spec, Task};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use tensor::Var;
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
    /// The splits to train on.
    #[serde(default)]
    pub train_on: TrainOn,
    /// Sampling weight of this data set, relative to the weights of the others.
    #[serde(default = "one")]
    pub weight: f64,
    /// Additional data sets with the same grid and channels, sampled in proportion to their weights.
    #[serde(default)]
    pub additional: Vec<FieldSource>,
    /// Data augmentation: random symmetries, applied to input and target alike. Only for problems that have them.
    #[serde(default)]
    pub augmentation: Augmentation,
}

/// The configuration of the task.
pub type RegressionConfig = Config<RegressionData, RegressionModel, RegressionLoss>;

/// NRMSE of the targets; for fields, computed for each regime.
pub(super) const METRIC: &str = "nrmse";

/// Converts samples to the tensors of the model and back.
#[derive(Clone, Debug)]
pub struct Preparation {
    /// Patches and normalisation of the input and of the target.
    pub tokens: [FieldTokens; 2],
    /// Features of the equation's parameter; none for records.
    pub condition: Option<Condition>,
}

impl Preparation {
    /// Returns the shapes of input and target.
    pub fn sides(&self) -> [ValueShape; 2] {
        self.tokens.each_ref().map(|side| {
            let (grid, channels) = (side.patches.grid(), side.patches.channels());
            // A target without a grid is stored as a grid of a single point.
            ValueShape { grid: if *grid == [1] { Vec::new() } else { grid.to_vec() }, channels }
        })
    }

    /// Number of features of the condition.
    pub fn features(&self) -> usize {
        self.condition.as_ref().map_or(0, Condition::width)
    }

    /// Builds a batch of inputs [n, x.., channels] in physical units and their parameters; records have none.
    ///
    /// Errors: those of [`Condition::features`].
    pub fn batch(&self, inputs: &[f32], parameters: &[&Parameter]) -> Result<Batch> {
        let samples = inputs.len() / self.tokens[0].field_len();
        let batch = Batch::new(samples as f64).with("inputs", self.tokens[0].cut_all(inputs));
        match &self.condition {
            None => Ok(batch),
            Some(condition) => Ok(batch.with("features", condition.features_of(parameters, 1.0)?)),
        }
    }

    /// Predicts the normalised targets of a batch, patch by patch.
    fn run(&self, model: &Regression, forward: &Forward, batch: &Batch) -> Result<Var> {
        let x = batch.input(forward, "inputs")?;
        let features = self.condition.as_ref().map(|_| batch.input(forward, "features"));
        model.forward(forward, &x, features.transpose()?.as_ref())
    }

    /// Predicts the targets [n, x.., channels] in physical units for a batch on the device of `forward`.
    pub fn predict(
        &self,
        model: &Regression,
        forward: &Forward,
        batch: &Batch,
    ) -> Result<Vec<f32>> {
        Ok(self.tokens[1].join_all(&self.run(model, forward, batch)?.value().to_host()?))
    }
}

/// Returns the patches of input and target. A target without a grid is one point; for a target grid that is finer by an
/// integer factor, the patches are larger by that factor.
///
/// The error message names the mismatch.
pub(super) fn patches(sides: &[ValueShape; 2], patch: usize) -> Result<[Patches; 2], String> {
    let [input, target] = sides;
    let side = refinement(sides)?.map_or(1, |factor| patch * factor);
    Ok([
        Patches::new(&input.points(), input.channels, patch)?,
        Patches::new(&target.points(), target.channels, side)?,
    ])
}

/// The task.
pub struct RegressionTask {
    model: Regression,
    preparation: Preparation,
    /// The model for random windows, if `data.augmentation.crop` is set.
    crop: Option<Crop>,
    data: RegressionData,
    loss: RegressionLoss,
    train: Pairs,
    validation: Pairs,
    random: Philox,
    input_files: Vec<InputFile>,
}

impl RegressionTask {
    /// Returns the model to train and the preparation of its samples: those of the windows, if there are any.
    fn training(&self) -> (&Regression, &Preparation) {
        match &self.crop {
            Some(crop) => (&crop.model, &crop.preparation),
            None => (&self.model, &self.preparation),
        }
    }

    /// Crops a sample to a random window, if configured, and applies a random symmetry.
    fn augment(&self, micro_batch: u64, place: u64, pair: &mut Pair) {
        let vectors = self.data.augmentation.vectors.as_ref();
        let [of_input, of_target] =
            vectors.map_or(Default::default(), |vectors| [&vectors.input[..], &vectors.target]);
        let tokens = &self.training().1.tokens;
        let [input, target] = tokens.each_ref().map(|side| side.patches.grid());
        let random = self.random.at_update(micro_batch);
        if let Some(crop) = &self.crop {
            crop.cut(&random, place, pair);
        }
        let symmetry = self.data.augmentation.draw(&random, place, input);
        symmetry.apply(&mut pair.input, input, of_input);
        if target.len() == input.len() && pair.target.len() > tokens[1].patches.channels() {
            symmetry.apply(&mut pair.target, target, of_target);
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
        let RegressionConfig { data, model, loss, .. } = config;
        let mut violations: Violations = within("model", model.backbone.violations()).collect();
        let weights = data.additional.iter().map(|o| o.weight);
        violations.extend(weight_violations(data.weight, weights));
        violations.extend(positive("loss.floor", loss.floor));
        let whole = matches!(loss.kind, LossKind::RelativeEnergy | LossKind::RelativeH1);
        if loss.dims == Dims::Space && (whole || loss.kind == LossKind::Mae) {
            let text = "of this kind of loss is always all";
            violations.push(("loss.dims".into(), text.into()));
        }
        if loss.kind == LossKind::RelativeH1 && model.patch > 1 {
            let text = "must be 1 for loss.kind: relative_h1, which needs neighbouring points";
            violations.push(("model.patch".into(), text.into()));
        }
        if !data.augmentation.crop.is_empty() && model.padding_mode == PaddingMode::Circular {
            let text = "must be zeros with data.augmentation.crop: a window is not periodic";
            violations.push(("model.padding_mode".into(), text.into()));
        }
        violations
    }

    fn open(config: &ConfigOf<Self>) -> Result<(Self, ParamSet)> {
        let RegressionConfig { data, model, loss, seed, .. } = config;
        let Opened { train, validation, sides, normalisations, input_files } = Opened::open(data)?;
        let manifest = data.split.display();
        let Augmentation { flips, rotations, vectors, .. } = &data.augmentation;
        if (*flips || *rotations) && vectors.is_none() && matches!(train, Pairs::Records(_)) {
            return Err(Error::config(
                "data.augmentation.flips and rotations of records need data.augmentation.vectors: the lists of channels \
                 that are the components of a vector, which turn with the grid, as {input: [[0, 1]]}; {} if all channels \
                 are scalars",
            ));
        }
        let vectors = vectors.iter().flat_map(|vectors| [&vectors.input, &vectors.target]);
        for ((side, name), vectors) in sides.iter().zip(["input", "target"]).zip(vectors) {
            let wrong = Augmentation::violation(vectors, name, &side.grid, side.channels);
            wrong.map_or(Ok(()), |why| {
                Err(Error::config(format!("{why}; {manifest} has {side}")))
            })?;
        }
        if model.integrate
            && (sides[0].grid != sides[1].grid || sides[0].channels < sides[1].channels)
        {
            return Err(Error::config(format!(
                "model.integrate: adds the last channels of the input to the output, but {manifest} has inputs with {} and \
                 targets with {}",
                sides[0], sides[1]
            )));
        }
        let [input, target] = patches(&sides, model.patch)
            .map_err(|why| Error::config(format!("model: {why} of {manifest}")))?;
        let [of_input, of_target] = normalisations;
        let tokens = [
            FieldTokens { patches: input, normalisation: of_input },
            FieldTokens { patches: target, normalisation: of_target },
        ];
        let parameters = train.parameters().into_iter();
        let all: Vec<_> = parameters.map(|p| (p.names(), vec![p.value], 1.0)).collect();
        let condition = (!all.is_empty()).then(|| Condition::new(all));
        let preparation = Preparation { tokens, condition };
        let mut builder = Builder::of(config);
        let features = preparation.features();
        let whole = Regression::new(&mut builder, model, &preparation.tokens, features);
        builder.check()?;
        let params = builder.finish();
        let crop = match &data.augmentation.crop[..] {
            [] => None,
            size => Some(Crop::new(size, model, *seed, &preparation, &params)?),
        };
        let task = Self {
            model: whole,
            preparation,
            crop,
            data: data.clone(),
            loss: loss.clone(),
            train,
            validation,
            random: Philox::new(*seed, Purpose::Augmentation),
            input_files,
        };
        Ok((task, params))
    }
}

impl Task for RegressionTask {
    fn sources(&self) -> Vec<(u64, f64)> {
        self.train.shares()
    }

    fn data_hash(&self) -> String {
        self.train.hash()
    }

    fn input_files(&self) -> Vec<InputFile> {
        self.input_files.clone()
    }

    fn batch(&self, micro_batch: u64, first: u64, samples: &[u64]) -> Result<Batch> {
        let (mut inputs, mut targets, mut parameters) = (Vec::new(), Vec::new(), Vec::new());
        for (place, sample) in (first..).zip(samples) {
            let mut pair = self.train.read(*sample)?;
            self.augment(micro_batch, place, &mut pair);
            inputs.extend(pair.input);
            targets.push(pair.target);
            parameters.extend(pair.parameter);
        }
        let (_, preparation) = self.training();
        let batch = preparation.batch(&inputs, &parameters)?;
        Ok(batch
            .with("targets", preparation.tokens[1].cut_all(&targets.concat()))
            .with("weights", self.loss.weights(preparation, &targets)))
    }

    fn loss(&self, forward: &Forward, batch: &Batch) -> Result<Loss> {
        let (model, preparation) = self.training();
        let found = preparation.run(model, forward, batch)?;
        let target = batch.input(forward, "targets")?;
        let weights = batch.input(forward, "weights")?;
        Ok(self.loss.sum(forward, preparation, &weights, [&found, &target])?.into())
    }

    fn validation_samples(&self) -> u64 {
        self.validation.samples()
    }

    fn evaluate(&self, forward: &Forward, samples: &[u64], scores: &mut Scores) -> Result<()> {
        let pairs = samples.iter().map(|sample| self.validation.read(*sample));
        let pairs = pairs.collect::<Result<Vec<Pair>>>()?;
        let inputs: Vec<f32> = pairs.iter().flat_map(|pair| &pair.input).copied().collect();
        let parameters: Vec<&Parameter> = pairs.iter().filter_map(|pair| pair.parameter).collect();
        let batch = self.preparation.batch(&inputs, &parameters)?.to_device(forward.device())?;
        let predictions = self.predict(forward, &batch)?;
        let channels = self.preparation.tokens[1].patches.channels();
        for (pair, found) in pairs.iter().zip(predictions.rows("targets")?) {
            match pair.parameter {
                Some(parameter) => {
                    scores.nrmse(METRIC, &parameter.to_string(), found, &pair.target);
                }
                None => scores.regression(channels, found, &pair.target),
            }
        }
        Ok(())
    }

    /// Predicts `targets`, in physical units, [x.., channels].
    fn predict(&self, forward: &Forward, batch: &Batch) -> Result<Predictions> {
        let targets = self.preparation.predict(&self.model, forward, batch)?;
        let length = self.preparation.tokens[1].field_len();
        Ok(Predictions::default().with("targets", length, targets))
    }

    fn buffers(&self) -> Buffers {
        let [input, target] = &self.preparation.tokens;
        let mut buffers = input.buffers("input");
        buffers.extend(target.buffers("field"));
        buffers.extend(self.preparation.condition.iter().flat_map(Condition::buffers));
        buffers
    }
}
