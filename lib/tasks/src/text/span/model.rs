//! The span model: start and end logits for each token.

use super::SpanConfig;
use crate::text::batch::TextEncoder;
use crate::text::encoder::EncoderConfig;
use crate::text::head::{HeadActivation, hidden_layers, layer_violations};
use crate::text::sets::Sets;
use crate::text::task::{DefineText, Objective, Outputs, TextModel};
use data::text::{RecordTokens, TokenInfo, TokenSet, Window};
use learn::adapt::Lora;
use learn::forward::Forward;
use learn::nn::Linear;
use learn::params::Builder;
use learn::score::Direction;
use learn::task::{Batch, Empty, Spec};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::Path;
use tensor::ops::binary::Binary;
use tensor::ops::cross_entropy::CrossEntropy;
use tensor::ops::permute::Permute;
use tensor::{Tensor, Var};
use unix::config::{Violations, within};
use unix::{Error, Result};

/// The model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SpanModel {
    /// Encoder; its vocabulary is that of the tokenizer.
    pub encoder: EncoderConfig,
    /// Layers after the encoder.
    pub head: SpanHeadConfig,
    /// Low-rank adaptation of the encoder, whose own weights are frozen. Null: all weights are trained.
    pub lora: Option<Lora>,
}

/// The span head.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SpanHeadConfig {
    /// Widths of the hidden layers, each followed by the activation and dropout.
    pub hidden_dims: Vec<usize>,
    /// Activation of the hidden layers.
    pub activation: HeadActivation,
    /// Dropout before each layer.
    pub dropout: f64,
    /// Longest answer that is predicted, in tokens.
    pub max_answer: usize,
}

impl Default for SpanHeadConfig {
    fn default() -> Self {
        let (hidden_dims, activation) = (Vec::new(), HeadActivation::Gelu);
        Self { hidden_dims, activation, dropout: 0.1, max_answer: 128 }
    }
}

impl SpanHeadConfig {
    /// Violations that the schema does not express.
    pub fn violations(&self) -> Violations {
        let mut violations = layer_violations(&self.hidden_dims, self.dropout);
        if self.max_answer == 0 {
            violations.push(("max_answer".into(), "must be at least 1".into()));
        }
        violations
    }
}

/// Checks that the tokens in `folder` have answers. Errors: 78.
pub fn require_answers(info: &TokenInfo, folder: &Path) -> Result<()> {
    match info.answers {
        true => Ok(()),
        false => Err(Error::config(format!(
            "{}: records have no answers; name `context` and `answer` in columns.yaml, and run ds-prep import again",
            folder.display()
        ))),
    }
}

/// Dropout and a linear layer with two outputs for each token, possibly after hidden layers. Without hidden layers,
/// its parameter names match those of transformers.
#[derive(Clone, Debug)]
pub struct SpanHead {
    hidden: Vec<Linear>,
    output: Linear,
    dropout: f64,
}

impl SpanHead {
    /// For states of `width` features.
    pub fn new(b: &mut Builder, width: usize, config: &SpanHeadConfig) -> Self {
        let dims = &config.hidden_dims;
        let (name, inputs) = match dims.last() {
            None => ("qa_outputs", width),
            Some(last) => ("qa_outputs.output_layer", *last),
        };
        let hidden = hidden_layers(b, "qa_outputs", width, dims, config.activation);
        Self { hidden, output: Linear::new(b, name, inputs, 2), dropout: config.dropout }
    }

    /// States [B, T, H] -> logits of the first and of the last token, [B, T, 2].
    pub fn forward(&self, forward: &Forward, states: &Var) -> Result<Var> {
        let mut x = states.clone();
        for layer in &self.hidden {
            x = layer.forward(forward, &forward.dropout(&x, self.dropout)?)?;
        }
        let logits = self.output.forward(forward, &forward.dropout(&x, self.dropout)?)?;
        forward.to_param_dtype(&logits)
    }
}

/// Adds the positions of the first and the last token of each window's answer to a batch: 0, the first special token,
/// if the window does not contain the whole answer.
pub fn with_answers(batch: Batch, windows: &[(&TokenSet, &Window)]) -> Batch {
    let places = |(set, window): &(&TokenSet, &Window)| {
        let tokens = set.answer_tokens(window.record);
        let found = tokens.map(|tokens| tokens.map(|token| window.place(token)));
        match found {
            Some([Some(start), Some(end)]) => [start as i32, end as i32],
            _ => [0, 0],
        }
    };
    let places: Vec<i32> = windows.iter().flat_map(places).collect();
    let halves = vec![0.5_f32; places.len()];
    batch
        .with("places", Tensor::from_slice(&places, &[places.len()]))
        .with("halves", Tensor::from_slice(&halves, &[halves.len()]))
}

/// The sum over windows of the mean of the start and end cross entropies, with padding masked.
pub fn span_loss(forward: &Forward, batch: &Batch, logits: &Var) -> Result<Var> {
    let [windows, tokens] = [0, 1].map(|axis| logits.shape()[axis]);
    let visible = forward.apply(Binary::Add, &[logits, &batch.input(forward, "hidden")?])?;
    let rows = forward.apply(Permute(vec![0, 2, 1]), &[&visible])?;
    let rows = rows.reshape(&[2 * windows, tokens]);
    let [places, halves] = [batch.input(forward, "places")?, batch.input(forward, "halves")?];
    forward.apply(CrossEntropy::default(), &[&rows, &places, &halves])
}

/// Encoder and head.
#[derive(Clone, Debug)]
pub struct SpanFinder {
    encoder: TextEncoder,
    head: SpanHead,
    longest: usize,
}

impl SpanFinder {
    /// Builds the model for the tokenizer described by `info`.
    pub fn new(b: &mut Builder, config: &SpanModel, info: &TokenInfo) -> Self {
        Self {
            encoder: TextEncoder::new(b, &config.encoder, config.lora.as_ref(), info),
            head: SpanHead::new(b, config.encoder.hidden_size, &config.head),
            longest: config.head.max_answer,
        }
    }
}

impl TextModel for SpanFinder {
    fn batch(&self, windows: &[(RecordTokens, &Window)]) -> Batch {
        self.encoder.windows(windows)
    }

    fn text_encoder(&self) -> &TextEncoder {
        &self.encoder
    }

    fn forward(&self, forward: &Forward, batch: &Batch) -> Result<Outputs> {
        let states = self.encoder.forward(forward, batch, "")?.states;
        let logits = self.head.forward(forward, &states)?;
        Ok(Outputs { classes: None, answers: Some(logits) })
    }

    fn has_classes(&self) -> bool {
        false
    }

    fn longest(&self) -> usize {
        self.longest
    }
}

impl DefineText for SpanFinder {
    const SPEC: Spec =
        Spec::new("span", "exact_match", Direction::Maximize, include_str!("span.yaml"));
    type Config = SpanModel;
    type Loss = Empty;

    fn encoder(config: &SpanModel) -> (&EncoderConfig, Option<&Lora>) {
        (&config.encoder, config.lora.as_ref())
    }

    fn violations(model: &SpanModel, _: &Empty) -> Violations {
        within("model.head", model.head.violations()).collect()
    }

    fn require_fit(info: &TokenInfo, folder: &Path) -> Result<()> {
        require_answers(info, folder)
    }

    fn new(b: &mut Builder, config: &SpanModel, info: &TokenInfo) -> Self {
        Self::new(b, config, info)
    }

    fn objective(_: &SpanConfig, _: &Sets, _: usize) -> Result<Objective> {
        Ok(Objective::Answers)
    }
}
