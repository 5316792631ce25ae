//! The encoders of BERT (Devlin et al. 2019) and RoBERTa (Liu et al. 2019): token, position and segment embeddings,
//! then Transformer layers with the normalisation after each residual connection.
//!
//! Parameters have the names that transformers gives them, below the prefix `bert.` or `roberta.`.

use learn::forward::Forward;
use learn::nn::{LayerNorm, Linear};
use learn::params::{Builder, Init, ParamId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tensor::Var;
use tensor::ops::activation::Activation;
use tensor::ops::attention::{Attention, Layout, Mask};
use tensor::ops::binary::Binary;
use tensor::ops::embedding::Embedding;
use unix::Result;
use unix::config::Violations;

/// Standard deviation of initial weights (`initializer_range` of both papers' models).
const DEVIATION: f64 = 0.02;

/// The architecture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Positions are counted from 0.
    #[default]
    Bert,
    /// Positions are counted from the id of the padding token plus 1.
    Roberta,
}

/// The shape of an encoder, with the names and defaults of transformers' config.json.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct EncoderConfig {
    /// Architecture.
    pub model_type: Kind,
    /// Features of a token.
    pub hidden_size: usize,
    /// Number of layers.
    pub num_hidden_layers: usize,
    /// Attention heads; divides the features.
    pub num_attention_heads: usize,
    /// Features of the hidden layer of each feed-forward network.
    pub intermediate_size: usize,
    /// Number of positions: the longest sequence, and for RoBERTa two more.
    pub max_position_embeddings: usize,
    /// Number of segments.
    pub type_vocab_size: usize,
    /// ε of the normalisations.
    pub layer_norm_eps: f64,
    /// Dropout after the embeddings and after attention and feed-forward network of each layer.
    pub hidden_dropout_prob: f64,
    /// Dropout of the attention probabilities.
    pub attention_probs_dropout_prob: f64,
    /// Freeze the embeddings and this many layers from the first on. 0: nothing is frozen.
    pub freeze_layers: usize,
}

impl Default for EncoderConfig {
    /// bert-base.
    fn default() -> Self {
        Self {
            model_type: Kind::Bert,
            hidden_size: 768,
            num_hidden_layers: 12,
            num_attention_heads: 12,
            intermediate_size: 3072,
            max_position_embeddings: 512,
            type_vocab_size: 2,
            layer_norm_eps: 1e-12,
            hidden_dropout_prob: 0.1,
            attention_probs_dropout_prob: 0.1,
            freeze_layers: 0,
        }
    }
}

impl EncoderConfig {
    /// What the schema does not express.
    pub fn violations(&self) -> Violations {
        let mut violations = Violations::new();
        let mut say = |key: &str, text: String| violations.push((key.into(), text));
        let sizes = [
            ("hidden_size", self.hidden_size),
            ("num_attention_heads", self.num_attention_heads),
            ("intermediate_size", self.intermediate_size),
            ("max_position_embeddings", self.max_position_embeddings),
            ("type_vocab_size", self.type_vocab_size),
        ];
        for (key, size) in sizes {
            if size == 0 {
                say(key, "must be at least 1".into());
            }
        }
        if self.num_attention_heads > 0
            && !self.hidden_size.is_multiple_of(self.num_attention_heads)
        {
            let text = format!("must divide hidden_size, {}", self.hidden_size);
            say("num_attention_heads", text);
        }
        if self.freeze_layers > self.num_hidden_layers {
            let text = format!("must be at most num_hidden_layers, {}", self.num_hidden_layers);
            say("freeze_layers", text);
        }
        let probabilities = [
            ("hidden_dropout_prob", self.hidden_dropout_prob),
            ("attention_probs_dropout_prob", self.attention_probs_dropout_prob),
        ];
        for (key, probability) in probabilities {
            if !(0.0..1.0).contains(&probability) {
                say(key, "must be at least 0 and less than 1".into());
            }
        }
        if self.layer_norm_eps.is_nan() || self.layer_norm_eps <= 0.0 {
            say("layer_norm_eps", "must be a positive number".into());
        }
        violations
    }

