//! The network: embeddings of the tokens of a text and of a latent, blocks of an MMDiT, and a head for each.

use super::block::{JointBlock, MODALITIES};
use super::config::CycleVaeModel;
use super::time::TimeLayers;
use learn::forward::Forward;
use learn::nn::{HyperConnection, LayerNorm, Linear};
use learn::params::{Builder, Init, ParamId};
use learn::task::Batch;
use tensor::ops::activation::Activation;
use tensor::ops::binary::Binary;
use tensor::ops::embedding::Embedding;
use tensor::ops::linear;
use tensor::ops::narrow::Narrow;
use tensor::ops::normalization::{NormKind, Normalization};
use tensor::{Tensor, Var};
use unix::Result;

/// ε of the layer normalisation of latents.
const EPSILON: f64 = 1e-5;
/// ε of the final normalisations, which only keeps tokens of zeros finite.
const FINAL_EPSILON: f64 = 1e-12;
/// Standard deviation of initial positions and of the last weights of both heads.
const DEVIATION: f64 = 0.02;
/// Added to the logits of tokens that no text contains.
const HIDDEN: f32 = -1e9;

/// The sizes that the data determine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Number of token ids.
    pub vocabulary: usize,
    /// The token that replaces masked ones.
    pub mask: i32,
    /// Tokens of a text, with its padding.
    pub length: usize,
    /// Dimension of a vector.
    pub vector: usize,
}

/// The network.
#[derive(Clone, Debug)]
pub struct Network {
    sizes: Sizes,
    latent_tokens: usize,
    dropout: f64,
    table: ParamId,
    /// Positions of text and latent tokens.
    positions: [ParamId; 2],
    latent_in: (Linear, LayerNorm, Linear),
    times: TimeLayers,
    pooled: Option<Linear>,
    /// Number of residual streams, if there are several.
    streams: Option<usize>,
    blocks: Vec<JointBlock>,
    norms: [ParamId; 2],
    /// The table of the text head, unless it is tied, and its bias.
    text_head: (Option<ParamId>, ParamId),
    latent_head: [Linear; 2],
}

/// The inputs of the network for B samples. Text and latent have a time each, from 0 (clean) to 1 (masked, or noise).
#[derive(Clone, Debug)]
pub struct Inputs {
    /// Token ids, i32 [B, S].
    pub ids: Var,
    /// Noisy latents, [B, k, D/k].
    pub latents: Var,
    /// Features of both times, [B, 4·frequencies] ([`Network::add_times`]).
    pub times: Var,
    /// 1 - t of the latents, [B, 1].
    pub clean: Var,
}

impl Inputs {
    /// Takes the inputs from a batch made by [`Network::add_inputs`].
    pub fn of(forward: &Forward, batch: &Batch, prefix: &str) -> Result<Self> {
        let input = |name: &str| batch.input(forward, &format!("{prefix}{name}"));
        let [ids, latents, times, clean] = ["ids", "latents", "times", "clean"].map(input);
        Ok(Self { ids: ids?, latents: latents?, times: times?, clean: clean? })
    }
}

