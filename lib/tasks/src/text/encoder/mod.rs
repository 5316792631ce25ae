//! The encoders of BERT (Devlin et al. 2019), RoBERTa (Liu et al. 2019), XLM-R (Conneau et al. 2020) and DistilBERT
//! (Sanh et al. 2019): token, position and segment embeddings, then Transformer layers with the normalisation after
//! each residual connection.
//!
//! Parameters have the names that transformers gives them, below the prefix `bert.`, `roberta.` or `distilbert.`.

mod config;

pub use config::{Architecture, EncoderConfig};

use learn::forward::Forward;
use learn::nn::{LayerNorm, Linear};
use learn::params::{Builder, Init, ParamId};
use tensor::Var;
use tensor::ops::activation::Activation;
use tensor::ops::attention::{Attention, Layout, Mask};
use tensor::ops::binary::Binary;
use unix::Result;

/// Standard deviation of initial weights (`initializer_range` of all these models).
const DEVIATION: f64 = 0.02;

/// The token inputs of an encoder.
pub struct Tokens {
    /// Token ids, i32 [B, T]; those from the length of a sequence on are padding.
    pub ids: Var,
    /// Segments, i32 [B, T].
    pub types: Var,
    /// Positions, i32 [B, T].
    pub positions: Var,
    /// Length of each sequence, i32 [B].
    pub lengths: Var,
}

/// An encoder.
#[derive(Clone, Debug)]
pub struct Encoder {
    /// Tables of tokens and positions, and of segments if there are any.
    tables: Vec<ParamId>,
    norm: LayerNorm,
    layers: Vec<Layer>,
    dropout: f64,
}

#[derive(Clone, Debug)]
struct Layer {
    /// Queries, keys and values.
    qkv: [Linear; 3],
    attention_output: Linear,
    attention_norm: LayerNorm,
    fc1: Linear,
    fc2: Linear,
    norm: LayerNorm,
    heads: usize,
    /// Dropout after attention, after the feed-forward network, and of the attention probabilities.
    dropout: [f64; 3],
}

/// The names of the parts of a layer, in order of computation.
struct Names {
    layers: &'static str,
    qkv: [&'static str; 3],
    attention_output: &'static str,
    attention_norm: &'static str,
    fc1: &'static str,
    fc2: &'static str,
    norm: &'static str,
}

const OF_BERT: Names = Names {
    layers: "encoder.layer",
    qkv: ["attention.self.query", "attention.self.key", "attention.self.value"],
    attention_output: "attention.output.dense",
    attention_norm: "attention.output.LayerNorm",
    fc1: "intermediate.dense",
    fc2: "output.dense",
    norm: "output.LayerNorm",
};

const OF_DISTILBERT: Names = Names {
    layers: "transformer.layer",
    qkv: ["attention.q_lin", "attention.k_lin", "attention.v_lin"],
    attention_output: "attention.out_lin",
    attention_norm: "sa_layer_norm",
    fc1: "ffn.lin1",
    fc2: "ffn.lin2",
    norm: "output_layer_norm",
};

/// A linear layer initialised like BERT's.
fn linear(b: &mut Builder, name: &str, inputs: usize, outputs: usize) -> Linear {
    Linear::with_init(b, name, inputs, outputs, Init::Normal(DEVIATION), Init::Constant(0.0))
}

impl Encoder {
    /// Builds the encoder for a vocabulary of `vocabulary` tokens. For layer-wise learning-rate decay, layer l of L,
    /// counted from 0, has depth L - l and the embeddings have depth L + 1.
    pub fn new(b: &mut Builder, config: &EncoderConfig, vocabulary: usize) -> Self {
        let (width, epsilon) = (config.hidden_size, config.layer_norm_eps);
        let layers = config.num_hidden_layers;
        let names = match config.model_type {
            Architecture::Distilbert => OF_DISTILBERT,
            Architecture::Bert | Architecture::Roberta | Architecture::XlmRoberta => OF_BERT,
        };
        b.freeze(&config.frozen(names.layers));
        b.scope(config.prefix(), |b| {
            let embeddings = |b: &mut Builder| {
                let tables = [
                    ("word_embeddings", config.vocab_size.unwrap_or(vocabulary)),
                    ("position_embeddings", config.max_position_embeddings),
                    ("token_type_embeddings", config.type_vocab_size),
                ];
                let used = if config.has_segments() { 3 } else { 2 };
                let tables = tables[..used].iter().map(|(name, rows)| {
                    let init = Init::Normal(DEVIATION);
                    b.scope(name, |b| b.param("weight", &[*rows, width], init))
                });
                (tables.collect(), LayerNorm::new(b, "LayerNorm", width, epsilon))
            };
            let (tables, norm) =
                b.at_depth(layers as u32 + 1, |b| b.scope("embeddings", embeddings));
            let layer = |b: &mut Builder, number: usize| {
                let build = |b: &mut Builder| Layer::new(b, config, &names);
                let scope = format!("{}.{number}", names.layers);
                b.at_depth((layers - number) as u32, |b| b.scope(scope, build))
            };
            Self {
                tables,
                norm,
                layers: (0..layers).map(|number| layer(b, number)).collect(),
                dropout: config.hidden_dropout_prob,
            }
        })
    }

