//! Task `codec`: an autoencoder from fields to latent tokens, trained on single frames.
//!
//! The loss is the error of the physical field: L = mean over samples of ‖û - u‖²/(‖u‖² + floor·σ²·n), û =
//! decode(encode(u)). It is relative to the energy of each sample, so that decayed fields count as much as initial
//! ones. This is the inverse loss of the encoder (UPT, Alkin et al. 2024, §3.3); the inverse loss of the decoder,
//! ‖encode(û) - z‖², is optional. The error may be estimated at a random subset of grid points, redrawn in every
//! update.

use crate::common::models::PaddingMode;
use crate::common::sources::{
    FieldSource, Fields, Sources, joined, normalisation, not_negative, one, positive,
    weight_violations,
};
use crate::common::tokens::FieldTokens;
use crate::pde::models::{Codec, CodecModel};
use data::fields::split_set::TrajectorySet;
use data::inputs::InputFile;
use learn::config::Config;
use learn::forward::Forward;
use learn::params::{Builder, ParamSet};
use learn::score::Direction;
use learn::score::Scores;
use learn::task::{Batch, Buffers, ConfigOf, Define, Loss, Predictions, Spec, Task};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use tensor::ops::binary::Binary;
use tensor::ops::squared_error::SquaredError;
use tensor::random::{Permutation, Philox, Purpose};
use tensor::{Dtype, Tensor, Var};
use unix::config::{Violations, within};
use unix::{Error, Result};

/// The training and validation data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FieldData {
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
    /// Data augmentation: shift each field cyclically by a random number of grid points. Only for periodic domains.
    #[serde(default)]
    pub random_shift: bool,
    /// Data augmentation: replace u(x) by -u(-x) along the first axis for half of the samples. Only for equations with
    /// this symmetry.
    #[serde(default)]
    pub random_reflection: bool,
}

/// The loss function.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CodecLoss {
    /// Added to the relative energy of a field, in units of the variance of the data; prevents division by very small
    /// energies.
    pub floor: f64,
    /// Number of grid points per sample, drawn anew in every update, at which the error of the field is computed; an
    /// unbiased estimate of the error over all points. 0: all points.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(extend("default" = 0))]
    pub queries: usize,
    /// Weight of the inverse loss of the decoder, ‖encode(decode(z)) - z‖² per element.
    pub reencoding: f64,
    /// Warm-up W of that weight in updates: it is 0 for W updates, then increases linearly to its value at 2·W.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(range(min = 0, max = 1_000_000_000), extend("default" = 0))]
    pub reencoding_warmup: u64,
    /// Upper limit of that weight. Null: no limit.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(extend("default" = null))]
    pub reencoding_cap: Option<f64>,
}

// Fields with this attribute are not serialised at their defaults, so that older configurations keep their hash.
fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Default for CodecLoss {
    fn default() -> Self {
        Self { floor: 0.1, queries: 0, reencoding: 0.0, reencoding_warmup: 0, reencoding_cap: None }
    }
}

impl CodecLoss {
    /// Returns the weight of the decoder's inverse loss in an update, counted from 0.
    fn reencoding_at(&self, update: u64) -> f64 {
        let ramp = match self.reencoding_warmup {
            0 => 1.0,
            warmup => (update as f64 / warmup as f64 - 1.0).clamp(0.0, 1.0),
        };
        (self.reencoding * ramp).min(self.reencoding_cap.unwrap_or(f64::INFINITY))
    }
}

/// The configuration of the task.
pub type CodecConfig = Config<FieldData, CodecModel, CodecLoss>;

/// NRMSE of the reconstruction over all frames, computed for each regime.
const METRIC: &str = "nrmse";

/// The task.
pub struct CodecTask {
    codec: Codec,
    tokens: FieldTokens,
    data: FieldData,
    loss: CodecLoss,
    train: Sources<TrajectorySet>,
    validation: Sources<TrajectorySet>,
    augmentation: Philox,
    /// Random numbers for the grid points of `loss.queries`.
    queries: Philox,
    /// Micro-batches per update.
    accumulation: u64,
    input_files: Vec<InputFile>,
}

impl CodecTask {
    /// Reads the frame of a sample as stored in the file.
    fn read(set: &TrajectorySet, sample: u64, u: &mut [f32]) -> Result<()> {
        let frames = set.shape().frames as u64;
        let (trajectory, frame) = ((sample / frames) as usize, (sample % frames) as usize);
        set.read_frames(trajectory, frame..frame + 1, u)
    }

