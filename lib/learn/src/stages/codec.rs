//! Stage `codec`: fields to latent tokens and back, trained on single frames.
//!
//! The loss is that of the physical field: L = mean over samples of
//! ‖û - u‖²/(‖u‖² + floor·σ²·n), û = decode(encode(u)), relative to each sample's own energy so that
//! fields that have decayed count as much as fresh ones. It is the inverse loss of the encoder
//! (UPT, Alkin et al. 2024, §3.3); that of the decoder, ‖encode(û) - z‖², may be added.

use super::sources::{FieldSource, Fields, Sources, joined, one, weight_faults};
use super::{Batch, ConfigOf, Constants, Stage};
use crate::config::{Config, Faults, Validate, within};
use crate::metrics::Regimes;
use crate::models::codec::Border;
use crate::models::{Codec, CodecModel, Patches};
use crate::normalisation::Normalisation;
use crate::params::{Builder, Params};
use crate::pass::Pass;
use data::inputs::InputFile;
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
    /// How much of what is read is of this data set, beside the weights of the others.
    #[serde(default = "one")]
    pub weight: f64,
    /// More data sets of fields of the same kind, read in proportion to their weights.
    #[serde(default)]
    pub others: Vec<FieldSource>,
    /// Move each field round by a random number of grid points; for periodic domains.
    #[serde(default)]
    pub shift: bool,
    /// Turn half of the fields round along their first axis, u(x) to -u(-x); for equations that allow it.
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
        faults.extend(weight_faults(self.data.weight, self.data.others.iter().map(|o| o.weight)));
        if self.data.shift && self.model.border != Border::Periodic {
            faults.push(("data.shift".into(), "is a symmetry of periodic domains only".into()));
        }
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
    patches: Patches,
    normalisation: Normalisation,
    data: FieldData,
    loss: CodecLoss,
    train: Sources<TrajectorySet>,
    validation: Sources<TrajectorySet>,
    augmentation: Philox,
    input_files: Vec<InputFile>,
}

/// Normalised fields, patch by patch, and the weight of each.
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
    /// The frame of a sample, as it is in the file.
    fn read(set: &TrajectorySet, sample: u64, u: &mut [f32]) -> Result<()> {
        let frames = set.shape().frames as u64;
        let (trajectory, frame) = ((sample / frames) as usize, (sample % frames) as usize);
        set.read_frames(trajectory, frame..frame + 1, u)
    }

    fn augment(&self, pass: u64, place: u64, u: &mut [f32]) {
        let random = self.augmentation.at_update(pass);
        let grid = self.patches.grid();
        let row = u.len() / grid[0];
        if self.data.shift {
            u.rotate_left(row * random.below(place, 0, grid[0] as u64) as usize);
            if let [_, columns] = grid {
                let turn = random.below(place, 2, *columns as u64) as usize;
                u.chunks_exact_mut(row).for_each(|u| u.rotate_left(turn * (row / columns)));
            }
        }
        if self.data.reflect && random.below(place, 1, 2) == 1 {
            for i in 0..grid[0] / 2 {
                let (front, back) = u.split_at_mut((grid[0] - 1 - i) * row);
                front[i * row..][..row].swap_with_slice(&mut back[..row]);
            }
            u.iter_mut().for_each(|x| *x = -*x);
        }
    }
}

impl Stage for CodecStage {
    const NAME: &'static str = "codec";
    const METRIC: &'static str = "nrmse";
    const EXAMPLE: &'static str = include_str!("examples/codec.yaml");
    type Data = FieldData;
    type Model = CodecModel;
    type Loss = CodecLoss;
    type Batch = FieldBatch;

