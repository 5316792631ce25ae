//! The residuals of frozen operators, the targets of correctors and their students: r = (z_next - operator(z))/(s·c).

use super::config::CorrectorData;
use super::correction::{Correction, Draws, Scales, StepInput};
use super::energy::energy_score;
use super::scale::ResidualScale;
use crate::common::normalisation::Normalisation;
use crate::diffusion::combine;
use crate::pde::latents::codec_of;
use crate::pde::models::{Denoiser, NetworkModel, Operator};
use crate::pde::operator::{OperatorParts, open_split};
use crate::pde::windows::{FoldSelection, LatentsPart, Window, Windows};
use data::fields::latents::LatentStore;
use data::fields::split::SplitName;
use data::inputs::InputFile;
use learn::dependency::{Dependencies, Dependency};
use learn::forward::Forward;
use learn::params::{Builder, ParamSet};
use learn::score::Scores;
use learn::task::{Batch, Predictions};
use learn::trained::{Parts, Weights};
use std::path::{Path, PathBuf};
use tensor::ops::binary::Binary;
use tensor::ops::depthwise_conv::Padding;
use tensor::ops::narrow::Narrow;
use tensor::{Tape, Tensor, Var};
use unix::{Context, Error, Result};

/// Number of training windows to which the scale is fitted.
const FIT_WINDOWS: u64 = 2048;
/// Number of windows per forward pass.
const BATCH: usize = 64;

/// Frozen operators and the data on which their residuals are computed.
pub(in crate::pde) struct Residuals {
    /// The operator to correct, followed by those that supply residuals on the folds held out from their training.
    operators: Vec<OperatorParts>,
    layers: Vec<Operator>,
    pub train: Windows,
    pub validation: Windows,
    path: PathBuf,
}

/// Key of the batch tensor that selects the operator for each sample, [operators - 1, B].
const MASKS: &str = "operators";

/// A normalised state and its condition.
type Sample = (Vec<f32>, Vec<f32>);

/// Returns the key of tensor `what` for state k of a batch.
fn name(what: &str, k: usize) -> String {
    format!("{what}.{k}")
}

impl Residuals {
    /// Opens operators and data for windows of `steps` steps, and registers the operators as frozen parameters, whose
    /// values [`Residuals::assign`] sets.
    ///
    /// Errors: 66 for missing checkpoints; 65 for a checkpoint that is not an operator, or was trained on latents of a
    /// different codec; 78 for splits and folds that do not match.
    pub fn open(
        data: &CorrectorData,
        [steps, validation_steps]: [usize; 2],
        seed: u64,
        builder: &mut Builder,
    ) -> Result<Self> {
        let read = |path: &Path, key: &str| -> Result<OperatorParts> {
            let parts = Parts::read(path, Weights::Ema).context(|| key)?;
            OperatorParts::of(&parts).context(|| key)
        };
        let mut operators = vec![read(&data.operator, "data.operator")?];
        for path in &data.cross_fit {
            operators.push(read(path, "data.cross_fit")?);
        }
        let open_train = || open_split(&data.train, SplitName::Train, "data.train");
        let validation = open_split(&data.validation, SplitName::Validation, "data.validation")?;
        for store in [&open_train()?, &validation] {
            require_codec(&operators, &codec_of(store).hash, store.folder())?;
        }
        let mut parts = Vec::new();
        for (number, operator) in operators.iter().enumerate() {
            let folds = match (number, data.cross_fit.is_empty(), operator.data.held_out) {
                (0, true, None) => FoldSelection::All,
                (0, false, _) => continue,
                (_, _, Some(fold)) => FoldSelection::Only(fold),
                (_, _, None) => {
                    return Err(Error::config(format!(
                        "data.cross_fit: {} was trained on all trajectories; train it with data.held_out",
                        operator.origin.checkpoint.display()
                    )));
                }
            };
            require_same(&operators[0], operator)?;
            parts.push((LatentsPart { store: open_train()?, folds, number }, 1.0));
        }
        let strides = &operators[0].data.strides;
        let mut train = Windows::new(parts, steps, strides, seed);
        (train.start_bias, train.random_shift) = (data.start_bias, data.random_shift);
        let grid = validation.layout().token_grid();
        let whole = LatentsPart { store: validation, folds: FoldSelection::All, number: 0 };
        let validation = Windows::new(vec![(whole, 1.0)], validation_steps, strides, seed);
        for (windows, key) in [(&train, "data.train"), (&validation, "data.validation")] {
            windows.require_steps(key)?;
        }
        builder.freeze(&["operators.*".into()]);
        let layers = (operators.iter().enumerate())
            .map(|(i, o)| builder.scope(format!("operators.{i}"), |b| o.build(b, grid)))
            .collect();
        Ok(Self { operators, layers, train, validation, path: data.operator.clone() })
    }

