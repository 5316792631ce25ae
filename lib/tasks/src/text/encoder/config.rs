//! The configuration of an encoder, with the keys of transformers' config.json.

use crate::common::transformers::MAX_ROWS;
use data::text::TokenInfo;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::Path;
use unix::config::Violations;
use unix::{Error, Result};

/// The architecture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Architecture {
    /// Positions are counted from 0.
    #[default]
    Bert,
    /// Positions are counted from the id of the padding token plus 1.
    Roberta,
    /// RoBERTa with a multilingual vocabulary.
    XlmRoberta,
    /// BERT without segments and pooler, and with different parameter names.
    Distilbert,
}

/// The shape of an encoder, with the names and defaults of transformers' config.json.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct EncoderConfig {
    /// Architecture.
    pub model_type: Architecture,
    /// Rows of the token embedding table, at least the number of ids of the tokenizer. Null: exactly that number.
    pub vocab_size: Option<usize>,
    /// Hash of the tokenizer that the encoder was trained with; tokens made with a different one are refused. Null:
    /// any.
    pub tokenizer_hash: Option<String>,
    /// Features of a token.
    pub hidden_size: usize,
    /// Number of layers.
    pub num_hidden_layers: usize,
    /// Number of attention heads; must divide hidden_size.
    pub num_attention_heads: usize,
    /// Features of the hidden layer of each feed-forward network.
    pub intermediate_size: usize,
    /// Number of positions: the longest sequence, and for RoBERTa two more.
    pub max_position_embeddings: usize,
    /// Number of segments; without effect on DistilBERT, which has none.
    pub type_vocab_size: usize,
    /// Id of the padding token, after which RoBERTa counts positions; tokens padded with a different id are refused.
    /// Null: any.
    pub pad_token_id: Option<usize>,
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
            model_type: Architecture::Bert,
            vocab_size: None,
            tokenizer_hash: None,
            hidden_size: 768,
            num_hidden_layers: 12,
            num_attention_heads: 12,
            intermediate_size: 3072,
            max_position_embeddings: 512,
            type_vocab_size: 2,
            pad_token_id: None,
            layer_norm_eps: 1e-12,
            hidden_dropout_prob: 0.1,
            attention_probs_dropout_prob: 0.1,
            freeze_layers: 0,
        }
    }
}

impl EncoderConfig {
    /// Violations that the schema does not express; `keeps_frozen` says whether frozen parameters can be restored
    /// ([`Config::keeps_frozen`](learn::config::Config::keeps_frozen)).
    pub fn violations(&self, keeps_frozen: bool) -> Violations {
        let mut violations = Violations::new();
        let mut say = |key: &str, text: String| violations.push((key.into(), text));
        // These limits also apply to config.json files of other programs.
        let sizes = [
            ("vocab_size", self.vocab_size.unwrap_or(1), 1..=MAX_ROWS),
            ("hidden_size", self.hidden_size, 1..=65536),
            ("num_hidden_layers", self.num_hidden_layers, 0..=1024),
            ("num_attention_heads", self.num_attention_heads, 1..=65536),
            ("intermediate_size", self.intermediate_size, 1..=1 << 20),
            ("max_position_embeddings", self.max_position_embeddings, 1..=MAX_ROWS),
            ("type_vocab_size", self.type_vocab_size, 1..=65536),
            ("pad_token_id", self.pad_token_id.unwrap_or(0), 0..=MAX_ROWS),
        ];
        for (key, size, allowed) in sizes {
            if !allowed.contains(&size) {
                say(
                    key,
                    format!("must be from {} to {}, not {size}", allowed.start(), allowed.end()),
                );
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
        if self.freeze_layers > 0 && !keeps_frozen {
            let text = "freezes weights of which a checkpoint holds only the hash: set init.from to pretrained weights, or \
                        checkpoint.frozen to true";
            say("freeze_layers", text.into());
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
            Architecture::Bert => "bert",
            Architecture::Roberta | Architecture::XlmRoberta => "roberta",
            Architecture::Distilbert => "distilbert",
        }
    }

    /// Name patterns of its frozen parameters; `layers` is the name of its layers.
    pub(super) fn frozen(&self, layers: &str) -> Vec<String> {
        let prefix = self.prefix();
        let embeddings = (self.freeze_layers > 0).then(|| format!("{prefix}.embeddings.*"));
        let layers = (0..self.freeze_layers).map(|n| format!("{prefix}.{layers}.{n}.*"));
        embeddings.into_iter().chain(layers).collect()
    }

    /// The position of the first token, for a vocabulary with this padding token.
    pub fn first_position(&self, padding: usize) -> usize {
        match self.model_type {
            Architecture::Bert | Architecture::Distilbert => 0,
            Architecture::Roberta | Architecture::XlmRoberta => padding + 1,
        }
    }

    /// Whether tokens have segments.
    pub fn has_segments(&self) -> bool {
        self.model_type != Architecture::Distilbert
    }

    /// Checks that there is a row for each of the segments of the tokens in `folder`. Errors: 78.
    pub fn require_segments(&self, segments: usize, folder: &Path) -> Result<()> {
        match self.has_segments() && segments > self.type_vocab_size {
            true => Err(Error::config(format!(
                "{}: the tokens have {segments} segments, but model.encoder.type_vocab_size is {}; raise it, or run ds-prep \
                 tokenize with the tokenizer of the encoder",
                folder.display(),
                self.type_vocab_size
            ))),
            false => Ok(()),
        }
    }

    /// The longest sequence, for a vocabulary with this padding token.
    pub fn longest(&self, padding: usize) -> usize {
        self.max_position_embeddings.saturating_sub(self.first_position(padding))
    }

    /// Checks that the encoder can read the tokens in `folder`, described by `info`. Errors: 78.
    pub fn require_fit(&self, info: &TokenInfo, folder: &Path) -> Result<()> {
        let bad = |text: String| Err(Error::config(format!("{}: {text}", folder.display())));
        let longest = self.longest(info.special.padding as usize);
        if info.max_length > longest {
            return bad(format!(
                "texts have up to {} tokens, but model.encoder.max_position_embeddings allows {longest}; run ds-prep \
                 tokenize with --max-length {longest}, or change the key",
                info.max_length
            ));
        }
        let padding = info.special.padding;
        if let Some(own) = self.pad_token_id.filter(|own| *own != padding as usize) {
            return bad(format!(
                "texts are padded with token {padding}, but model.encoder.pad_token_id is {own}; run ds-prep tokenize with \
                 the tokenizer of the encoder"
            ));
        }
        let remedy = "run ds-prep tokenize with the tokenizer of the encoder";
        if self.vocab_size.is_some_and(|rows| rows < info.vocabulary) {
            return bad(format!(
                "the tokenizer has {} ids, but model.encoder.vocab_size is {}; {remedy}",
                info.vocabulary,
                self.vocab_size.unwrap_or(0)
            ));
        }
        match &self.tokenizer_hash {
            Some(hash) if *hash != info.tokenizer_hash => bad(format!(
                "the tokens were made with tokenizer {}, but model.encoder.tokenizer_hash is {hash}; {remedy}, or set the key to \
                 null",
                info.tokenizer_hash
            )),
            _ => Ok(()),
        }
    }
}