impl Network {
    /// Registers the parameters. A vector whose dimension `model.latent_tokens` does not divide is refused by
    /// [`Builder::check`], as are texts with more tokens than `model.max_length`.
    pub fn new(b: &mut Builder, config: &CycleVaeModel, sizes: Sizes) -> Self {
        let (hidden, condition) = (config.hidden, config.condition());
        if !sizes.vector.is_multiple_of(config.latent_tokens) {
            let (tokens, vector) = (config.latent_tokens, sizes.vector);
            b.refuse(format!(
                "model.latent_tokens: {tokens} does not divide the dimension {vector}"
            ));
        }
        let rows_of_text = config.max_length.unwrap_or(sizes.length);
        if rows_of_text < sizes.length {
            let length = sizes.length;
            b.refuse(format!(
                "model.max_length: {rows_of_text} is less than the {length} tokens of a text"
            ));
        }
        let part = sizes.vector / config.latent_tokens;
        let positions = |b: &mut Builder, tokens: usize| {
            b.param("positions", &[tokens, hidden], Init::Normal(DEVIATION))
        };
        let [text, latent] = MODALITIES;
        let deviation = 1.0 / (hidden as f64).sqrt();
        let rows = [sizes.vocabulary, hidden];
        let (table, of_text) = b.scope(text, |b| {
            // Without an embedding of the mask, masked tokens differ by their positions from the first update on.
            let init = Init::Embedding(deviation, sizes.mask as usize);
            let table = b.scope("table", |b| b.param("weight", &rows, init));
            (table, positions(b, rows_of_text))
        });
        let (latent_in, of_latent) = b.scope(latent, |b| {
            let first = Linear::new(b, "in", part, 2 * hidden);
            let norm = LayerNorm::new(b, "in_norm", 2 * hidden, EPSILON);
            let second = Linear::new(b, "in_out", 2 * hidden, hidden);
            ((first, norm, second), positions(b, config.latent_tokens))
        });
        let times = TimeLayers::new(b, config);
        let pooled = config.pooled_latent.then(|| {
            let init = Init::linear(sizes.vector);
            Linear::without_bias(b, "pooled", sizes.vector, condition, init).then(Activation::Silu)
        });
        let block = |number: usize, b: &mut Builder| {
            b.scope(format!("blocks.{number}"), |b| JointBlock::new(b, config, number))
        };
        Self {
            sizes,
            latent_tokens: config.latent_tokens,
            dropout: config.dropout,
            table,
            positions: [of_text, of_latent],
            latent_in,
            times,
            pooled,
            streams: config.hyper_connections.map(|own| own.streams),
            blocks: (0..config.depth).map(|number| block(number, b)).collect(),
            norms: MODALITIES.map(|name| {
                b.scope(format!("norm.{name}"), |b| {
                    b.param("weight", &[hidden], Init::Constant(1.0))
                })
            }),
            text_head: b.scope("text_head", |b| {
                let init = Init::Normal(DEVIATION);
                let own = (!config.tied).then(|| b.param("weight", &rows, init));
                (own, b.param("bias", &rows[..1], Init::Constant(0.0)))
            }),
            latent_head: b.scope("latent_head", |b| {
                let (normal, zero) = (Init::Normal(DEVIATION), Init::Constant(0.0));
                let first = Linear::new(b, "in", hidden, 2 * hidden).then(Activation::Gelu);
                [first, Linear::with_init(b, "out", 2 * hidden, part, normal, zero)]
            }),
        }
    }

    /// The sizes that the data determine.
    pub fn sizes(&self) -> Sizes {
        self.sizes
    }

    /// Adds the inputs of samples to a batch, as tensors whose names begin with `prefix`: token ids [B, S], noisy
    /// vectors [B, D], and the times of text and vector.
    pub fn add_inputs(
        &self,
        batch: Batch,
        prefix: &str,
        ids: &[i32],
        vectors: &[f32],
        times: &[[f64; 2]],
    ) -> Batch {
        let batch = self.add_texts(batch, prefix, ids);
        let batch = batch.with(format!("{prefix}latents"), self.latent_tensor(vectors));
        self.add_times(batch, prefix, times)
    }

    /// Adds token ids [B, S] to a batch.
    pub fn add_texts(&self, batch: Batch, prefix: &str, ids: &[i32]) -> Batch {
        let shape = [ids.len() / self.sizes.length, self.sizes.length];
        batch.with(format!("{prefix}ids"), Tensor::from_slice(ids, &shape))
    }

    /// Returns vectors [B, D] as latents [B, k, D/k].
    pub fn latent_tensor(&self, vectors: &[f32]) -> Tensor {
        let (k, width) = (self.latent_tokens, self.sizes.vector);
        Tensor::from_slice(vectors, &[vectors.len() / width, k, width / k])
    }

    /// Adds the features of the times of text and vector to a batch.
    pub fn add_times(&self, batch: Batch, prefix: &str, times: &[[f64; 2]]) -> Batch {
        let features: Vec<f32> =
            times.iter().flat_map(|own| self.times.features_of(*own)).collect();
        let clean: Vec<f32> = times.iter().map(|[_, latent]| (1.0 - latent) as f32).collect();
        let rows = times.len();
        batch
            .with(
                format!("{prefix}times"),
                Tensor::from_slice(&features, &[rows, self.times.features()]),
            )
            .with(format!("{prefix}clean"), Tensor::from_slice(&clean, &[rows, 1]))
    }

