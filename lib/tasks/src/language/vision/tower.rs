//! The vision tower of Qwen3-VL: embeddings of patches with interpolated learned positions, blocks of attention within each
//! image with rotary positions on two axes, and mergers that make one token of a square of patches.
//!
//! Parameters have the names that transformers gives them: `model.visual.blocks.0.attn.qkv.weight` and so on.

use super::config::VisionConfig;
use crate::language::model::Inputs;
use learn::forward::Forward;
use learn::nn::{LayerNorm, Linear};
use learn::params::{Builder, Init, ParamId};
use learn::task::Batch;
use tensor::Var;
use tensor::ops::activation::Activation;
use tensor::ops::attention::{Attention, Layout, Mask};
use tensor::ops::binary::Binary;
use tensor::ops::concat::Concat;
use tensor::ops::embedding::Embedding;
use tensor::ops::linear;
use tensor::ops::narrow::Narrow;
use tensor::ops::reduce::Reduce;
use tensor::ops::rotary::Rotary;
use unix::Result;

/// ε of all normalizations.
const EPSILON: f64 = 1e-6;

/// Images, padded to the number of patches P of the largest.
struct Patches {
    /// Values of each patch, colour by colour and row by row, [N, P, 3·size²].
    values: Var,
    /// Cosines and sines of the angles of each patch, [N, P, D].
    angles: Var,
    /// Rows of the table of learned positions around each patch, i32 [N, P, 4].
    rows: Var,
    /// Their weights, [N, P, 4].
    weights: Var,
    /// Number of patches of each image, i32 [N].
    counts: Var,
}

/// What a tower makes of images: for each token features [N·P/merge², H], and as many for each layer of the decoder that has
/// some of its own.
struct Features {
    tokens: Var,
    after_layers: Vec<Var>,
}

/// A vision tower.
#[derive(Clone, Debug)]
pub(in crate::language) struct VisionTower {
    patch_weight: ParamId,
    patch_bias: ParamId,
    positions: ParamId,
    blocks: Vec<Block>,
    merger: Merger,
    /// The blocks after which features are taken, and their mergers.
    taken: Vec<(usize, Merger)>,
    frames: usize,
}

impl VisionTower {
    /// Builds the tower.
    pub(in crate::language) fn new(b: &mut Builder, config: &VisionConfig) -> Self {
        let (width, size, frames) =
            (config.hidden_size, config.patch_size, config.temporal_patch_size);
        let init = Init::Normal(config.initializer_range);
        let (patch_weight, patch_bias) = b.scope("patch_embed.proj", |b| {
            let weight = b.param("weight", &[width, 3, frames, size, size], init);
            (weight, b.param("bias", &[width], Init::Constant(0.0)))
        });
        let rows = config.num_position_embeddings;
        let positions = b.scope("pos_embed", |b| b.param("weight", &[rows, width], init));
        let block = |b: &mut Builder, number| {
            b.scope(format!("blocks.{number}"), |b| Block::new(b, config))
        };
        let blocks = (0..config.depth).map(|number| block(b, number)).collect();
        let merger = b.scope("merger", |b| Merger::new(b, config, false));
        let taken = config.deepstack_visual_indexes.iter().enumerate();
        let taken = taken.map(|(i, block)| {
            let merger =
                b.scope(format!("deepstack_merger_list.{i}"), |b| Merger::new(b, config, true));
            (*block, merger)
        });
        let taken = taken.collect();
        Self { patch_weight, patch_bias, positions, blocks, merger, taken, frames }
    }

    /// Puts the features of the images of a batch in the places of their tokens, and adds what follows the first layers. Without
    /// an image, inputs stay as they are.
    pub(in crate::language) fn insert(
        &self,
        forward: &Forward,
        batch: &Batch,
        inputs: &mut Inputs,
    ) -> Result<()> {
        if !batch.names().any(|name| name == "patches") {
            return Ok(());
        }
        let of = |name: &str| batch.input(forward, name);
        let patches = Patches {
            values: forward.to_compute_dtype(&of("patches")?)?,
            angles: of("patch_angles")?,
            rows: of("patch_positions")?,
            weights: forward.to_compute_dtype(&of("patch_weights")?)?,
            counts: of("patch_counts")?,
        };
        let (rows, features) = (of("image_rows")?, of("image_features")?);
        let found = forward.part("vision tower", || self.forward(forward, &patches))?;
        let x = &inputs.x;
        let (shape, width) = (x.shape().to_vec(), x.value().width());
        // Takes rows of two matrices.
        let take = |first: &Var, second: &Var, rows: &Var| -> Result<Var> {
            let both = forward.apply(Concat { axis: 0 }, &[first, second])?;
            Ok(forward.apply(Embedding, &[&both, rows])?.reshape(&shape))
        };
        let zeros = forward.full(&[1, width], 0.0)?;
        let zeros = forward.to_compute_dtype(&zeros)?;
        let after = found.after_layers.iter().map(|own| take(&zeros, own, &features));
        inputs.after = after.collect::<Result<_>>()?;
        inputs.x = take(&x.reshape(&[x.value().rows(), width]), &found.tokens, &rows)?;
        Ok(())
    }

    /// The features of images. Those of padding have no meaning.
    fn forward(&self, forward: &Forward, images: &Patches) -> Result<Features> {
        let mut x = self.embedded(forward, images)?;
        let mut after_layers = Vec::new();
        for (number, block) in self.blocks.iter().enumerate() {
            let body = block.clone();
            x = forward.block(&[&x, &images.angles, &images.counts], move |forward, inputs| {
                body.forward(forward, [&inputs[0], &inputs[1], &inputs[2]])
            })?;
            if let Some((_, merger)) = self.taken.iter().find(|(taken, _)| *taken == number) {
                after_layers.push(merger.forward(forward, &x)?);
            }
        }
        Ok(Features { tokens: self.merger.forward(forward, &x)?, after_layers })
    }