    /// Assigns the weights of the operators.
    pub fn assign(&self, params: &mut ParamSet) -> Result<()> {
        let of = |(i, o): (usize, &OperatorParts)| -> Vec<(String, Tensor)> {
            let named = |(name, t): &(String, Tensor)| (format!("operators.{i}.{name}"), t.clone());
            o.weights.iter().map(named).collect()
        };
        let weights: Vec<_> = self.operators.iter().enumerate().flat_map(of).collect();
        // The teacher of a student is frozen as well, but its own task assigns it.
        params.frozen.assign_scope("operators.", &weights)
    }

    /// Fits the scale of the residuals to windows spread over the training data.
    pub fn fit(&self, params: &ParamSet) -> Result<ResidualScale> {
        let (samples, residuals) = self.sample(params, &self.train, FIT_WINDOWS)?;
        let layout = self.validation.first().layout();
        ResidualScale::fit(layout.token_grid()[1], layout.dim, &samples, &residuals)
    }

    /// Returns the RMS of the operator's normalised one-step residuals on trajectories that it was trained on and on
    /// those of the validation split.
    pub fn seen_and_unseen(&self, params: &ParamSet, data: &CorrectorData) -> Result<[f64; 2]> {
        let own = &self.operators[0].data;
        let rms = |store: LatentStore, folds: FoldSelection| -> Result<f64> {
            let parts = vec![(LatentsPart { store, folds, number: 0 }, 1.0)];
            let windows = Windows::new(parts, 1, &own.strides, 0);
            let (_, residuals) = self.sample(params, &windows, FIT_WINDOWS / 4)?;
            let squares = residuals.iter().flatten().map(|r| f64::from(*r).powi(2));
            Ok((squares.sum::<f64>() / residuals.iter().map(Vec::len).sum::<usize>() as f64).sqrt())
        };
        let train = open_split(&data.train, SplitName::Train, "data.train")?;
        let validation = open_split(&data.validation, SplitName::Validation, "data.validation")?;
        let seen = rms(train, own.held_out.map_or(FoldSelection::All, FoldSelection::Without))?;
        Ok([seen, rms(validation, FoldSelection::All)?])
    }

    /// Returns up to `count` normalised states, spread over the windows, with their conditions, and their residuals.
    fn sample(
        &self,
        params: &ParamSet,
        windows: &Windows,
        count: u64,
    ) -> Result<(Vec<Sample>, Vec<Vec<f32>>)> {
        let total = windows.parts.samples();
        let count = count.min(total);
        let (mut samples, mut residuals) = (Vec::new(), Vec::new());
        let all: Vec<u64> = (0..count).map(|i| i * total / count).collect();
        let tape = Tape::without_gradients();
        let forward = Forward::evaluation(&tape, params);
        for some in all.chunks(BATCH) {
            let drawn: Vec<Window> = some.iter().map(|s| windows.fixed(*s)).collect();
            let batch = self.batch(windows, &drawn, 1, None)?;
            let z = batch.input(&forward, &name("states", 0))?;
            let next = self.predict(&forward, &batch, &z)?;
            let target = batch.input(&forward, &name("states", 1))?;
            let residual = combine(&forward, &[(1.0, &target), (-1.0, &next)])?;
            let features = batch.input(&forward, "features")?;
            let length = z.value().len() / drawn.len();
            let rows = |values: &Tensor| -> Vec<Vec<f32>> {
                values.read::<f32>().chunks_exact(length).map(<[f32]>::to_vec).collect()
            };
            residuals.extend(rows(residual.value()));
            let features = features.value();
            let conditions = features.read::<f32>().chunks_exact(features.width());
            samples.extend(rows(z.value()).into_iter().zip(conditions.map(<[f32]>::to_vec)));
        }
        Ok((samples, residuals))
    }

    /// Returns rows and columns of the token grid, and the padding at the border of the domain.
    pub fn grid(&self) -> ([usize; 2], Padding) {
        (self.validation.first().layout().token_grid(), self.operators[0].padding())
    }

    /// Number of features in the condition of the operator.
    pub fn condition_width(&self) -> usize {
        self.operators[0].condition.width()
    }

    /// Errors (65): the corrector `of` depends on a different operator from the one opened.
    pub fn require_operator(&self, recorded: &Dependency, of: &Path) -> Result<()> {
        let own = &self.operators[0];
        if recorded.hash == own.hash {
            return Ok(());
        }
        Err(Error::data(format!(
            "{} corrects another operator than {}, which has changed since",
            of.display(),
            own.origin.checkpoint.display()
        )))
    }

