//! A trained codec: encodes fields in physical units to latents and decodes them.

use crate::common::tokens::FieldTokens;
use crate::pde::codec::CodecTask;
use crate::pde::evaluate::{
    Batch, Frames, Method, RolloutPlan, RolloutRequest, Rollouts, Space, Start, require_fields,
};
use crate::pde::identity::{hash_of_buffers, hash_of_model};
use crate::pde::latents::codec_hash;
use crate::pde::models::{Codec, CodecModel};
use crate::trained::Opener;
use data::fields::field::{Field, Shape};
use data::fields::latents::Key;
use data::fields::split_set::TrajectorySet;
use data::fields::write::Header;
use learn::task::Define;
use learn::trained::{Origin, Parts, TrainedModel};
use std::ops::Range;
use std::path::Path;
use tensor::{Device, Dtype, Tensor};
use unix::{Context, Error, Result};

/// Number of fields per forward pass: enough for all threads, few enough for the caches.
const BATCH: usize = 64;

/// A codec with its weights and normalisation.
#[derive(Clone, Debug)]
pub struct TrainedCodec {
    trained: TrainedModel<Codec>,
    tokens: FieldTokens,
    /// Number of features per token.
    dim: usize,
    hash: String,
}

impl TrainedCodec {
    /// Opens the codec at `path`, a checkpoint or a run directory. Errors: 66 when there is no checkpoint; 65 when the
    /// checkpoint is damaged or of a different task.
    pub fn open(path: &Path, opener: &Opener) -> Result<Self> {
        let parts = Parts::read(path, opener.weights)?;
        opener.require_known(&parts, &[])?;
        if parts.task != CodecTask::SPEC.name {
            let text = format!("{}: the task {} has no encoder", parts.origin, parts.task);
            return Err(Error::data(text));
        }
        Self::restore(&parts, opener).context(|| parts.origin.checkpoint.display().to_string())
    }

    /// Returns rows and columns of the token grid.
    pub fn token_grid(&self) -> [usize; 2] {
        let [_, rows, columns] = self.tokens.patches.tokens();
        [rows, columns]
    }

    /// Number of grid points along each side of a patch.
    pub fn patch(&self) -> usize {
        self.tokens.patches.side()
    }

    /// Number of tokens per latent state.
    pub fn tokens(&self) -> usize {
        self.token_grid().iter().product()
    }

    /// Number of features per token.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// Returns the key that identifies the codec's latents of a data set.
    pub fn key(&self, set: &TrajectorySet) -> Key {
        let dtype = if self.trained.mode.amp { Dtype::Bf16 } else { Dtype::F32 };
        Key::new(&self.hash, &self.normalisation_hash(), &dtype.to_string(), set)
    }

    /// Returns the hash of configuration, weights and normalisation; equal to [`codec_hash`] of the codec's latents.
    pub fn hash(&self) -> String {
        codec_hash(&self.hash, &self.normalisation_hash())
    }

    fn normalisation_hash(&self) -> String {
        hash_of_buffers(&self.tokens.normalisation.buffers("field"))
    }

    /// Refuses (65) trajectories of a shape that the codec cannot read; the first `inputs` channels are inputs.
    pub fn require_fields_of(&self, shape: &Shape, inputs: usize) -> Result<()> {
        let found = (&shape.grid[..], inputs, shape.channels - inputs);
        require_fields(found, (self.shape().0, 0, self.shape().1))
    }

    /// Encodes fields [n, grid.., channels] in physical units to latents [n, tokens, dim].
    ///
    /// # Panics
    /// If the length of `fields` is not a multiple of the field length.
    pub fn encode(&self, fields: &[f32]) -> Result<Tensor> {
        let length = self.tokens.field_len();
        let count = fields.len() / length;
        assert_eq!(fields.len(), count * length, "fields of another size");
        let mut latents = Vec::with_capacity(count * self.tokens() * self.dim);
        for fields in fields.chunks(BATCH * length) {
            let input = self.tokens.cut_all(fields);
            let z = self.trained.run(|forward, codec| {
                codec.encode(forward, &forward.data(&input)?)?.value().to_host()
            })?;
            latents.extend_from_slice(z.read::<f32>());
        }
        Ok(Tensor::from_slice(&latents, &[count, self.tokens(), self.dim]))
    }

    /// Decodes latents [n, tokens, dim] to fields [n, grid.., channels] in physical units.
    pub fn decode(&self, latents: &[f32]) -> Result<Vec<f32>> {
        let width = self.tokens() * self.dim;
        let mut fields = Vec::with_capacity(latents.len() / width * self.tokens.field_len());
        for z in latents.chunks(BATCH * width) {
            let z = Tensor::from_slice(z, &[z.len() / width, self.tokens(), self.dim]);
            let u = self.trained.run(|forward, codec| {
                codec.decode(forward, &forward.data(&z)?)?.value().to_host()
            })?;
            fields.extend(self.tokens.join_all(&u));
        }
        Ok(fields)
    }