    /// The prefix of its parameters.
    pub fn prefix(&self) -> &'static str {
        match self.model_type {
            Kind::Bert => "bert",
            Kind::Roberta => "roberta",
        }
    }

    /// Name patterns of its frozen parameters.
    fn frozen(&self) -> Vec<String> {
        let prefix = self.prefix();
        let embeddings = (self.freeze_layers > 0).then(|| format!("{prefix}.embeddings.*"));
        let layers = (0..self.freeze_layers).map(|n| format!("{prefix}.encoder.layer.{n}.*"));
        embeddings.into_iter().chain(layers).collect()
    }

    /// The position of the first token, for a vocabulary with this padding token.
    pub fn first_position(&self, padding: usize) -> usize {
        match self.model_type {
            Kind::Bert => 0,
            Kind::Roberta => padding + 1,
        }
    }

    /// The longest sequence, for a vocabulary with this padding token.
    pub fn longest(&self, padding: usize) -> usize {
        self.max_position_embeddings.saturating_sub(self.first_position(padding))
    }
}

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
    /// Tables of tokens, positions and segments.
    tables: [ParamId; 3],
    norm: LayerNorm,
    layers: Vec<Layer>,
    dropout: f64,
}

#[derive(Clone, Debug)]
struct Layer {
    /// Queries, keys and values.
    qkv: [Linear; 3],
    mixed: Linear,
    attention_norm: LayerNorm,
    wide: Linear,
    narrow: Linear,
    norm: LayerNorm,
    heads: usize,
    dropout: [f64; 2],
}

/// A linear layer initialised as BERT's.
fn linear(b: &mut Builder, name: &str, inputs: usize, outputs: usize) -> Linear {
    Linear::with_init(b, name, inputs, outputs, Init::Normal(DEVIATION), Init::Constant(0.0))
}

impl Encoder {
    /// For a vocabulary of so many tokens. The depth of layer l of L is L - l, counted from 0, that of the embeddings
    /// L + 1.
    pub fn new(b: &mut Builder, config: &EncoderConfig, vocabulary: usize) -> Self {
        let (width, epsilon) = (config.hidden_size, config.layer_norm_eps);
        let layers = config.num_hidden_layers;
        b.freeze(&config.frozen());
        b.scope(config.prefix(), |b| {
            let embeddings = |b: &mut Builder| {
                let tables = [
                    ("word_embeddings", vocabulary),
                    ("position_embeddings", config.max_position_embeddings),
                    ("token_type_embeddings", config.type_vocab_size),
                ];
                let tables = tables.map(|(name, rows)| {
                    let table = |b: &mut Builder| {
                        b.param("weight", &[rows, width], Init::Normal(DEVIATION))
                    };
                    b.scope(name, table)
                });
                (tables, LayerNorm::new(b, "LayerNorm", width, epsilon))
            };
            let (tables, norm) =
                b.at_depth(layers as u32 + 1, |b| b.scope("embeddings", embeddings));
            let layer = |b: &mut Builder, number: usize| {
                let build = |b: &mut Builder| Layer::new(b, config);
                let scope = format!("encoder.layer.{number}");
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
            let found = forward.apply(Embedding, &[forward.get(*table), index])?;
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
    fn new(b: &mut Builder, config: &EncoderConfig) -> Self {
        let (width, epsilon) = (config.hidden_size, config.layer_norm_eps);
        let qkv = ["query", "key", "value"]
            .map(|name| linear(b, &format!("attention.self.{name}"), width, width));
        let wide = config.intermediate_size;
        Self {
            qkv,
            mixed: linear(b, "attention.output.dense", width, width),
            attention_norm: LayerNorm::new(b, "attention.output.LayerNorm", width, epsilon),
            wide: linear(b, "intermediate.dense", width, wide).then(Activation::Gelu),
            narrow: linear(b, "output.dense", wide, width),
            norm: LayerNorm::new(b, "output.LayerNorm", width, epsilon),
            heads: config.num_attention_heads,
            dropout: [config.hidden_dropout_prob, config.attention_probs_dropout_prob],
        }
    }

    fn forward(&self, forward: &Forward, x: &Var, lengths: &Var) -> Result<Var> {
        let [of_hidden, of_attention] = self.dropout;
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
        let mixed = forward.dropout(&self.mixed.forward(forward, &mixed)?, of_hidden)?;
        let x = self.attention_norm.forward(forward, &forward.apply(Binary::Add, &[x, &mixed])?)?;
        let fed = self.narrow.forward(forward, &self.wide.forward(forward, &x)?)?;
        let fed = forward.dropout(&fed, of_hidden)?;
        self.norm.forward(forward, &forward.apply(Binary::Add, &[&x, &fed])?)
    }
}