    /// Returns the normalisation of the latents.
    pub fn normalisation(&self) -> &Normalisation {
        &self.operators[0].scale
    }

    /// Builds a batch: the states 0..=`steps` of `drawn`, the conditions and, given `scale`, the residual scales.
    pub fn batch(
        &self,
        windows: &Windows,
        drawn: &[Window],
        steps: usize,
        scale: Option<&ResidualScale>,
    ) -> Result<Batch> {
        let features = windows.features(drawn, &self.operators[0].condition)?;
        let mut batch = Batch::new(drawn.len() as f64);
        for (k, states) in (0..).zip(windows.states(drawn, 0..=steps, self.normalisation())) {
            if let Some(scale) = scale {
                let Scales { log, scale, inverse } = Scales::of(scale, &states, &features);
                batch = batch.with(name("log", k), log);
                batch = batch.with(name("scale", k), scale).with(name("inverse", k), inverse);
            }
            batch = batch.with(name("states", k), states);
        }
        if drawn.iter().any(|window| window.part > 0) {
            let mask = |number| drawn.iter().map(move |w| f32::from(u8::from(w.part == number)));
            let masks: Vec<f32> = (1..self.layers.len()).flat_map(mask).collect();
            let shape = [self.layers.len() - 1, drawn.len()];
            batch = batch.with(MASKS, Tensor::from_slice(&masks, &shape));
        }
        Ok(batch.with("features", features))
    }

    /// Predicts the next states from z [B, T, D], each by the operator that was not trained on its trajectory.
    fn predict(&self, forward: &Forward, batch: &Batch, z: &Var) -> Result<Var> {
        let features = batch.input(forward, "features")?;
        if !batch.names().any(|name| name == MASKS) {
            return Ok(self.layers[0].forward(forward, z, &features)?.detached());
        }
        let masks = batch.input(forward, MASKS)?;
        let predictions = self.layers[1..].iter().enumerate().map(|(number, layers)| {
            let mask = forward.apply(Narrow { axis: 0, start: number, length: 1 }, &[&masks])?;
            let next = layers.forward(forward, z, &features)?;
            forward.apply(Binary::Multiply, &[&next, &mask.reshape(&[z.shape()[0], 1, 1])])
        });
        let predictions = predictions.collect::<Result<Vec<Var>>>()?;
        let terms: Vec<_> = predictions.iter().map(|p| (1.0, p)).collect();
        Ok(combine(forward, &terms)?.detached())
    }

    /// Returns the step from state `k` of a batch, or from `z` instead.
    pub fn step(
        &self,
        forward: &Forward,
        batch: &Batch,
        k: usize,
        z: Option<Var>,
    ) -> Result<StepInput> {
        let z = z.map_or_else(|| batch.input(forward, &name("states", k)), Ok)?;
        let next = self.predict(forward, batch, &z)?;
        let input = |what: &str| batch.input(forward, &name(what, k));
        let condition = batch.input(forward, "features")?;
        StepInput::new(forward, [z, next], &condition, [&input("log")?, &input("scale")?])
    }

    /// Computes the residual r of a step from state `k` of a batch, [B, T, D].
    pub fn residual(
        &self,
        forward: &Forward,
        batch: &Batch,
        k: usize,
        step: &StepInput,
        scale: &ResidualScale,
    ) -> Result<Var> {
        let target = batch.input(forward, &name("states", k + 1))?;
        let difference = combine(forward, &[(1.0, &target), (-1.0, &step.next)])?;
        let channels: Vec<f64> = scale.channels.iter().map(|c| c.recip()).collect();
        let channels = forward.constant(&Tensor::from_slice(&channels, &[channels.len()]))?;
        let scaled = forward.apply(Binary::Multiply, &[&difference, &channels])?;
        let inverse = batch.input(forward, &name("inverse", k))?;
        forward.apply(Binary::Multiply, &[&scaled, &inverse])
    }

    /// Builds the layers of a denoiser of the residuals.
    pub fn denoiser(&self, b: &mut Builder, model: &NetworkModel) -> Denoiser {
        let (grid, padding) = self.grid();
        let dim = self.validation.first().layout().dim;
        Denoiser::new(b, model, dim, grid, padding, self.condition_width() + 1)
    }

