//! Stage `codec`: fields to latent tokens and back, trained on single frames.
//!
//! The loss is that of the physical field: L = mean over samples of
//! ‖û - u‖²/(‖u‖² + floor·σ²·n), û = decode(encode(u)), relative to each sample's own energy so that
//! fields that have decayed count as much as fresh ones. It is the inverse loss of the encoder
//! (UPT, Alkin et al. 2024, §3.3); that of the decoder, ‖encode(û) - z‖², may be added.

use super::{Batch, ConfigOf, Constants, Metrics, Stage, open_split, spread};
use crate::config::{Config, Faults, Validate, within};
use crate::metrics::Regimes;
use crate::models::{Codec, CodecModel};
use crate::normalisation::Normalisation;
use crate::params::{Builder, Params};
use crate::pass::Pass;
use data::split::SplitName;
use data::split_set::TrajectorySet;
use data::stats::Stats;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use tensor::ops::squared_error::SquaredError;
use tensor::ops::weighted_sum::WeightedSum;
use tensor::random::{Philox, Purpose};
use tensor::{Device, Dtype, Tape, Tensor, Var};
use unix::{Error, Result};

/// What the codec is trained on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FieldData {
    /// The split manifest that `ds-prep split` wrote.
    pub split: PathBuf,
    /// The statistics that `ds-prep stats` wrote for it.
    pub stats: PathBuf,
    /// Move each field round by a random number of grid points; for periodic domains.
    #[serde(default)]
    pub shift: bool,
    /// Turn half of the fields round, u(x) to -u(-x); for equations that allow it.
    #[serde(default)]
    pub reflect: bool,
}

/// What is minimised.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CodecLoss {
    /// Added to the relative energy of a field, so that a field of zero does not count without limit;
    /// in units of the variance of the data.
    #[serde(default = "floor")]
    pub floor: f64,
    /// Weight of the inverse loss of the decoder, ‖encode(decode(z)) - z‖² per element.
    #[serde(default)]
    pub reencoding: f64,
}

fn floor() -> f64 {
    0.1
}

/// The configuration of the stage.
pub type CodecConfig = Config<FieldData, CodecModel, CodecLoss>;

impl Validate for CodecConfig {
    fn faults(&self) -> Faults {
        let mut faults = self.common_faults();
        faults.extend(within("model", self.model.faults()));
        if self.loss.floor.is_nan() || self.loss.floor <= 0.0 {
            faults.push(("loss.floor".into(), "must be a positive number".into()));
        }
        if self.loss.reencoding.is_nan() || self.loss.reencoding < 0.0 {
            faults.push(("loss.reencoding".into(), "must not be negative".into()));
        }
        faults
    }
}

/// The stage.
pub struct CodecStage {
    codec: Codec,
    normalisation: Normalisation,
    data: FieldData,
    loss: CodecLoss,
    train: TrajectorySet,
    validation: TrajectorySet,
    augmentation: Philox,
}

/// Normalised fields and the weight of each.
pub struct FieldBatch {
    fields: Tensor,
    weights: Tensor,
}

impl Batch for FieldBatch {
    fn to_device(self, device: Device) -> Result<Self> {
        let [fields, weights] = [self.fields, self.weights].map(|t| t.to_device(device));
        Ok(Self { fields: fields?, weights: weights? })
    }

    fn tensors(&self) -> Vec<&Tensor> {
        vec![&self.fields, &self.weights]
    }
}

impl CodecStage {
    fn frames(&self) -> usize {
        self.train.shape().frames
    }

    /// The frame of a sample, as it is in the file.
    fn read(&self, set: &TrajectorySet, sample: u64) -> Result<Vec<f32>> {
        let (trajectory, frame) =
            (sample as usize / self.frames(), sample as usize % self.frames());
        let mut u = vec![0.0; set.shape().frame_len()];
        set.read_frames(trajectory, frame..frame + 1, &mut u)?;
        Ok(u)
    }

    fn augment(&self, update: u64, place: u64, u: &mut [f32]) {
        let random = self.augmentation.at_update(update);
        if self.data.shift {
            u.rotate_left(random.below(place, 0, u.len() as u64) as usize);
        }
        if self.data.reflect && random.below(place, 1, 2) == 1 {
            u.reverse();
            u.iter_mut().for_each(|x| *x = -*x);
        }
    }
}

impl Stage for CodecStage {
    const NAME: &'static str = "codec";
    const METRIC: &'static str = "nrmse";
    type Data = FieldData;
    type Model = CodecModel;
    type Loss = CodecLoss;
    type Batch = FieldBatch;