    /// The last hidden states, [B, T, H]; those of padding have no meaning.
    pub fn forward(&self, forward: &Forward, tokens: &Tokens) -> Result<Var> {
        let inputs = [&tokens.ids, &tokens.positions, &tokens.types];
        let mut sum: Option<Var> = None;
        for (table, index) in self.tables.iter().zip(inputs) {
            let found = forward.embedding(*table, index)?;
            sum = Some(match sum {
                Some(sum) => forward.apply(Binary::Add, &[&sum, &found])?,
                None => found,
            });
        }
        let sum = sum.ok_or_else(|| unix::Error::bug("an encoder without embeddings"))?;
        let mut x = forward.dropout(&self.norm.forward(forward, &sum)?, self.dropout)?;
        for layer in &self.layers {
            let body = layer.clone();
            x = forward.block(&[&x, &tokens.lengths], move |forward, inputs| {
                body.forward(forward, &inputs[0], &inputs[1])
            })?;
        }
        Ok(x)
    }
}

impl Layer {
    fn new(b: &mut Builder, config: &EncoderConfig, names: &Names) -> Self {
        let (width, epsilon) = (config.hidden_size, config.layer_norm_eps);
        let (wide, hidden) = (config.intermediate_size, config.hidden_dropout_prob);
        // DistilBERT has no dropout between attention and the residual connection.
        let mixed = if config.model_type == Architecture::Distilbert { 0.0 } else { hidden };
        Self {
            qkv: names.qkv.map(|name| linear(b, name, width, width)),
            attention_output: linear(b, names.attention_output, width, width),
            attention_norm: LayerNorm::new(b, names.attention_norm, width, epsilon),
            fc1: linear(b, names.fc1, width, wide).then(Activation::Gelu),
            fc2: linear(b, names.fc2, wide, width),
            norm: LayerNorm::new(b, names.norm, width, epsilon),
            heads: config.num_attention_heads,
            dropout: [mixed, hidden, config.attention_probs_dropout_prob],
        }
    }

    fn forward(&self, forward: &Forward, x: &Var, lengths: &Var) -> Result<Var> {
        let [after_attention, after_mlp, of_attention] = self.dropout;
        let [q, k, v] = self.qkv.each_ref().map(|linear| linear.forward(forward, x));
        let dropped = forward.next_dropout(of_attention, x.shape()[0]);
        let op = Attention {
            mask: Mask { causal: false, padding: true },
            dropout: dropped.as_ref().map(|(dropout, _)| *dropout),
            ..Attention::new(self.heads, Layout::Separate)
        };
        let (q, k, v) = (q?, k?, v?);
        let mixed = match &dropped {
            Some((_, counter)) => forward.apply(op, &[&q, &k, &v, lengths, counter])?,
            None => forward.apply(op, &[&q, &k, &v, lengths])?,
        };
        let mixed =
            forward.dropout(&self.attention_output.forward(forward, &mixed)?, after_attention)?;
        let x = self.attention_norm.forward(forward, &forward.apply(Binary::Add, &[x, &mixed])?)?;
        let fed = self.fc2.forward(forward, &self.fc1.forward(forward, &x)?)?;
        let fed = forward.dropout(&fed, after_mlp)?;
        self.norm.forward(forward, &forward.apply(Binary::Add, &[&x, &fed])?)
    }
}
