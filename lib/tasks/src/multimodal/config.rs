//! The configuration of task `cycle-vae`.

use super::mode::{Compatibility, ModeOrder, ModeUpdates};
use super::noise::{LatentSchedule, LatentTarget};
use crate::common::sources::{not_negative, one, weight_violations};
use learn::config::Config;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use unix::config::Violations;

/// The training and validation data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CycleVaeData {
    /// Tokens of texts with vectors: a folder written by `ds-prep tokenize`.
    pub tokens: PathBuf,
    /// Sampling weight of these pairs, relative to the weights of the others.
    #[serde(default = "one")]
    pub weight: f64,
    /// Further data with the same tokenizer: pairs, texts without vectors, or vectors without texts.
    #[serde(default)]
    pub additional: Vec<AdditionalTokens>,
    /// Train with the vector of another record in place of each text's own: a control, whose scores show what is reached
    /// without any relation between texts and vectors.
    #[serde(default)]
    pub shuffled: bool,
}

/// Further data of a mixture.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AdditionalTokens {
    /// A folder written by `ds-prep tokenize`, of which the training split is used.
    pub tokens: PathBuf,
    /// Sampling weight, relative to the weights of the others.
    #[serde(default = "one")]
    pub weight: f64,
}

/// The model: an MMDiT (Esser et al. 2024, §4) over the tokens of a text and those of a latent vector.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CycleVaeModel {
    /// Features per token.
    #[schemars(range(min = 1, max = 65536))]
    pub hidden: usize,
    /// Number of blocks.
    #[schemars(range(min = 1, max = 1024))]
    pub depth: usize,
    /// Attention heads.
    #[schemars(range(min = 1, max = 1024))]
    pub heads: usize,
    /// Features per head. Null: hidden/heads.
    pub head_size: Option<usize>,
    /// Hidden width of the feed-forward networks, as a multiple of `hidden`.
    #[schemars(range(min = 1, max = 64))]
    pub mlp_ratio: usize,
    /// Features of the condition, which both times determine. Null: `hidden`.
    pub condition: Option<usize>,
    /// Number of tokens that a latent vector is divided into; must divide its dimension.
    #[schemars(range(min = 1, max = 4096))]
    pub latent_tokens: usize,
    /// Normalise queries and keys of each head (QK norm), separately for texts and latents.
    pub qk_norm: bool,
    /// Add the latent to the condition as well, so that it acts on every normalisation.
    pub pooled_latent: bool,
    /// Use the table of tokens for the output as well.
    pub tied: bool,
    /// How the times become a condition.
    pub time_embedding: TimeEmbedding,
    /// Number of frequencies of each time embedding. Null: 16 for fourier, 128 for sinusoidal.
    pub frequencies: Option<usize>,
    /// Residual streams and their connections. Null: one stream, to which the output of every branch is added.
    pub hyper_connections: Option<HyperConnections>,
    /// Rows of the table of positions of texts. Null: the tokens of a text. Texts use the first rows.
    pub max_length: Option<usize>,
    /// Dropout before the last layer of the latent head.
    pub dropout: f64,
}

/// How the times of a text and of a latent become a condition. F is the number of frequencies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TimeEmbedding {
    /// cos(πkt) and sin(πkt) for k from 1 to F, of both times, through one MLP.
    #[default]
    Fourier,
    /// cos(ωt) and sin(ωt) for ω = 10000^(-k/F) and k from 0 to F - 1 (Vaswani et al. 2017, §3.5), each time through
    /// an MLP of its own, and both results through another.
    Sinusoidal,
}

/// Hyper-connections of every branch and modality (Zhu et al. 2024): several residual streams, which each branch reads
/// and writes with learned coefficients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HyperConnections {
    /// Number of residual streams.
    #[schemars(range(min = 2, max = 4))]
    pub streams: usize,
    /// How the coefficients depend on the streams.
    #[serde(default)]
    pub kind: ConnectionKind,
}

/// How the coefficients of hyper-connections depend on the streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ConnectionKind {
    /// Without constraint (Zhu et al. 2024).
    Plain,
    /// Streams are mixed by doubly stochastic matrices (Xie et al. 2025).
    #[default]
    Manifold,
}