    fn augment(&self, micro_batch: u64, place: u64, u: &mut [f32]) {
        let random = self.augmentation.at_update(micro_batch);
        let grid = self.tokens.patches.grid();
        let row = u.len() / grid[0];
        if self.data.random_shift {
            u.rotate_left(row * random.below(place, 0, grid[0] as u64) as usize);
            if let [_, columns] = grid {
                let turn = random.below(place, 2, *columns as u64) as usize;
                u.chunks_exact_mut(row).for_each(|u| u.rotate_left(turn * (row / columns)));
            }
        }
        if self.data.random_reflection && random.below(place, 1, 2) == 1 {
            for i in 0..grid[0] / 2 {
                let (front, back) = u.split_at_mut((grid[0] - 1 - i) * row);
                front[i * row..][..row].swap_with_slice(&mut back[..row]);
            }
            u.iter_mut().for_each(|x| *x = -*x);
        }
    }

    /// Sets `mask` to 1 at the grid points where the error of a sample is computed. The points are distinct.
    fn mark_queries(&self, micro_batch: u64, place: u64, mask: &mut [f32]) {
        let channels = self.tokens.patches.channels();
        let random = self.queries.at_update(micro_batch).at_source(place);
        let mut points = vec![0; self.loss.queries];
        Permutation::keyed(random, (mask.len() / channels) as u64).fill(0, &mut points);
        for point in points {
            mask[point as usize * channels..][..channels].fill(1.0);
        }
    }
}

impl Define for CodecTask {
    const SPEC: Spec = Spec::new("codec", METRIC, Direction::Minimize, include_str!("codec.yaml"));
    type Data = FieldData;
    type Model = CodecModel;
    type Loss = CodecLoss;

    fn violations(config: &CodecConfig) -> Violations {
        let mut violations: Violations = within("model", config.model.violations()).collect();
        let weights = config.data.additional.iter().map(|o| o.weight);
        violations.extend(weight_violations(config.data.weight, weights));
        if config.data.random_shift && config.model.padding_mode != PaddingMode::Circular {
            violations.push((
                "data.random_shift".into(),
                "requires model.padding_mode: circular; a shift is a symmetry of periodic domains only"
                    .into(),
            ));
        }
        violations.extend(positive("loss.floor", config.loss.floor));
        violations.extend(not_negative("loss.reencoding", config.loss.reencoding));
        let cap = config.loss.reencoding_cap;
        violations.extend(cap.and_then(|cap| not_negative("loss.reencoding_cap", cap)));
        violations
    }

    fn open(config: &ConfigOf<Self>) -> Result<(Self, ParamSet)> {
        let FieldData { split, stats, weight, additional, .. } = &config.data;
        let fields = Fields::open(split, stats, *weight, additional)?;
        let normalisation = normalisation(&fields.stats, 0..usize::MAX);
        let frames = |set: &TrajectorySet| (set.len() * set.shape().frames) as u64;
        let sources = Sources::new(fields.train, frames);
        let train = sources.first();
        let shape = train.shape();
        if train.inputs() > 0 {
            return Err(Error::data(format!(
                "{}: the data set has inputs, but a codec only reads states",
                split.display()
            )));
        }
        let patches = config
            .model
            .patches(&shape.grid, shape.channels)
            .map_err(|why| Error::config(format!("model.{why} of {}", split.display())))?;
        let points: usize = shape.grid.iter().product();
        if config.loss.queries > points {
            return Err(Error::config(format!(
                "loss.queries ({}) exceeds the {points} grid points of {}",
                config.loss.queries,
                split.display()
            )));
        }
        let mut builder = Builder::of(config);
        let codec = Codec::new(&mut builder, &config.model, &patches);
        let task = Self {
            codec,
            tokens: FieldTokens { patches, normalisation },
            data: config.data.clone(),
            loss: config.loss.clone(),
            train: sources,
            validation: Sources::new(fields.validation, frames),
            augmentation: Philox::new(config.seed, Purpose::Augmentation),
            queries: Philox::new(config.seed, Purpose::Loss),
            accumulation: config.training.accumulation,
            input_files: fields.input_files,
        };
        builder.check()?;
        Ok((task, builder.finish()))
    }
}

