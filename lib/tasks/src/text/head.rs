//! Pooling of the states of tokens, and the classification head.

use super::batch::States;
use super::embed::TokenPooling;
use super::encoder::{Architecture, EncoderConfig};
use data::text::TokenInfo;
use learn::adapt::Lora;
use learn::forward::Forward;
use learn::nn::Linear;
use learn::params::{Builder, Init, ParamId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::Path;
use tensor::ops::activation::Activation;
use tensor::ops::attention::{Attention, Layout, Mask};
use tensor::ops::binary::Binary;
use tensor::ops::linear;
use tensor::ops::matmul::MatMul;
use tensor::ops::narrow::Narrow;
use tensor::ops::pool::{Pool, Pooling as Window};
use tensor::{Tensor, Var};
use unix::config::Violations;
use unix::{Error, Result};

/// How the states of the tokens of a text become one vector.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Pooling {
    /// The first token, through a linear layer and tanh (DistilBERT: ReLU), as the reference models do.
    #[default]
    Cls,
    /// The mean over tokens.
    Mean,
    /// The maximum over tokens.
    Max,
    /// A weighted mean over tokens, with weights that are the softmax of a linear function of their states.
    Attention,
}

/// The activation of the hidden layers of a head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum HeadActivation {
    /// x·Φ(x), by the error function.
    #[default]
    Gelu,
    /// max(x, 0).
    Relu,
    /// x·σ(x).
    Silu,
}

/// The classification head.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct HeadConfig {
    /// How the states of tokens become one vector.
    pub pooling: Pooling,
    /// Widths of the hidden layers, each followed by the activation and dropout.
    pub hidden_dims: Vec<usize>,
    /// Activation of the hidden layers.
    pub activation: HeadActivation,
    /// Dropout before each layer.
    pub dropout: f64,
    /// The labels of a pretrained head, in the order of its classes; tokens with other labels are refused. Null: the
    /// labels of the tokens.
    pub labels: Option<Vec<String>>,
    /// Whether a pretrained head is multi-label; tokens that differ in this are refused. Null: as the tokens are.
    pub multi_label: Option<bool>,
}

impl Default for HeadConfig {
    fn default() -> Self {
        let (pooling, activation) = (Pooling::Cls, HeadActivation::Gelu);
        let (hidden_dims, labels, multi_label) = (Vec::new(), None, None);
        Self { pooling, hidden_dims, activation, dropout: 0.1, labels, multi_label }
    }
}

impl HeadConfig {
    /// Checks that the tokens in `folder` have the labels of the pretrained head. Errors: 78.
    pub fn require_labels(&self, info: &TokenInfo, folder: &Path) -> Result<()> {
        let bad = |text: String| Err(Error::config(format!("{}: {text}", folder.display())));
        if let Some(own) = self.multi_label.filter(|own| *own != info.multi_label) {
            let of = |many: bool| if many { "any number of labels" } else { "one label" };
            return bad(format!(
                "texts have {} each, but the head was trained for {} (model.head.multi_label); import the texts with \
                 `multi_label` accordingly, or start without the head",
                of(info.multi_label),
                of(own)
            ));
        }
        let Some(own) = self.labels.as_ref().filter(|own| **own != info.labels) else {
            return Ok(());
        };
        let list = |labels: &[String]| serde_json::json!(labels);
        let sorted = |labels: &[String]| {
            let mut all = labels.to_vec();
            all.sort();
            all
        };
        let remedy = match sorted(own) == sorted(&info.labels) {
            true => format!(
                "add `labels: {}` to columns.yaml and run ds-prep import, split and tokenize again",
                list(own)
            ),
            false if own.len() == info.labels.len() => format!(
                "if both mean the same in this order, set model.head.labels to {}; otherwise import texts whose labels are \
                 those of the head, with `labels: {}` in columns.yaml",
                list(&info.labels),
                list(own)
            ),
            false => "start without the head".into(),
        };
        bad(format!(
            "the labels are {}, but those of the head, in the order of its classes, are {} (model.head.labels); {remedy}",
            list(&info.labels),
            list(own)
        ))
    }

