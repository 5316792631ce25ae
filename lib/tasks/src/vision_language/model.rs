//! Qwen3-VL: a vision tower and a decoder that reads its features in the places of image tokens.

use super::config::VisionLanguageConfig;
use super::positions::{Grid, place, tensors};
use super::vision::{Patches, VisionTower};
use crate::language::{Decoder, Generator, Prompts, Rope};
use learn::forward::Forward;
use learn::params::Builder;
use tensor::ops::concat::Concat;
use tensor::ops::embedding::Embedding;
use tensor::{Dtype, Tensor, Var};
use unix::{Error, Result};

/// An image as patches.
#[derive(Clone, Debug)]
pub struct Images {
    /// The patches of each image.
    pub grids: Vec<Grid>,
    /// Values of each patch, [patches of all images, 3·size²], in the order in which they are merged.
    pub values: Vec<f32>,
}

/// Sequences with images, as tensors on the host.
#[derive(Clone, Debug)]
pub struct Inputs {
    /// Token ids, i32 [B, T].
    pub ids: Tensor,
    /// Length of each sequence, i32 [B].
    pub lengths: Tensor,
    /// Cosines and sines of the positions, [B, T, D].
    pub angles: Tensor,
    /// The position of the token that follows each sequence.
    pub next: Vec<i32>,
    /// For each token its row among those of all tokens and, after them, of the features of the images, i32 [B·T].
    pub rows: Tensor,
    /// For each token 0, or 1 + its row among the features of the images, i32 [B·T].
    pub features: Tensor,
    /// The images of all sequences, in order: values, angles, rows and weights of learned positions, counts
    /// ([`Patches`]); None without an image.
    pub images: Option<[Tensor; 5]>,
}

/// A model of images and text.
#[derive(Clone, Debug)]
pub struct VisionLanguage {
    config: VisionLanguageConfig,
    tower: VisionTower,
    /// The decoder with its head.
    pub decoder: Decoder,
    rope: Rope,
}

impl VisionLanguage {
    /// Builds the model.
    pub fn new(b: &mut Builder, config: &VisionLanguageConfig) -> Self {
        let tower = b.scope("model.visual", |b| VisionTower::new(b, &config.vision));
        let decoder = Decoder::within(b, "model.language_model", &config.decoder);
        let rope = Rope::new(&config.decoder.rope_parameters, config.decoder.head_size());
        Self { config: config.clone(), tower, decoder, rope }
    }

    /// The inputs for sequences of token ids and the images whose tokens are in them, padded with token `padding`; floating-point
    /// ones in `dtype`. None if the image tokens of a sequence are not those of its images.
    pub fn inputs(
        &self,
        sequences: &[(&[i32], &Images)],
        padding: i32,
        dtype: Dtype,
    ) -> Option<Inputs> {
        let (vision, image_token) = (&self.config.vision, self.config.image_token_id as i32);
        let merge = vision.spatial_merge_size;
        let width = sequences.iter().map(|(ids, _)| ids.len()).max().unwrap_or(0);
        let grids: Vec<Grid> = sequences.iter().flat_map(|(_, own)| own.grids.clone()).collect();
        let most = grids.iter().map(|grid| grid.patches()).max().unwrap_or(0);
        let count = sequences.len();
        let (mut all, mut positions) = (Vec::<i32>::new(), Vec::new());
        let (mut rows, mut features, mut next) = (Vec::new(), Vec::new(), Vec::new());
        let mut values = vec![0.0_f32; grids.len() * most * vision.patch_values()];
        let mut image = 0;
        for (b, (ids, own)) in sequences.iter().enumerate() {
            let placed = place(ids, image_token, &own.grids, merge)?;
            all.extend(ids.iter().chain(std::iter::repeat(&padding)).take(width));
            positions.extend(placed.positions);
            next.push(placed.next);
            positions.resize((b + 1) * width, [0; 3]);
            // The rows of the features of the images of this sequence.
            let mut found = Vec::new();
            let mut start = 0;
            for grid in &own.grids {
                let first = image * most / (merge * merge);
                found.extend(first..first + vision.tokens(*grid));
                let len = grid.patches() * vision.patch_values();
                let to = image * most * vision.patch_values();
                values[to..to + len].copy_from_slice(own.values.get(start..start + len)?);
                (start, image) = (start + len, image + 1);
            }
            let mut found = found.into_iter();
            for t in 0..width {
                let row = match ids.get(t) == Some(&image_token) {
                    true => Some(found.next()?),
                    false => None,
                };
                rows.push(row.map_or(b * width + t, |row| count * width + row) as i32);
                features.push(row.map_or(0, |row| row as i32 + 1));
            }
        }
        let lengths: Vec<i32> = sequences.iter().map(|(ids, _)| ids.len() as i32).collect();
        let images = (!grids.is_empty()).then(|| {
            let [angles, around, weights, counts] = tensors(&grids, vision, dtype);
            let shape = [grids.len(), most, vision.patch_values()];
            let values = Tensor::from_slice(&values, &shape).to_dtype(dtype);
            [values, angles, around, weights, counts]
        });
        let angles = self.rope.table_of_axes(&positions, self.config.mrope_section, dtype);
        let head = angles.width();
        Some(Inputs {
            ids: Tensor::from_slice(&all, &[count, width]),
            lengths: Tensor::from_slice(&lengths, &[count]),
            angles: angles.reshape(&[count, width, head]),
            next,
            rows: Tensor::from_slice(&rows, &[count * width]),
            features: Tensor::from_slice(&features, &[count * width]),
            images,
        })
    }