impl Task for CodecTask {
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
        let points = self.tokens.field_len();
        let mut fields = Tensor::empty(&[samples.len(), points], Dtype::F32);
        let mut u = vec![0.0; points];
        let mut weights = vec![0.0_f32; samples.len()];
        for (place, (sample, out)) in
            samples.iter().zip(fields.write::<f32>().chunks_exact_mut(points)).enumerate()
        {
            let (set, sample) = self.train.find(*sample);
            Self::read(set, sample, &mut u)?;
            self.augment(micro_batch, first + place as u64, &mut u);
            let relative = self.tokens.normalisation.energy(&u);
            weights[place] = (1.0 / (relative + self.loss.floor)) as f32;
            self.tokens.cut(&u, out);
        }
        let mut batch = Batch::new(samples.len() as f64).with("fields", fields);
        if self.loss.queries > 0 {
            let mut mask = Tensor::zeros(&[samples.len(), points], Dtype::F32);
            for (place, out) in (first..).zip(mask.write::<f32>().chunks_exact_mut(points)) {
                self.mark_queries(micro_batch, place, out);
            }
            let share = (self.loss.queries * self.tokens.patches.channels()) as f32 / points as f32;
            weights.iter_mut().for_each(|weight| *weight /= share);
            batch = batch.with("queries", mask);
        }
        if self.loss.reencoding > 0.0 {
            let weight = self.loss.reencoding_at(micro_batch / self.accumulation);
            batch = batch.with("reencoding", Tensor::from_slice(&[weight as f32], &[1]));
        }
        Ok(batch.with("weights", Tensor::from_slice(&weights, &[samples.len()])))
    }

    fn loss(&self, forward: &Forward, batch: &Batch) -> Result<Loss> {
        let ones = |n: usize| forward.full(&[n], 1.0);
        let [u, weights] = [batch.input(forward, "fields")?, batch.input(forward, "weights")?];
        let z = self.codec.encode(forward, &u)?;
        let reconstruction = self.codec.decode(forward, &z)?;
        let points = ones(u.shape()[1])?;
        let [mut found, mut target] = [reconstruction.clone(), u];
        if self.loss.queries > 0 {
            let queries = batch.input(forward, "queries")?;
            let mask = |x: &Var| forward.apply(Binary::Multiply, &[x, &queries]);
            [found, target] = [mask(&found)?, mask(&target)?];
        }
        let error = forward.apply(SquaredError, &[&found, &target, &weights, &points])?;
        if self.loss.reencoding == 0.0 {
            return Ok(error.into());
        }
        let again = self.codec.encode(forward, &reconstruction)?;
        let (samples, dim) = (z.shape()[0], z.shape()[2]);
        let equal = forward.full(&[samples], 1.0)?;
        let inverse = forward.apply(SquaredError, &[&again, &z.detached(), &equal, &ones(dim)?])?;
        let weight = batch.input(forward, "reencoding")?;
        let weighted = forward.apply(Binary::Multiply, &[&inverse, &weight])?;
        let terms = [("reconstruction", &error), ("reencoding", &inverse)];
        Ok(Loss {
            sum: forward.apply(Binary::Add, &[&error, &weighted])?,
            terms: terms.map(|(name, term)| (name, term.value().clone()).into()).into(),
        })
    }

    fn validation_samples(&self) -> u64 {
        self.validation.samples()
    }

    fn evaluate(&self, forward: &Forward, samples: &[u64], scores: &mut Scores) -> Result<()> {
        let points = self.tokens.field_len();
        let mut fields = vec![0.0; samples.len() * points];
        for (sample, u) in samples.iter().zip(fields.chunks_exact_mut(points)) {
            let (set, sample) = self.validation.find(*sample);
            Self::read(set, sample, u)?;
        }
        let batch = Batch::new(samples.len() as f64).with("fields", self.tokens.cut_all(&fields));
        let predictions = self.predict(forward, &batch.to_device(forward.device())?)?;
        let found = predictions.rows("fields")?.zip(fields.chunks_exact(points));
        for (sample, (found, truth)) in samples.iter().zip(found) {
            let (set, sample) = self.validation.find(*sample);
            let entry = set.entry(sample as usize / set.shape().frames);
            scores.nrmse(METRIC, &entry.parameter.to_string(), found, truth);
        }
        Ok(())
    }

    /// Predicts `fields`, the reconstructions in physical units, [grid.., channels].
    fn predict(&self, forward: &Forward, batch: &Batch) -> Result<Predictions> {
        let z = self.codec.encode(forward, &batch.input(forward, "fields")?)?;
        let found = self.codec.decode(forward, &z)?.value().to_host()?;
        let fields = self.tokens.join_all(&found);
        Ok(Predictions::default().with("fields", self.tokens.field_len(), fields))
    }

    fn buffers(&self) -> Buffers {
        self.tokens.buffers("field")
    }
}