    /// Returns the ground truth of some rollouts as fields, as latents, and as fields reconstructed by the codec; and
    /// the mean of the training data.
    pub(super) fn truth(
        &self,
        set: &TrajectorySet,
        plan: &RolloutPlan,
        starts: &[Start],
    ) -> Result<([Frames; 3], Frames)> {
        let (points, states) = (self.tokens.field_len(), plan.steps + 1);
        let mut truth = vec![0.0; starts.len() * states * points];
        for (start, rows) in starts.iter().zip(truth.chunks_exact_mut(states * points)) {
            for (step, row) in rows.chunks_exact_mut(points).enumerate() {
                let frame = plan.frame(*start, step);
                set.read_frames(start.trajectory, frame..frame + 1, row)?;
            }
        }
        let latents = self.encode(&truth)?.read::<f32>().to_vec();
        let reconstructions = self.decode(&latents)?;
        let width = self.tokens() * self.dim;
        let frames = [(truth, points), (latents, width), (reconstructions, points)];
        let of_channel = self.tokens.normalisation.mean.iter().map(|mean| *mean as f32);
        let mean = Frames::constant(of_channel.cycle().take(points).collect());
        Ok((frames.map(|(values, width)| Frames::new(values, states, width)), mean))
    }
}

impl Rollouts for TrainedCodec {
    /// Restores the codec from its checkpoint. Errors: 65 when the checkpoint is of a different task or inconsistent.
    fn restore(parts: &Parts, opener: &Opener) -> Result<Self> {
        let (task, wanted) = (&parts.task, CodecTask::SPEC.name);
        if task != wanted {
            return Err(Error::data(format!("{}: task {task}, expected {wanted}", parts.origin)));
        }
        let model: CodecModel = parts.section("model")?;
        let patches = |grid: &[usize], channels| model.patches(grid, channels);
        let tokens = FieldTokens::restore("field", parts, patches)?;
        let mut trained =
            parts.restore(Device::Cpu, |b| Ok(Codec::new(b, &model, &tokens.patches)))?;
        let hash = hash_of_model(&model, trained.params.trained.entries())?;
        (trained.params, trained.mode) =
            (trained.params.to_device(opener.mode.device)?, opener.mode);
        Ok(Self { trained, tokens, dim: model.latent, hash })
    }

    fn models(&self) -> Vec<(&'static str, Origin, usize)> {
        vec![(CodecTask::SPEC.name, self.trained.origin.clone(), self.trained.params.count())]
    }

    fn shape(&self) -> (&[usize], usize) {
        (self.tokens.patches.grid(), self.tokens.patches.channels())
    }

    fn latent(&self) -> Option<[usize; 2]> {
        Some([self.tokens(), self.dim])
    }

    fn plan(&self, set: &TrajectorySet, request: &RolloutRequest) -> Result<RolloutPlan> {
        self.require_fields_of(set.shape(), set.inputs())?;
        request.refuse_views()?;
        RolloutPlan::of_rollouts(set, request, 1)
    }

    fn rollouts(
        &self,
        set: &TrajectorySet,
        _: Option<&TrajectorySet>,
        plan: &RolloutPlan,
        starts: &[Start],
    ) -> Result<Batch> {
        let ([truth, _, codec], mean) = self.truth(set, plan, starts)?;
        let models = vec![
            (Method::Codec, codec),
            (Method::Persistence, truth.persistence()),
            (Method::Mean, mean),
        ];
        let spaces = vec![Space { name: "field", truth, models }];
        Ok(Batch { spaces, ..Batch::default() })
    }

    /// Prepares the file of the reconstructions of all frames.
    fn output(&self, inputs: &Field, request: &RolloutRequest) -> Result<Header> {
        self.require_fields_of(inputs.shape(), inputs.inputs())?;
        request.refuse_views()?;
        let (shape, coordinates) = (inputs.shape().clone(), inputs.coordinates().to_vec());
        Ok(Header::tensor(shape, coordinates, inputs.t().to_vec()))
    }

    fn predict(&self, inputs: &Field, which: Range<usize>, _: &RolloutRequest) -> Result<Vec<f32>> {
        let length = inputs.shape().trajectory_len();
        let mut fields = vec![0.0; which.len() * length];
        for (trajectory, out) in which.zip(fields.chunks_exact_mut(length)) {
            inputs.read(trajectory, out)?;
        }
        self.decode(self.encode(&fields)?.read())
    }
}