    /// The last hidden states after their normalization, [B, T, H]; those of padding have no meaning.
    pub fn forward(&self, forward: &Forward, inputs: &Inputs) -> Result<Var> {
        let lengths = forward.data(&inputs.lengths)?;
        let Prompts { inputs: x, angles, after, .. } = self.read(forward, inputs)?;
        self.decoder.states(forward, x, [&angles, &lengths], &after)
    }

    /// Continues sequences with these images, which are the prompts of one batch in their order.
    pub fn generator<'a>(&'a self, forward: &Forward<'a>, images: &'a [Images]) -> Generator<'a> {
        let read = move |forward: &Forward, prompts: &[&[i32]]| {
            let sequences: Vec<(&[i32], &Images)> = prompts.iter().copied().zip(images).collect();
            let dtype = if forward.dtype() == Dtype::F64 { Dtype::F64 } else { Dtype::F32 };
            let fits = sequences.len() == prompts.len();
            match self.inputs(&sequences, 0, dtype).filter(|_| fits) {
                Some(inputs) => self.read(forward, &inputs),
                None => Err(Error::bug("the image tokens of a prompt are not those of its images")),
            }
        };
        Generator::new(forward, &self.decoder, &self.config.decoder).reading(Box::new(read))
    }

    /// What the first layers of the decoder read.
    fn read(&self, forward: &Forward, inputs: &Inputs) -> Result<Prompts> {
        let angles = forward.data(&inputs.angles)?;
        let x = self.decoder.embedded(forward, &forward.data(&inputs.ids)?)?;
        let next = inputs.next.clone();
        let Some(images) = &inputs.images else {
            return Ok(Prompts { inputs: x, angles, after: Vec::new(), next });
        };
        let [values, of_patches, around, weights, counts] =
            images.each_ref().map(|x| forward.data(x));
        let patches = Patches {
            values: values?,
            angles: of_patches?,
            rows: around?,
            weights: weights?,
            counts: counts?,
        };
        let found = self.tower.forward(forward, &patches)?;
        let [rows, features] = [&inputs.rows, &inputs.features].map(|x| forward.data(x));
        let (rows, features) = (rows?, features?);
        let (shape, width) = (x.shape().to_vec(), x.value().width());
        let texts = x.reshape(&[x.value().rows(), width]);
        // Takes rows of two matrices.
        let take = |first: &Var, second: &Var, rows: &Var| -> Result<Var> {
            let both = forward.apply(Concat { axis: 0 }, &[first, second])?;
            Ok(forward.apply(Embedding, &[&both, rows])?.reshape(&shape))
        };
        let inputs = take(&texts, &found.tokens, &rows)?;
        let zeros = forward.data(&Tensor::zeros(&[1, width], texts.value().dtype()))?;
        let after = found.after_layers.iter().map(|own| take(&zeros, own, &features));
        Ok(Prompts { inputs, angles, after: after.collect::<Result<_>>()?, next })
    }
}