impl Default for CycleVaeModel {
    fn default() -> Self {
        Self {
            hidden: 64,
            depth: 2,
            heads: 4,
            head_size: None,
            mlp_ratio: 4,
            condition: None,
            latent_tokens: 1,
            qk_norm: true,
            pooled_latent: true,
            tied: true,
            time_embedding: TimeEmbedding::default(),
            frequencies: None,
            hyper_connections: None,
            max_length: None,
            dropout: 0.0,
        }
    }
}

/// Weighting of the masked tokens in the loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TextWeighting {
    /// The mean cross entropy of all masked tokens.
    #[default]
    Mean,
    /// Each masked token has the weight 1/t, which makes the loss an upper bound of the negative log likelihood (Sahoo
    /// et al. 2024, equation 10). It is divided by the number of all tokens.
    Elbo,
}

/// The weight of a loss that begins later and grows linearly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Ramp {
    /// Weight at the end.
    pub weight: f64,
    /// First update with the loss, from 0.
    pub start: u64,
    /// Number of updates in which the weight grows to its end.
    pub ramp: u64,
}

impl Ramp {
    /// The weight in update number `update`, from 0.
    pub fn at(&self, update: u64) -> f64 {
        match update.checked_sub(self.start) {
            None => 0.0,
            Some(since) if since < self.ramp => self.weight * since as f64 / self.ramp as f64,
            Some(_) => self.weight,
        }
    }

    fn violation(&self) -> Option<&'static str> {
        let is_wrong = self.weight.is_nan() || self.weight < 0.0 || self.weight.is_infinite();
        is_wrong.then_some("must not be negative")
    }
}

/// How the texts of a cycle are chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PseudoText {
    /// The most probable token at every position.
    #[default]
    Argmax,
    /// A token at every position, drawn from its distribution.
    Categorical,
}

/// The loss of vectors through texts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LatentCycle {
    /// Weight at the end.
    pub weight: f64,
    /// First update with the loss, from 0.
    pub start: u64,
    /// Number of updates in which the weight grows to its end.
    pub ramp: u64,
    /// How the text of a vector is chosen, all tokens at once.
    pub sampling: PseudoText,
}

impl LatentCycle {
    /// The weight over the updates.
    pub fn ramp(&self) -> Ramp {
        Ramp { weight: self.weight, start: self.start, ramp: self.ramp }
    }
}

/// The loss: cross entropy of masked tokens given the latent, and squared error of the latent given the text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CycleVaeLoss {
    /// Share of the pairs that are trained from latent to text (L2T); the others are trained from text to latent (T2L).
    pub text_share: f64,
    /// Share of the samples that are trained without their condition, whose time is then 1.
    pub unconditional: f64,
    /// Weight of the text.
    pub text_weight: f64,
    /// Weighting of the masked tokens.
    pub text_weighting: TextWeighting,
    /// Smallest time of a text, at which this fraction of its tokens is masked; the largest is 1.
    pub min_time: f64,
    /// Weight of the padding after the end of a text, relative to other tokens. Padding is predicted like any token, so
    /// the length of a text is learned.
    pub padding_weight: f64,
    /// Weight of the latent.
    pub latent_weight: f64,
    /// What the network predicts for a noisy latent.
    pub latent_target: LatentTarget,
    /// Noise schedule of the latent.
    pub latent_schedule: LatentSchedule,
    /// Smallest and largest time of a latent.
    pub latent_times: [f64; 2],
    /// What is trained in turn. Empty: both directions in every update.
    pub modes: Vec<ModeUpdates>,
    /// How the modes take turns.
    pub mode_order: ModeOrder,
    /// Train with the objective of another program, for comparisons. Null: with that of this section.
    pub compat: Option<Compatibility>,
    /// Loss of texts given the latents that the network computes from them in one evaluation (T2L2T): of the texts without
    /// a vector or, where all have one, of all. A weight of 0 turns it off.
    pub cycle_text: Ramp,
    /// Loss of latents given the texts that the network computes from them (L2T2L): of the vectors without a text or,
    /// where all have one, of all. A weight of 0 turns it off. No gradient flows through the tokens.
    pub cycle_latent: LatentCycle,
    /// Whether no gradient flows through the latents of `cycle_text`.
    pub stop_gradient: bool,
}