    /// Returns the last states of the tokens of texts, [B, S, H], and of latents, [B, k, H].
    pub fn forward(&self, forward: &Forward, inputs: &Inputs) -> Result<[Var; 2]> {
        let length = self.sizes.length;
        let text = forward.apply(Embedding, &[forward.get(self.table), &inputs.ids])?;
        let latents = forward.to_compute_dtype(&inputs.latents)?;
        let (first, norm, second) = &self.latent_in;
        let latent = norm.forward(forward, &first.forward(forward, &latents)?)?;
        let latent = second.forward(forward, &forward.apply(Activation::Gelu, &[&latent])?)?;
        let [of_text, of_latent] = self.positions.map(|id| forward.get(id));
        let of_text = match of_text.shape()[0] > length {
            true => forward.apply(Narrow { axis: 0, start: 0, length }, &[of_text])?,
            false => of_text.clone(),
        };
        let text = forward.apply(Binary::Add, &[&text, &of_text])?;
        let latent = forward.apply(Binary::Add, &[&latent, of_latent])?;
        let condition = self.condition(forward, inputs)?;
        let mut tokens = [text, latent];
        if let Some(streams) = self.streams {
            for x in &mut tokens {
                *x = HyperConnection::expand(forward, x, streams)?;
            }
        }
        for block in &self.blocks {
            tokens = block.forward(forward, tokens, &condition)?;
        }
        if self.streams.is_some() {
            for x in &mut tokens {
                *x = HyperConnection::reduce(forward, x)?;
            }
        }
        let [text, latent] = tokens;
        let norm = |x: &Var, weight| {
            let op = Normalization { kind: NormKind::Rms, epsilon: FINAL_EPSILON };
            forward.apply(op, &[x, forward.get(weight)])
        };
        Ok([norm(&text, self.norms[0])?, norm(&latent, self.norms[1])?])
    }

    /// The condition of all blocks, [B, C], after its activation.
    fn condition(&self, forward: &Forward, inputs: &Inputs) -> Result<Var> {
        let times = forward.to_compute_dtype(&inputs.times)?;
        let mut condition = self.times.forward(forward, &times)?;
        if let Some(pooled) = &self.pooled {
            let samples = inputs.latents.shape()[0];
            let flat = inputs.latents.reshape(&[samples, self.sizes.vector]);
            let pooled = pooled.forward(forward, &forward.to_compute_dtype(&flat)?)?;
            let clean = forward.to_compute_dtype(&inputs.clean)?;
            let pooled = forward.apply(Binary::Multiply, &[&pooled, &clean])?;
            condition = forward.apply(Binary::Add, &[&condition, &pooled])?;
        }
        forward.apply(Activation::Silu, &[&condition])
    }

    /// Returns the logits of all tokens of texts, [B·S, V], given their last states. That of the mask is -10⁹. In 16
    /// bits they stay so: the cross entropy reads them as they are, and a copy in f32 would be the largest tensor.
    pub fn logits(&self, forward: &Forward, text: &Var) -> Result<Var> {
        let (own, bias) = self.text_head;
        let mut hidden = vec![0.0f32; self.sizes.vocabulary];
        hidden.iter_mut().skip(self.sizes.mask as usize).take(1).for_each(|x| *x = HIDDEN);
        let hidden = forward.constant(&Tensor::from_slice(&hidden, &[hidden.len()]))?;
        let bias = forward.apply(Binary::Add, &[forward.get_stored(bias), &hidden])?;
        let bias = forward.to_compute_dtype(&bias)?;
        let op = linear::Linear { bias: true, activation: Activation::Identity };
        let rows = text.shape()[0] * text.shape()[1];
        let text = text.reshape(&[rows, text.shape()[2]]);
        forward.apply(op, &[&text, forward.get(own.unwrap_or(self.table)), &bias])
    }

    /// Returns the predictions for latents, [B, D], in the dtype of the parameters, given their last states.
    pub fn latents(&self, forward: &Forward, latent: &Var) -> Result<Var> {
        let [first, second] = &self.latent_head;
        let x = forward.dropout(&first.forward(forward, latent)?, self.dropout)?;
        let found = second.forward(forward, &x)?.reshape(&[latent.shape()[0], self.sizes.vector]);
        forward.to_param_dtype(&found)
    }
}