    fn open(config: &ConfigOf<Self>) -> Result<(Self, Params)> {
        let train = open_split(&config.data.split, SplitName::Train)?;
        let validation = open_split(&config.data.split, SplitName::Validation)?;
        let stats = Stats::load(&config.data.stats, train.manifest_hash())?;
        let shape = train.shape();
        if shape.channels != 1 {
            return Err(Error::data(format!(
                "{}: {} channels; this codec reads one",
                config.data.split.display(),
                shape.channels
            )));
        }
        let grid = config.model.tokens(&shape.grid).map_err(|why| {
            Error::config(format!("model.patch: {why} of {}", config.data.split.display()))
        })?;
        let mut builder = Builder::new(config.seed);
        let codec = Codec::new(&mut builder, &config.model, grid);
        let stage = Self {
            codec,
            normalisation: Normalisation::of(&stats.channels[0]),
            data: config.data.clone(),
            loss: config.loss.clone(),
            train,
            validation,
            augmentation: Philox::new(config.seed, Purpose::Augmentation),
        };
        Ok((stage, builder.finish()))
    }

    fn samples(&self) -> u64 {
        (self.train.len() * self.frames()) as u64
    }

    fn data_hash(&self) -> String {
        self.train.manifest_hash().to_string()
    }

    fn batch(&self, update: u64, samples: &[u64]) -> Result<FieldBatch> {
        let points = self.train.shape().frame_len();
        let mut fields = Tensor::arbitrary(&[samples.len(), points], Dtype::F32);
        let mut weights = vec![0.0_f32; samples.len()];
        for (place, (sample, out)) in
            samples.iter().zip(fields.write::<f32>().chunks_exact_mut(points)).enumerate()
        {
            let mut u = self.read(&self.train, *sample)?;
            self.augment(update, place as u64, &mut u);
            let energy: f64 = u.iter().map(|x| f64::from(*x).powi(2)).sum();
            let relative = energy / points as f64 / self.normalisation.std.powi(2);
            weights[place] = (1.0 / (samples.len() as f64 * (relative + self.loss.floor))) as f32;
            self.normalisation.apply(&u, out);
        }
        Ok(FieldBatch { fields, weights: Tensor::of(&weights, &[samples.len()]) })
    }

    fn loss(&self, pass: &Pass, batch: &FieldBatch) -> Result<Var> {
        let ones = |n: usize| pass.full(&[n], 1.0);
        let (u, weights) = (pass.constant(&batch.fields)?, pass.constant(&batch.weights)?);
        let z = self.codec.encode(pass, &u)?;
        let reconstruction = self.codec.decode(pass, &z)?;
        let points = ones(u.shape()[1])?;
        let error = pass.apply(SquaredError, &[&reconstruction, &u, &weights, &points])?;
        if self.loss.reencoding == 0.0 {
            return Ok(error);
        }
        let again = self.codec.encode(pass, &reconstruction)?;
        let (samples, dim) = (z.shape()[0], z.shape()[2]);
        let equal = pass.full(&[samples], 1.0 / samples as f64)?;
        let inverse = pass.apply(SquaredError, &[&again, &z.detached(), &equal, &ones(dim)?])?;
        pass.apply(WeightedSum(vec![1.0, self.loss.reencoding]), &[&error, &inverse])
    }

    fn validate(&self, params: &Params, samples: u64) -> Result<Metrics> {
        let points = self.validation.shape().frame_len();
        let mut regimes = Regimes::default();
        for chunk in spread((self.validation.len() * self.frames()) as u64, samples).chunks(64) {
            let mut fields = Vec::new();
            for sample in chunk {
                fields.push(self.read(&self.validation, *sample)?);
            }
            let mut input = Tensor::arbitrary(&[chunk.len(), points], Dtype::F32);
            for (u, out) in fields.iter().zip(input.write::<f32>().chunks_exact_mut(points)) {
                self.normalisation.apply(u, out);
            }
            let tape = Tape::without_gradients();
            let pass = Pass::frozen(&tape, params);
            let z = self.codec.encode(&pass, &pass.data(&input)?)?;
            let output = self.codec.decode(&pass, &z)?.value().to_host()?;
            for ((sample, u), v) in
                chunk.iter().zip(&fields).zip(output.read::<f32>().chunks_exact(points))
            {
                let mut restored = vec![0.0; points];
                self.normalisation.invert(v, &mut restored);
                let entry = self.validation.entry(*sample as usize / self.frames());
                regimes.add(entry.parameter, &restored, u);
            }
        }
        Ok(regimes.metrics(Self::METRIC))
    }

    fn constants(&self) -> Constants {
        let grid: Vec<f64> = self.train.shape().grid.iter().map(|n| *n as f64).collect();
        let mut constants = self.normalisation.constants("field");
        constants.push(("field.grid".into(), Tensor::of(&grid, &[grid.len()])));
        constants
    }
}