impl Default for CycleVaeLoss {
    fn default() -> Self {
        Self {
            text_share: 0.5,
            unconditional: 0.1,
            text_weight: 1.0,
            text_weighting: TextWeighting::default(),
            min_time: 0.02,
            padding_weight: 1.0,
            latent_weight: 5.0,
            latent_target: LatentTarget::default(),
            latent_schedule: LatentSchedule::default(),
            latent_times: [0.0, 1.0],
            modes: Vec::new(),
            mode_order: ModeOrder::default(),
            compat: None,
            cycle_text: Ramp::default(),
            cycle_latent: LatentCycle::default(),
            stop_gradient: true,
        }
    }
}

/// The configuration of the task.
pub type CycleVaeConfig = Config<CycleVaeData, CycleVaeModel, CycleVaeLoss>;

/// Returns the violations that the schema does not express.
pub(super) fn violations(config: &CycleVaeConfig) -> Violations {
    let CycleVaeConfig { data, model, loss, .. } = config;
    let mut found = weight_violations(data.weight, data.additional.iter().map(|own| own.weight));
    found.extend(model.violations().into_iter().map(|(key, text)| (format!("model.{key}"), text)));
    let mut violation = |key: &str, text: &str| found.push((key.into(), text.into()));
    for (key, value) in
        [("loss.text_share", loss.text_share), ("loss.unconditional", loss.unconditional)]
    {
        if !(0.0..=1.0).contains(&value) {
            violation(key, "must lie in [0, 1]");
        }
    }
    if !(loss.min_time > 0.0 && loss.min_time < 1.0) {
        violation("loss.min_time", "must be above 0 and below 1");
    }
    let [low, high] = loss.latent_times;
    if !(low >= 0.0 && low <= high && high <= 1.0) {
        violation("loss.latent_times", "must be two numbers in [0, 1], the smaller one first");
    }
    if let Some(compat) = loss.compat {
        compat.conflicts(loss).iter().for_each(|(key, text)| violation(key, text));
    }
    for (key, value) in [
        ("loss.text_weight", loss.text_weight),
        ("loss.latent_weight", loss.latent_weight),
        ("loss.padding_weight", loss.padding_weight),
    ] {
        found.extend(not_negative(key, value));
    }
    for (key, ramp) in [
        ("loss.cycle_text.weight", loss.cycle_text),
        ("loss.cycle_latent.weight", loss.cycle_latent.ramp()),
    ] {
        found.extend(ramp.violation().map(|text| (key.to_string(), text.to_string())));
    }
    found
}

impl CycleVaeModel {
    /// Features per head.
    pub fn head_size(&self) -> usize {
        self.head_size.unwrap_or(self.hidden / self.heads)
    }

    /// Features of the condition.
    pub fn condition(&self) -> usize {
        self.condition.unwrap_or(self.hidden)
    }

    /// Number of frequencies of each time embedding.
    pub fn frequencies(&self) -> usize {
        self.frequencies.unwrap_or(match self.time_embedding {
            TimeEmbedding::Fourier => 16,
            TimeEmbedding::Sinusoidal => 128,
        })
    }

    /// Returns the violations that the schema does not express.
    fn violations(&self) -> Violations {
        let mut found = Violations::new();
        let mut violation = |key: &str, text: &str| found.push((key.into(), text.into()));
        if self.head_size.is_none() && !self.hidden.is_multiple_of(self.heads) {
            violation("heads", "must divide model.hidden, or set model.head_size");
        }
        if self.head_size.is_some_and(|size| size == 0) {
            violation("head_size", "must be at least 1, or null");
        }
        if self.condition == Some(0) {
            violation("condition", "must be at least 1, or null");
        }
        if self.frequencies.is_some_and(|count| !(1..=1024).contains(&count)) {
            violation("frequencies", "must be from 1 to 1024, or null");
        }
        if self.max_length == Some(0) {
            violation("max_length", "must be at least 1, or null");
        }
        if !(0.0..1.0).contains(&self.dropout) {
            violation("dropout", "must be at least 0 and less than 1");
        }
        found
    }
}