    /// Embeddings of the patches with their positions, [N, P, W].
    fn embedded(&self, forward: &Forward, images: &Patches) -> Result<Var> {
        let weight = forward.get(self.patch_weight);
        let (width, values) = (weight.shape()[0], images.values.value().width());
        // The frames of an image are the same, so their weights can be added: half the work, and the same sum.
        let weight = weight.reshape(&[width, 3, self.frames, values / 3]);
        let weight = forward.apply(Reduce::Sum(2), &[&weight])?.reshape(&[width, values]);
        let op = linear::Linear { bias: true, activation: Activation::Identity };
        let x = forward.apply(op, &[&images.values, &weight, forward.get(self.patch_bias)])?;
        let [n, p] = [0, 1].map(|axis| images.rows.shape()[axis]);
        let around = forward.embedding(self.positions, &images.rows)?;
        let weights = images.weights.reshape(&[n, p, 4, 1]);
        let around = forward.apply(Binary::Multiply, &[&around, &weights])?;
        let positions = forward.apply(Reduce::Sum(2), &[&around])?.reshape(&[n, p, width]);
        forward.apply(Binary::Add, &[&x, &positions])
    }
}

#[derive(Clone, Debug)]
struct Block {
    norms: [LayerNorm; 2],
    qkv: Linear,
    output: Linear,
    hidden: Linear,
    down: Linear,
    heads: usize,
}

impl Block {
    fn new(b: &mut Builder, config: &VisionConfig) -> Self {
        let (width, inner) = (config.hidden_size, config.intermediate_size);
        let init = Init::Normal(config.initializer_range);
        let linear = |b: &mut Builder, name: &str, inputs: usize, outputs: usize| {
            Linear::with_init(b, name, inputs, outputs, init, Init::Constant(0.0))
        };
        let norms = ["norm1", "norm2"].map(|name| LayerNorm::new(b, name, width, EPSILON));
        let (qkv, output) = b.scope("attn", |b| {
            (linear(b, "qkv", width, 3 * width), linear(b, "proj", width, width))
        });
        let (hidden, down) = b.scope("mlp", |b| {
            (linear(b, "linear_fc1", width, inner), linear(b, "linear_fc2", inner, width))
        });
        let hidden = hidden.then(Activation::GeluTanh);
        Self { norms, qkv, output, hidden, down, heads: config.num_heads }
    }

    /// Maps x [N, P, W] to the same shape, with attention within each image.
    fn forward(&self, forward: &Forward, [x, angles, counts]: [&Var; 3]) -> Result<Var> {
        let attended = self.attended(forward, [x, angles, counts])?;
        let x = forward.apply(Binary::Add, &[x, &attended])?;
        let normalized = self.norms[1].forward(forward, &x)?;
        let hidden = self.hidden.forward(forward, &normalized)?;
        forward.apply(Binary::Add, &[&x, &self.down.forward(forward, &hidden)?])
    }

    fn attended(&self, forward: &Forward, [x, angles, counts]: [&Var; 3]) -> Result<Var> {
        let width = x.value().width();
        let qkv = self.qkv.forward(forward, &self.norms[0].forward(forward, x)?)?;
        let part = |of: &Var, start: usize, length: usize| {
            forward.apply(Narrow { axis: 2, start, length }, &[of])
        };
        let rotation = Rotary { heads: 2 * self.heads, norm: None };
        let rotated = forward.apply(rotation, &[&part(&qkv, 0, 2 * width)?, angles])?;
        let (q, k) = (part(&rotated, 0, width)?, part(&rotated, width, width)?);
        let v = part(&qkv, 2 * width, width)?;
        let mask = Mask { causal: false, padding: true };
        let op = Attention { mask, ..Attention::new(self.heads, Layout::Separate) };
        self.output.forward(forward, &forward.apply(op, &[&q, &k, &v, counts])?)
    }
}

/// Makes one token of the patches of a square.
#[derive(Clone, Debug)]
struct Merger {
    norm: LayerNorm,
    hidden: Linear,
    output: Linear,
    /// Whether the features of a square are normalized together, and not those of each patch.
    together: bool,
    /// Features of the patches of a square.
    square: usize,
}

impl Merger {
    fn new(b: &mut Builder, config: &VisionConfig, together: bool) -> Self {
        let square = config.hidden_size * config.spatial_merge_size * config.spatial_merge_size;
        let init = Init::Normal(config.initializer_range);
        // LoRA does not adapt these layers.
        let linear = |b: &mut Builder, name: &str, outputs: usize| {
            Linear::with_init(b, name, square, outputs, init, Init::Constant(0.0))
        };
        let normalized = if together { square } else { config.hidden_size };
        Self {
            norm: LayerNorm::new(b, "norm", normalized, EPSILON),
            hidden: linear(b, "linear_fc1", square).then(Activation::Gelu),
            output: linear(b, "linear_fc2", config.out_hidden_size),
            together,
            square,
        }
    }

    /// Maps x [N, P, W] to [N·P/merge², H].
    fn forward(&self, forward: &Forward, x: &Var) -> Result<Var> {
        let squares = [x.value().len() / self.square, self.square];
        let x = match self.together {
            true => self.norm.forward(forward, &x.reshape(&squares))?,
            false => self.norm.forward(forward, x)?.reshape(&squares),
        };
        self.output.forward(forward, &self.hidden.forward(forward, &x)?)
    }
}