    fn open(config: &ConfigOf<Self>) -> Result<(Self, Params)> {
        let FieldData { split, stats, weight, others, .. } = &config.data;
        let fields = Fields::open(split, stats, *weight, others)?;
        let channels = |stats: &Stats| stats.channels.iter().map(|c| (c.mean, c.std)).collect();
        let moments: Vec<_> =
            fields.stats.iter().map(|(s, weight)| (channels(s), *weight)).collect();
        let frames = |set: &TrajectorySet| (set.len() * set.shape().frames) as u64;
        let sources = Sources::new(fields.train, frames);
        let train = sources.first();
        let shape = train.shape();
        if train.inputs() > 0 {
            return Err(Error::data(format!(
                "{}: a problem with inputs; a codec reads states alone",
                split.display()
            )));
        }
        let patches = config
            .model
            .patches(&shape.grid, shape.channels)
            .map_err(|why| Error::config(format!("model.{why} of {}", split.display())))?;
        let mut builder = Builder::new(config.seed);
        let codec = Codec::new(&mut builder, &config.model, &patches);
        let stage = Self {
            codec,
            patches,
            normalisation: Normalisation::mixed(&moments),
            data: config.data.clone(),
            loss: config.loss.clone(),
            train: sources,
            validation: Sources::new(fields.validation, frames),
            augmentation: Philox::new(config.seed, Purpose::Augmentation),
            input_files: fields.input_files,
        };
        builder.check()?;
        Ok((stage, builder.finish()))
    }

    fn sources(&self) -> Vec<(u64, f64)> {
        self.train.shares()
    }

    fn data_hash(&self) -> String {
        joined(self.train.iter().map(TrajectorySet::manifest_hash))
    }

    fn input_files(&self) -> Vec<InputFile> {
        self.input_files.clone()
    }

    fn batch(&self, pass: u64, first: u64, samples: &[u64]) -> Result<FieldBatch> {
        let points = self.patches.field_len();
        let mut fields = Tensor::arbitrary(&[samples.len(), points], Dtype::F32);
        let [mut u, mut normalised] = [(); 2].map(|()| vec![0.0; points]);
        let mut weights = vec![0.0_f32; samples.len()];
        for (place, (sample, out)) in
            samples.iter().zip(fields.write::<f32>().chunks_exact_mut(points)).enumerate()
        {
            let (set, sample) = self.train.find(*sample);
            Self::read(set, sample, &mut u)?;
            self.augment(pass, first + place as u64, &mut u);
            let relative = self.normalisation.energy(&u);
            weights[place] = (1.0 / (samples.len() as f64 * (relative + self.loss.floor))) as f32;
            self.normalisation.apply(&u, &mut normalised);
            self.patches.cut(&normalised, out);
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

    fn validation_samples(&self) -> u64 {
        self.validation.samples()
    }

    fn judge(&self, params: &Params, samples: &[u64]) -> Result<Regimes> {
        let points = self.patches.field_len();
        let mut fields = vec![vec![0.0; points]; samples.len()];
        for (sample, u) in samples.iter().zip(&mut fields) {
            let (set, sample) = self.validation.find(*sample);
            Self::read(set, sample, u)?;
        }
        let mut normalised = vec![0.0; points];
        let mut input = Tensor::arbitrary(&[samples.len(), points], Dtype::F32);
        for (u, out) in fields.iter().zip(input.write::<f32>().chunks_exact_mut(points)) {
            self.normalisation.apply(u, &mut normalised);
            self.patches.cut(&normalised, out);
        }
        let tape = Tape::without_gradients();
        let pass = Pass::frozen(&tape, params);
        let z = self.codec.encode(&pass, &pass.data(&input)?)?;
        let output = self.codec.decode(&pass, &z)?.value().to_host()?;
        let mut regimes = Regimes::default();
        for ((sample, u), v) in
            samples.iter().zip(&fields).zip(output.read::<f32>().chunks_exact(points))
        {
            let (mut joined, mut restored) = (vec![0.0; points], vec![0.0; points]);
            self.patches.join(v, &mut joined);
            self.normalisation.invert(&joined, &mut restored);
            let (set, sample) = self.validation.find(*sample);
            let entry = set.entry(sample as usize / set.shape().frames);
            regimes.add(entry.parameter, &restored, u);
        }
        Ok(regimes)
    }

    fn constants(&self) -> Constants {
        let grid: Vec<f64> = self.patches.grid().iter().map(|n| *n as f64).collect();
        let mut constants = self.normalisation.constants("field");
        constants.push(("field.grid".into(), Tensor::of(&grid, &[grid.len()])));
        constants
    }
}