    /// Violations that the schema does not express.
    pub fn violations(&self) -> Violations {
        layer_violations(&self.hidden_dims, self.dropout)
    }
}

/// Violations in the hidden layers and the dropout that the schema does not express.
pub(super) fn layer_violations(hidden_dims: &[usize], dropout: f64) -> Violations {
    let mut violations = Violations::new();
    if hidden_dims.contains(&0) {
        violations.push(("hidden_dims".into(), "must be at least 1 each".into()));
    }
    if !(0.0..1.0).contains(&dropout) {
        violations.push(("dropout".into(), "must be at least 0 and less than 1".into()));
    }
    violations
}

/// Hidden layers of widths `dims`, each followed by the activation; named as in a torch.nn.Sequential of linear,
/// activation and dropout modules.
pub(super) fn hidden_layers(
    b: &mut Builder,
    head: &str,
    mut inputs: usize,
    dims: &[usize],
    activation: HeadActivation,
) -> Vec<Linear> {
    let activation = match activation {
        HeadActivation::Gelu => Activation::Gelu,
        HeadActivation::Relu => Activation::Relu,
        HeadActivation::Silu => Activation::Silu,
    };
    let layer = |(at, size): (usize, &usize)| {
        let name = format!("{head}.hidden_layers.{}", 3 * at);
        let layer = Linear::new(b, &name, inputs, *size).then(activation);
        inputs = *size;
        layer
    };
    dims.iter().enumerate().map(layer).collect()
}

/// One vector for each text, [B, H], from the states of its tokens.
pub(super) fn pool(pooling: TokenPooling, forward: &Forward, texts: &States) -> Result<Var> {
    let States { states, mean: weights, hidden, .. } = texts;
    let [batch, tokens, width] = [0, 1, 2].map(|axis| states.shape()[axis]);
    let pooled = match pooling {
        TokenPooling::Cls => forward.apply(Narrow { axis: 1, start: 0, length: 1 }, &[states])?,
        TokenPooling::Mean => {
            forward.apply(MatMul, &[&forward.to_compute_dtype(weights)?, states])?
        }
        TokenPooling::Max => {
            let hidden = forward.to_compute_dtype(hidden)?;
            let visible = forward.apply(Binary::Add, &[states, &hidden])?;
            let window = [1, 1, tokens];
            let op = Pool { pooling: Window::Max, window, stride: window };
            forward.apply(op, &[&visible.reshape(&[batch, 1, tokens, width])])?
        }
    };
    Ok(pooled.reshape(&[batch, width]))
}

/// Pooling and classification layers. Without hidden layers, the parameters have the names that transformers gives
/// them.
#[derive(Clone, Debug)]
pub struct Head {
    pooling: Pooling,
    /// RoBERTa applies dropout to the first token before its dense layer; BERT and DistilBERT do not.
    dropout_before_first: bool,
    /// The layer of the first token.
    first: Option<Linear>,
    /// The weight that maps token states to pooling scores, and the number of attention heads of the encoder.
    scores: Option<(ParamId, usize)>,
    hidden: Vec<Linear>,
    output: Linear,
    dropout: f64,
}

