//! Pooling of the states of tokens, and the classification head.

use super::encoder::{EncoderConfig, Kind};
use learn::forward::Forward;
use learn::nn::Linear;
use learn::params::{Builder, Init};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tensor::Var;
use tensor::ops::activation::Activation;
use tensor::ops::binary::Binary;
use tensor::ops::matmul::MatMul;
use tensor::ops::narrow::Narrow;
use tensor::ops::pool::{Pool, Pooling as Window};
use unix::Result;
use unix::config::Violations;

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
    /// Features of hidden layers, each followed by the activation and dropout.
    pub hidden_dims: Vec<usize>,
    /// Activation of the hidden layers.
    pub activation: HeadActivation,
    /// Dropout before each layer.
    pub dropout: f64,
}

impl Default for HeadConfig {
    fn default() -> Self {
        let (pooling, activation) = (Pooling::Cls, HeadActivation::Gelu);
        Self { pooling, hidden_dims: Vec::new(), activation, dropout: 0.1 }
    }
}

impl HeadConfig {
    /// What the schema does not express.
    pub fn violations(&self) -> Violations {
        let mut violations = Violations::new();
        if self.hidden_dims.contains(&0) {
            violations.push(("hidden_dims".into(), "must be at least 1 each".into()));
        }
        if !(0.0..1.0).contains(&self.dropout) {
            violations.push(("dropout".into(), "must be at least 0 and less than 1".into()));
        }
        violations
    }
}

/// Pooling and layers. Their names are those of transformers for heads without hidden layers.
#[derive(Clone, Debug)]
pub struct Head {
    pooling: Pooling,
    /// RoBERTa drops features of the first token before its layer; BERT and DistilBERT do not.
    drops_first: bool,
    /// The layer of the first token.
    first: Option<Linear>,
    hidden: Vec<Linear>,
    output: Linear,
    dropout: f64,
}

impl Head {
    /// For so many outputs.
    pub fn new(
        b: &mut Builder,
        encoder: &EncoderConfig,
        config: &HeadConfig,
        outputs: usize,
    ) -> Self {
        let width = encoder.hidden_size;
        let is_roberta = matches!(encoder.model_type, Kind::Roberta | Kind::XlmRoberta);
        let first = (config.pooling == Pooling::Cls).then(|| {
            let (name, activation) = match encoder.model_type {
                Kind::Bert => ("bert.pooler.dense", Activation::Tanh),
                Kind::Roberta | Kind::XlmRoberta => ("classifier.dense", Activation::Tanh),
                Kind::Distilbert => ("pre_classifier", Activation::Relu),
            };
            let (weight, bias) = (Init::Normal(0.02), Init::Constant(0.0));
            Linear::with_init(b, name, width, width, weight, bias).then(activation)
        });
        let activation = match config.activation {
            HeadActivation::Gelu => Activation::Gelu,
            HeadActivation::Relu => Activation::Relu,
            HeadActivation::Silu => Activation::Silu,
        };
        let mut inputs = width;
        let layer = |(at, size): (usize, &usize)| {
            // As in a torch.nn.Sequential of linear layer, activation and dropout.
            let name = format!("classifier.hidden_layers.{}", 3 * at);
            let layer = Linear::new(b, &name, inputs, *size).then(activation);
            inputs = *size;
            layer
        };
        let hidden: Vec<Linear> = config.hidden_dims.iter().enumerate().map(layer).collect();
        let name = match (hidden.is_empty(), is_roberta) {
            (true, true) => "classifier.out_proj",
            (true, false) => "classifier",
            (false, _) => "classifier.output_layer",
        };
        let output = Linear::new(b, name, inputs, outputs);
        let (pooling, dropout) = (config.pooling, config.dropout);
        Self { pooling, drops_first: is_roberta, first, hidden, output, dropout }
    }

    /// States [B, T, H] -> logits [B, outputs]; `weights` [B, 1, T] are those of a mean over the tokens of each text, zero
    /// at padding, and `hidden` [B, T, 1] is 0 at tokens and a large negative number at padding.
    pub fn forward(
        &self,
        forward: &Forward,
        states: &Var,
        weights: &Var,
        hidden: &Var,
    ) -> Result<Var> {
        let [batch, tokens, width] = [0, 1, 2].map(|axis| states.shape()[axis]);
        let pooled = match self.pooling {
            Pooling::Cls => forward.apply(Narrow { axis: 1, start: 0, length: 1 }, &[states])?,
            Pooling::Mean => {
                forward.apply(MatMul, &[&forward.to_compute_dtype(weights)?, states])?
            }
            Pooling::Max => {
                let hidden = forward.to_compute_dtype(hidden)?;
                let visible = forward.apply(Binary::Add, &[states, &hidden])?;
                let window = [1, 1, tokens];
                let op = Pool { pooling: Window::Max, window, stride: window };
                forward.apply(op, &[&visible.reshape(&[batch, 1, tokens, width])])?
            }
        };
        let mut x = pooled.reshape(&[batch, width]);
        if let Some(first) = &self.first {
            if self.drops_first {
                x = forward.dropout(&x, self.dropout)?;
            }
            x = first.forward(forward, &x)?;
        }
        for layer in &self.hidden {
            x = layer.forward(forward, &forward.dropout(&x, self.dropout)?)?;
        }
        self.output.forward(forward, &forward.dropout(&x, self.dropout)?)
    }
}
