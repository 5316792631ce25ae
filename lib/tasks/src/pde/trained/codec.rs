//! A trained codec: fields in physical units to latents and back.

use crate::pde::codec::CodecTask;
use crate::pde::identity::{hash_of_buffers, hash_of_model};
use crate::pde::models::{Codec, CodecModel, Patches};
use crate::pde::normalisation::Normalisation;
use data::fields::latents::Key;
use data::fields::split_set::TrajectorySet;
use learn::params::{Builder, Params};
use learn::pass::Pass;
use learn::task::Buffers;
use learn::trained::{Origin, Parts, Weights};
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
    patches: Patches,
    hash: String,
}

impl TrainedCodec {
    /// Opens a codec: a checkpoint, or a run directory, of which the best checkpoint is taken.
    ///
    /// Errors: 66 when there is none, 65 when it is damaged or no codec's.
    pub fn open(path: &Path, weights: Weights) -> Result<Self> {
        let parts = Parts::read::<CodecTask>(path, weights)?;
        Self::new(&parts).context(|| parts.origin.checkpoint.display().to_string())
    }

    /// From its parts. Errors: 65 when they do not fit each other.
    pub fn new(parts: &Parts) -> Result<Self> {
        let model: CodecModel = parts.section("model")?;
        let normalisation = Normalisation::from_buffers("field", &parts.buffers)?;
        let grid = grid_of("field.grid", &parts.buffers)?;
        let patches = model.patches(&grid, normalisation.channels()).map_err(Error::data)?;
        let mut builder = Builder::new(0);
        let codec = Codec::new(&mut builder, &model, &patches);
        let mut params = builder.finish();
        params.assign(&parts.weights)?;
        Ok(Self {
            origin: parts.origin.clone(),
            hash: hash_of_model(&model, &params)?,
            model,
            codec,
            params,
            normalisation,
            patches,
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

    /// Numbers of a field: all points and channels.
    pub fn field_len(&self) -> usize {
        self.patches.field_len()
    }

    /// Points of a field along each axis.
    pub fn grid(&self) -> &[usize] {
        self.patches.grid()
    }

    /// Numbers at a point.
    pub fn channels(&self) -> usize {
        self.patches.channels()
    }

    /// Tokens of a latent state.
    pub fn tokens(&self) -> usize {
        self.token_grid().iter().product()
    }

    /// Rows and columns of the tokens.
    pub fn token_grid(&self) -> [usize; 2] {
        self.patches.tokens()
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
    pub fn normalisation(&self) -> &Normalisation {
        &self.normalisation
    }

    /// BLAKE3 of its configuration and weights.
    pub fn hash(&self) -> &str {
        &self.hash
    }

    /// BLAKE3 of its normalisation.
    pub fn normalisation_hash(&self) -> String {
        hash_of_buffers(&self.normalisation.buffers("field"))
    }

    /// Names the latents that it makes of a data set.
    pub fn key(&self, set: &TrajectorySet) -> Key {
        Key::new(&self.hash, &self.normalisation_hash(), "f32", set)
    }

    /// Refuses (65) a data set whose fields it cannot read.
    pub fn require_fields_of(&self, set: &TrajectorySet) -> Result<()> {
        let (shape, channels) = (set.shape(), self.channels());
        if shape.grid == self.grid() && shape.channels == channels && set.inputs() == 0 {
            return Ok(());
        }
        Err(Error::data(format!(
            "the data has {} channels ({} of them inputs) on a grid of {:?}, the codec reads {channels} on \
             {:?}: it was trained on other data",
            shape.channels,
            set.inputs(),
            shape.grid,
            self.grid()
        )))
    }

    /// Fields [n, grid.., channels] in physical units -> latents [n, tokens, dim].
    pub fn encode(&self, fields: &[f32]) -> Result<Tensor> {
        let length = self.field_len();
        let count = self.count(fields.len(), length)?;
        let mut latents = Vec::with_capacity(count * self.tokens() * self.dim());
        let mut normalised = vec![0.0; length];
        for fields in fields.chunks(BATCH * length) {
            let mut input = Tensor::arbitrary(&[fields.len() / length, length], Dtype::F32);
            let rows = input.write::<f32>().chunks_exact_mut(length);
            for (field, out) in fields.chunks_exact(length).zip(rows) {
                self.normalisation.apply(field, &mut normalised);
                self.patches.cut(&normalised, out);
            }
            let tape = Tape::without_gradients();
            let pass = Pass::frozen(&tape, &self.params);
            let z = self.codec.encode(&pass, &pass.data(&input)?)?;
            latents.extend_from_slice(z.value().to_host()?.read::<f32>());
        }
        Ok(Tensor::of(&latents, &[count, self.tokens(), self.dim()]))
    }

    /// Latents [n, tokens, dim] -> fields [n, grid.., channels] in physical units.
    pub fn decode(&self, latents: &Tensor) -> Result<Vec<f32>> {
        let (length, width) = (self.field_len(), self.tokens() * self.dim());
        let count = self.count(latents.len(), width)?;
        let mut fields = vec![0.0; count * length];
        let mut joined = vec![0.0; length];
        let batches = latents.read::<f32>().chunks(BATCH * width);
        for (z, out) in batches.zip(fields.chunks_mut(BATCH * length)) {
            let z = Tensor::of(z, &[z.len() / width, self.tokens(), self.dim()]);
            let tape = Tape::without_gradients();
            let pass = Pass::frozen(&tape, &self.params);
            let u = self.codec.decode(&pass, &pass.data(&z)?)?.value().to_host()?;
            let rows = u.read::<f32>().chunks_exact(length);
            for (patches, out) in rows.zip(out.chunks_exact_mut(length)) {
                self.patches.join(patches, &mut joined);
                self.normalisation.invert(&joined, out);
            }
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

/// Points along each axis, from a constant.
pub(crate) fn grid_of(name: &str, buffers: &Buffers) -> Result<Vec<usize>> {
    let found = buffers.iter().find(|(other, _)| other == name);
    let Some(values) = found.map(|(_, grid)| grid.to_f64()) else {
        return Err(Error::data(format!("the checkpoint has no constant {name}")));
    };
    if values.is_empty() || !values.iter().all(|n| (1.0..1e9).contains(n)) {
        return Err(Error::data(format!("the checkpoint's {name} {values:?} is no grid")));
    }
    Ok(values.iter().map(|n| *n as usize).collect())
}