impl Head {
    /// Builds a head with `outputs` logits. BERT's pooler, which belongs to the pretrained model, may be frozen or
    /// adapted by `lora`.
    pub fn new(
        b: &mut Builder,
        encoder: &EncoderConfig,
        lora: Option<&Lora>,
        config: &HeadConfig,
        outputs: usize,
    ) -> Self {
        let width = encoder.hidden_size;
        let is_roberta =
            matches!(encoder.model_type, Architecture::Roberta | Architecture::XlmRoberta);
        let first = (config.pooling == Pooling::Cls).then(|| {
            let (name, activation) = match encoder.model_type {
                Architecture::Bert => ("bert.pooler.dense", Activation::Tanh),
                Architecture::Roberta | Architecture::XlmRoberta => {
                    ("classifier.dense", Activation::Tanh)
                }
                Architecture::Distilbert => ("pre_classifier", Activation::Relu),
            };
            let is_adapted = |lora: &&Lora| !lora.pooler || !lora.targets_of(name).is_empty();
            let lora = lora.filter(|_| encoder.model_type == Architecture::Bert).filter(is_adapted);
            b.adapted(lora, |b| {
                let (weight, bias) = (Init::Normal(0.02), Init::Constant(0.0));
                Linear::with_init(b, name, width, width, weight, bias).then(activation)
            })
        });
        // A bias would not change the softmax.
        let scores = (config.pooling == Pooling::Attention).then(|| {
            let weight = |b: &mut Builder| b.param("weight", &[1, width], Init::linear(width));
            (b.scope("classifier.attention", weight), encoder.num_attention_heads)
        });
        let dims = &config.hidden_dims;
        let hidden = hidden_layers(b, "classifier", width, dims, config.activation);
        let inputs = dims.last().copied().unwrap_or(width);
        let name = match (hidden.is_empty(), is_roberta) {
            (true, true) => "classifier.out_proj",
            (true, false) => "classifier",
            (false, _) => "classifier.output_layer",
        };
        let output = Linear::new(b, name, inputs, outputs);
        let (pooling, dropout) = (config.pooling, config.dropout);
        Self { pooling, dropout_before_first: is_roberta, first, scores, hidden, output, dropout }
    }

    /// Logits [B, outputs] of texts.
    pub fn forward(&self, forward: &Forward, texts: &States) -> Result<Var> {
        self.output(forward, &self.pool(forward, texts)?)
    }

    /// The vector of each text, [B, H].
    pub fn pool(&self, forward: &Forward, texts: &States) -> Result<Var> {
        let of = |pooling| pool(pooling, forward, texts);
        let mut x = match self.pooling {
            Pooling::Cls => of(TokenPooling::Cls)?,
            Pooling::Mean => of(TokenPooling::Mean)?,
            Pooling::Max => of(TokenPooling::Max)?,
            Pooling::Attention => self.attend(forward, &texts.states, &texts.lengths)?,
        };
        if let Some(first) = &self.first {
            if self.dropout_before_first {
                x = forward.dropout(&x, self.dropout)?;
            }
            x = first.forward(forward, &x)?;
        }
        Ok(x)
    }

    /// Logits [B, outputs] of the vectors of texts.
    pub fn output(&self, forward: &Forward, pooled: &Var) -> Result<Var> {
        let mut x = pooled.clone();
        for layer in &self.hidden {
            x = layer.forward(forward, &forward.dropout(&x, self.dropout)?)?;
        }
        self.output.forward(forward, &forward.dropout(&x, self.dropout)?)
    }

    /// The mean of the states of the tokens of each text, weighted by the softmax of their scores, [B, H].
    ///
    /// It is attention whose query is constant: in every head the first feature of each key is the score, times the
    /// square root of the size of the head, and the others are 0.
    fn attend(&self, forward: &Forward, states: &Var, lengths: &Var) -> Result<Var> {
        let Some((scores, heads)) = &self.scores else {
            return Err(unix::Error::bug("a head without scores of tokens"));
        };
        let [batch, width] = [states.shape()[0], states.shape()[2]];
        let size = width / heads;
        let first_of_head = |value: f32| {
            let one: Vec<f32> =
                (0..width).map(|i| if i % size == 0 { value } else { 0.0 }).collect();
            let all = Tensor::from_slice(&one.repeat(batch), &[batch, 1, width]);
            forward.to_compute_dtype(&forward.constant(&all)?)
        };
        let query = first_of_head(1.0)?;
        let pattern = first_of_head((size as f32).sqrt())?;
        let linear = linear::Linear { bias: false, activation: Activation::Identity };
        let scores = forward.apply(linear, &[states, forward.get(*scores)])?;
        let keys = forward.apply(MatMul, &[&scores, &pattern])?;
        let op = Attention {
            mask: Mask { causal: false, padding: true },
            ..Attention::new(*heads, Layout::Separate)
        };
        let found = forward.apply(op, &[&query, &keys, states, lengths])?;
        Ok(found.reshape(&[batch, width]))
    }
}