    /// Returns the weight of each channel of the scaled residual: its contribution to the mean square of the
    /// unnormalised residual, so that errors are weighted as before normalisation.
    pub fn channel_weights(&self, scale: &ResidualScale) -> Tensor {
        let squares: Vec<f64> = (scale.channels.iter().zip(&self.normalisation().std))
            .map(|(c, std)| (c * std).powi(2))
            .collect();
        let mean = squares.iter().sum::<f64>() / squares.len() as f64;
        let weights: Vec<f64> = squares.iter().map(|square| square / mean).collect();
        Tensor::from_slice(&weights, &[weights.len()])
    }

    /// Predicts `states`, the unnormalised latents of the validation steps, [steps, tokens, dim].
    pub fn predict_states(
        &self,
        forward: &Forward,
        correction: &Correction,
        batch: &Batch,
        draws: &Draws,
    ) -> Result<Predictions> {
        let steps = self.validation.steps;
        let z = batch.input(forward, &name("states", 0))?;
        let features = batch.input(forward, "features")?.value().to_host()?;
        let operate = |z: &Var, features: &Var| self.layers[0].forward(forward, z, features);
        let (from, how) = ((z, &features), (steps, draws));
        let states = correction.rollout(forward, self.normalisation(), from, how, operate)?;
        let width = steps * self.validation.first().layout().frame_len();
        Ok(Predictions::default().with("states", width, states))
    }

    /// Adds the scores of `members` rollouts from each validation sample: the energy score of the ensemble, and the
    /// NRMSE of its first member, over all steps and for the first step.
    pub fn evaluate(
        &self,
        forward: &Forward,
        correction: &Correction,
        samples: &[u64],
        (members, seed): (usize, u64),
        scores: &mut Scores,
    ) -> Result<()> {
        let windows: Vec<Window> = samples.iter().map(|s| self.validation.fixed(*s)).collect();
        let repeated: Vec<Window> =
            windows.iter().flat_map(|w| std::iter::repeat_n(*w, members)).collect();
        let draws = Draws::members(seed, samples, members);
        let batch =
            self.batch(&self.validation, &repeated, 0, None)?.to_device(forward.device())?;
        let predictions = self.predict_states(forward, correction, &batch, &draws)?;
        let size = self.validation.first().layout().frame_len();
        let rows: Vec<&[f32]> = predictions.rows("states")?.collect();
        for (window, rows) in windows.iter().zip(rows.chunks_exact(members)) {
            let regime = window.regime();
            for k in 1..=self.validation.steps {
                let states: Vec<&[f32]> =
                    rows.iter().map(|row| &row[(k - 1) * size..k * size]).collect();
                let truth = window.frame(k);
                let [score, norm] = energy_score(&states, truth);
                if norm > 0.0 {
                    scores.mean("energy_score", score / norm, norm);
                }
                scores.nrmse("rollout_nrmse", &regime, states[0], truth);
                if k == 1 {
                    scores.nrmse("one_step_nrmse", &regime, states[0], truth);
                }
            }
        }
        Ok(())
    }

    /// Returns the input files of the data.
    pub fn input_files(&self) -> Vec<InputFile> {
        // All folds of the training latents share one set of files.
        let train = self.train.stores().take(1).chain(self.validation.stores());
        train.flat_map(LatentStore::input_files).collect()
    }

    /// Returns the models that the corrected operator requires: the operator itself and its codec.
    pub fn dependencies(&self) -> Dependencies {
        let path = self.path.canonicalize().ok();
        let operator = Dependency::new(path, self.operators[0].hash.clone());
        [("operator".into(), operator), ("codec".into(), codec_of(self.validation.first()))].into()
    }

    /// Returns the hashes of data and operators.
    pub fn hashes(&self) -> Vec<String> {
        let stores = self.train.stores().take(1).chain(self.validation.stores());
        let stores = stores.map(|store| store.hash().to_string());
        stores.chain(self.operators.iter().map(|o| o.hash.clone())).collect()
    }
}

/// Errors (65): the latents in `folder` are from a different codec than those of an operator.
fn require_codec(operators: &[OperatorParts], codec: &str, folder: &Path) -> Result<()> {
    match operators.iter().find(|operator| operator.codec.hash != codec) {
        None => Ok(()),
        Some(operator) => Err(Error::data(format!(
            "{}: latents of another codec than those of the operator {}; make them with its codec",
            folder.display(),
            operator.origin.checkpoint.display()
        ))),
    }
}

/// Errors (78): two operators differ in architecture or strides.
fn require_same(one: &OperatorParts, other: &OperatorParts) -> Result<()> {
    if (&one.model, &one.data.strides) == (&other.model, &other.data.strides) {
        return Ok(());
    }
    let [a, b] = [other, one].map(|parts| parts.origin.checkpoint.display());
    Err(Error::config(format!("data.cross_fit: {a} and {b} differ in architecture or strides")))
}
