//! A trained codec: fields in physical units to latents and back.

use super::{Origin, Parts, Weights};
use crate::identity::{hash_of_constants, hash_of_model};
use crate::models::{Codec, CodecModel};
use crate::normalisation::Normalisation;
use crate::params::{Builder, Params};
use crate::pass::Pass;
use crate::stages::Constants;
use crate::stages::codec::CodecStage;
use data::latents::Key;
use data::split_set::TrajectorySet;
use std::path::Path;
use tensor::{Device, Dtype, Tape, Tensor};
use unix::{Context, Error, Result};

/// Fields that go through the model at once: enough for all threads, few enough for the caches.
const BATCH: usize = 64;

/// A codec with its weights and normalisation.
#[derive(Clone, Debug)]
pub struct TrainedCodec {
    origin: Origin,
    model: CodecModel,
    codec: Codec,
    params: Params,
    normalisation: Normalisation,
    points: usize,
    tokens: usize,
    hash: String,
}

impl TrainedCodec {
    /// Opens a codec: a checkpoint, or a run directory, of which the best checkpoint is taken.
    ///
    /// Errors: 66 when there is none, 65 when it is damaged or no codec's.
    pub fn open(path: &Path, weights: Weights) -> Result<Self> {
        let parts = Parts::read::<CodecStage>(path, weights)?;
        Self::new(&parts).context(|| parts.origin.checkpoint.display().to_string())
    }

    /// From its parts. Errors: 65 when they do not fit each other.
    pub fn new(parts: &Parts) -> Result<Self> {
        let model: CodecModel = parts.section("model")?;
        let points = grid_of(&parts.constants)?;
        let grid = model.tokens(&[points]).map_err(Error::data)?;
        let mut builder = Builder::new(0);
        let codec = Codec::new(&mut builder, &model, grid);
        let mut params = builder.finish();
        params.assign(&parts.weights)?;
        Ok(Self {
            origin: parts.origin.clone(),
            hash: hash_of_model(&model, &params)?,
            model,
            codec,
            params,
            normalisation: Normalisation::from_constants("field", &parts.constants)?,
            points,
            tokens: grid[0] * grid[1],
        })
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

    /// Its configuration.
    pub fn model(&self) -> &CodecModel {
        &self.model
    }

    /// Grid points of a field.
    pub fn points(&self) -> usize {
        self.points
    }

    /// Tokens of a latent state.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Features of a token.
    pub fn dim(&self) -> usize {
        self.model.latent
    }

    /// Numbers in the model.
    pub fn parameters(&self) -> usize {
        self.params.count()
    }

    /// Mean and deviation of the fields it was trained on.
    pub fn normalisation(&self) -> Normalisation {
        self.normalisation
    }

    /// BLAKE3 of its configuration and weights.
    pub fn hash(&self) -> &str {
        &self.hash
    }

    /// BLAKE3 of its normalisation.
    pub fn normalisation_hash(&self) -> String {
        hash_of_constants(&self.normalisation.constants("field"))
    }

    /// Names the latents that it makes of a data set.
    pub fn key(&self, set: &TrajectorySet) -> Key {
        Key::new(&self.hash, &self.normalisation_hash(), "f32", set)
    }

    /// Refuses (65) a data set whose fields it cannot read.
    pub fn require_fields_of(&self, set: &TrajectorySet) -> Result<()> {
        let shape = set.shape();
        if shape.grid == [self.points] && shape.channels == 1 {
            return Ok(());
        }
        Err(Error::data(format!(
            "the data has {} channels on a grid of {:?}, the codec reads 1 on {}: it was trained on \
             other data",
            shape.channels, shape.grid, self.points
        )))
    }

    /// Fields [n, points] in physical units -> latents [n, tokens, dim].
    pub fn encode(&self, fields: &[f32]) -> Result<Tensor> {
        let count = self.count(fields.len(), self.points)?;
        let mut latents = Vec::with_capacity(count * self.tokens * self.dim());
        for fields in fields.chunks(BATCH * self.points) {
            let shape = [fields.len() / self.points, self.points];
            let mut input = Tensor::arbitrary(&shape, Dtype::F32);
            self.normalisation.apply(fields, input.write());
            let tape = Tape::without_gradients();
            let pass = Pass::frozen(&tape, &self.params);
            let z = self.codec.encode(&pass, &pass.data(&input)?)?;
            latents.extend_from_slice(z.value().to_host()?.read::<f32>());
        }
        Ok(Tensor::of(&latents, &[count, self.tokens, self.dim()]))
    }

    /// Latents [n, tokens, dim] -> fields [n, points] in physical units.
    pub fn decode(&self, latents: &Tensor) -> Result<Vec<f32>> {
        let width = self.tokens * self.dim();
        let count = self.count(latents.len(), width)?;
        let mut fields = vec![0.0; count * self.points];
        let batches = latents.read::<f32>().chunks(BATCH * width);
        for (z, out) in batches.zip(fields.chunks_mut(BATCH * self.points)) {
            let z = Tensor::of(z, &[z.len() / width, self.tokens, self.dim()]);
            let tape = Tape::without_gradients();
            let pass = Pass::frozen(&tape, &self.params);
            let u = self.codec.decode(&pass, &pass.data(&z)?)?;
            self.normalisation.invert(u.value().to_host()?.read::<f32>(), out);
        }
        Ok(fields)
    }

    fn count(&self, numbers: usize, each: usize) -> Result<usize> {
        if !numbers.is_multiple_of(each) {
            return Err(Error::bug(format!("codec: {numbers} numbers are not rows of {each}")));
        }
        Ok(numbers / each)
    }
}

/// Grid points, from the constant `field.grid`.
fn grid_of(constants: &Constants) -> Result<usize> {
    let found = constants.iter().find(|(name, _)| name == "field.grid");
    match found.map(|(_, grid)| grid.to_f64()).as_deref() {
        Some([points]) if *points >= 1.0 && *points < 1e9 => Ok(*points as usize),
        Some(other) => {
            Err(Error::data(format!("the checkpoint's field.grid {other:?} is no grid")))
        }
        None => Err(Error::data("the checkpoint has no constant field.grid")),
    }
}
