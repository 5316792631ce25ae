//! The configuration of a decoder, with the keys of transformers' config.json.

use super::rope::{ROPE_TYPES, RopeParameters};
use crate::common::transformers::{MAX_ROWS, UNSUPPORTED, WITHOUT_EFFECT, require_nf4};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::path::Path;
use unix::config::{Violations, within};
use unix::foreign_keys::{Key, Keys, check};
use unix::{Error, Result};

/// The architecture. All have grouped-query attention with rotary positions, RMS normalization before attention and
/// feed-forward network, and SwiGLU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Architecture {
    /// Heads of queries and keys are normalized (Qwen Team 2025).
    #[default]
    Qwen3,
    /// Projections to queries, keys and values have a bias (Yang et al. 2024).
    Qwen2,
    /// Neither (Touvron et al. 2023).
    Llama,
}

/// The shape of a decoder, with the names of transformers' config.json.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DecoderConfig {
    /// Architecture.
    pub model_type: Architecture,
    /// Rows of the token embedding table, at least the number of ids of the tokenizer.
    pub vocab_size: usize,
    /// Features of a token.
    pub hidden_size: usize,
    /// Features of the hidden layer of each feed-forward network.
    pub intermediate_size: usize,
    /// Number of layers.
    pub num_hidden_layers: usize,
    /// Number of query heads.
    pub num_attention_heads: usize,
    /// Number of key/value heads; must divide num_attention_heads. Null: num_attention_heads.
    pub num_key_value_heads: Option<usize>,
    /// Features of a head, an even number. Null: hidden_size / num_attention_heads.
    pub head_dim: Option<usize>,
    /// Longest sequence.
    pub max_position_embeddings: usize,
    /// ε of the normalizations.
    pub rms_norm_eps: f64,
    /// Rotary position embedding.
    pub rope_parameters: RopeParameters,
    /// All projections of the attention have a bias. Without effect on qwen2, which has them for queries, keys and values.
    pub attention_bias: bool,
    /// The layers of the feed-forward networks have a bias; llama only.
    pub mlp_bias: bool,
    /// Dropout of the attention probabilities.
    pub attention_dropout: f64,
    /// Compute logits with the token embedding table instead of a matrix of their own.
    pub tie_word_embeddings: bool,
    /// Standard deviation of initial weights.
    pub initializer_range: f64,
}

impl Default for DecoderConfig {
    /// Qwen3-0.6B.
    fn default() -> Self {
        Self {
            model_type: Architecture::Qwen3,
            vocab_size: 151_936,
            hidden_size: 1024,
            intermediate_size: 3072,
            num_hidden_layers: 28,
            num_attention_heads: 16,
            num_key_value_heads: Some(8),
            head_dim: Some(128),
            max_position_embeddings: 40_960,
            rms_norm_eps: 1e-6,
            rope_parameters: RopeParameters::Default { rope_theta: 1e6 },
            attention_bias: false,
            mlp_bias: false,
            attention_dropout: 0.0,
            tie_word_embeddings: true,
            initializer_range: 0.02,
        }
    }
}

impl DecoderConfig {
    /// Number of key/value heads.
    pub fn kv_heads(&self) -> usize {
        self.num_key_value_heads.unwrap_or(self.num_attention_heads)
    }

    /// Features of a head; 0 without heads.
    pub fn head_size(&self) -> usize {
        let derived = || self.hidden_size.checked_div(self.num_attention_heads).unwrap_or(0);
        self.head_dim.unwrap_or_else(derived)
    }

    /// Violations that the schema does not express, by key.
    pub fn violations(&self) -> Violations {
        let mut violations = Violations::new();
        let mut say = |key: &str, text: String| violations.push((key.into(), text));
        // These limits also apply to config.json files of other programs.
        let (heads, head, kv_heads) = (self.num_attention_heads, self.head_size(), self.kv_heads());
        let sizes = [
            ("vocab_size", self.vocab_size, 1..=MAX_ROWS),
            ("hidden_size", self.hidden_size, 1..=65536),
            ("intermediate_size", self.intermediate_size, 1..=1 << 20),
            ("num_hidden_layers", self.num_hidden_layers, 0..=1024),
            ("num_attention_heads", heads, 1..=65536),
            ("num_key_value_heads", kv_heads, 1..=65536),
            ("head_dim", head, 2..=65536),
            ("max_position_embeddings", self.max_position_embeddings, 1..=MAX_ROWS),
        ];
        for (key, size, allowed) in sizes {
            if !allowed.contains(&size) {
                let (low, high) = (allowed.start(), allowed.end());
                say(key, format!("must be from {low} to {high}, not {size}"));
            }
        }
        if kv_heads > 0 && !heads.is_multiple_of(kv_heads) {
            say("num_key_value_heads", format!("must divide num_attention_heads, {heads}"));
        }
        if self.head_dim.is_none() && heads > 0 && !self.hidden_size.is_multiple_of(heads) {
            let text =
                format!("must divide hidden_size, {}, unless head_dim is set", self.hidden_size);
            say("num_attention_heads", text);
        }
        if !head.is_multiple_of(2) {
            say(
                "head_dim",
                format!("must be even, not {head}: positions rotate pairs of features"),
            );
        }
        if self.mlp_bias && self.model_type != Architecture::Llama {
            say("mlp_bias", "only llama has biases in its feed-forward networks".into());
        }
        if !(0.0..1.0).contains(&self.attention_dropout) {
            say("attention_dropout", "must be at least 0 and less than 1".into());
        }
        for (key, number) in
            [("rms_norm_eps", self.rms_norm_eps), ("initializer_range", self.initializer_range)]
        {
            if !(number.is_finite() && number > 0.0) {
                say(key, format!("must be a positive number, not {number}"));
            }
        }
        violations.extend(within("rope_parameters", self.rope_parameters.violations()));
        violations
    }

    /// The configuration in the `keys` of the config.json at `path`, of a model of this kind. Keys by which sizes of models differ
    /// are required, because their defaults differ between versions of transformers.
    ///
    /// Errors: 65 when it lacks a key, or has settings that are not supported.
    pub(super) fn of_file(path: &Path, keys: &Map<String, Value>, kind: &str) -> Result<Self> {
        let bad = |what: String| Error::data(format!("{}: {what}", path.display()));
        let kind: Architecture = serde_json::from_value(kind.into()).map_err(Error::bug)?;
        check(path, keys, &[OF_DECODERS, own_keys(kind), UNSUPPORTED, WITHOUT_EFFECT].concat())?;
        require_nf4(keys).map_err(bad)?;
        Self::of(keys, kind).map_err(bad)
    }

    /// The configuration in the `keys` of a config.json. Errors: a key that is missing or not supported.
    pub(super) fn of(keys: &Map<String, Value>, kind: Architecture) -> Result<Self, String> {
        let types: Option<Vec<String>> = get(keys, "layer_types")?;
        if types.is_some_and(|types| types.iter().any(|own| own != "full_attention")) {
            return Err("layer_types: only full_attention is supported".into());
        }
        let llama = kind == Architecture::Llama;
        Ok(Self {
            model_type: kind,
            vocab_size: need(keys, "vocab_size")?,
            hidden_size: need(keys, "hidden_size")?,
            intermediate_size: need(keys, "intermediate_size")?,
            num_hidden_layers: need(keys, "num_hidden_layers")?,
            num_attention_heads: need(keys, "num_attention_heads")?,
            num_key_value_heads: match llama {
                true => get(keys, "num_key_value_heads")?,
                false => Some(need(keys, "num_key_value_heads")?),
            },
            head_dim: match kind {
                Architecture::Qwen3 => Some(need(keys, "head_dim")?),
                Architecture::Qwen2 | Architecture::Llama => get(keys, "head_dim")?,
            },
            max_position_embeddings: need(keys, "max_position_embeddings")?,
            rms_norm_eps: need(keys, "rms_norm_eps")?,
            rope_parameters: rope_of(keys)?,
            // These have the same defaults in all versions of transformers.
            attention_bias: get(keys, "attention_bias")?.unwrap_or(false),
            mlp_bias: get(keys, "mlp_bias")?.unwrap_or(false),
            attention_dropout: get(keys, "attention_dropout")?.unwrap_or(0.0),
            tie_word_embeddings: get(keys, "tie_word_embeddings")?.unwrap_or(false),
            initializer_range: get(keys, "initializer_range")?.unwrap_or(0.02),
        })
    }
}

/// The value of a key that is not null. Errors: it has another type.
pub(super) fn get<T: DeserializeOwned>(
    keys: &Map<String, Value>,
    key: &str,
) -> Result<Option<T>, String> {
    let value = keys.get(key).filter(|value| !value.is_null()).cloned();
    value
        .map(|value| serde_json::from_value(value).map_err(|cause| format!("{key}: {cause}")))
        .transpose()
}

/// The value of a key. Errors: it is missing or has another type.
pub(super) fn need<T: DeserializeOwned>(keys: &Map<String, Value>, key: &str) -> Result<T, String> {
    get(keys, key)?.ok_or_else(|| format!("{key} is missing"))
}

/// `rope_parameters`, as transformers 5 writes them, or `rope_scaling` and `rope_theta` of earlier versions. Errors: as for
/// [`DecoderConfig::of`].
fn rope_of(keys: &Map<String, Value>) -> Result<RopeParameters, String> {
    let named = |key| -> Result<_, String> {
        Ok(get::<Map<String, Value>>(keys, key)?.map(|rope| (key, rope)))
    };
    let (key, mut rope) = match (named("rope_parameters")?, named("rope_scaling")?) {
        (Some(_), Some(_)) => {
            return Err("rope_parameters and rope_scaling are both set; remove one".into());
        }
        (Some(found), None) | (None, Some(found)) => found,
        (None, None) => ("rope_parameters", Map::new()),
    };
    rope.retain(|_, value| !value.is_null());
    let old_name = rope.remove("type").unwrap_or_else(|| "default".into());
    let kind = rope.entry("rope_type").or_insert(old_name).clone();
    if !ROPE_TYPES.iter().any(|known| kind == *known) {
        let known = ROPE_TYPES.join(", ");
        return Err(format!("{key}.rope_type {kind} is not supported; supported are {known}"));
    }
    if let Some(part) =
        rope.remove("partial_rotary_factor").filter(|part| part.as_f64() != Some(1.0))
    {
        return Err(format!("{key}.partial_rotary_factor {part}: only 1.0 is supported"));
    }
    if !rope.contains_key("rope_theta") {
        rope.insert("rope_theta".into(), need::<f64>(keys, "rope_theta")?.into());
    }
    if kind == "llama3" || kind == "yarn" {
        let longest = need::<usize>(keys, "max_position_embeddings")?;
        rope.entry("original_max_position_embeddings").or_insert(longest.into());
    }
    serde_json::from_value(Value::Object(rope)).map_err(|cause| format!("{key}: {cause}"))
}

/// The keys of every kind of decoder.
pub(super) const OF_DECODERS: &Keys = &[
    ("model_type", Key::Read),
    ("vocab_size", Key::Read),
    ("hidden_size", Key::Read),
    ("intermediate_size", Key::Read),
    ("num_hidden_layers", Key::Read),
    ("num_attention_heads", Key::Read),
    ("num_key_value_heads", Key::Read),
    ("head_dim", Key::Read),
    ("max_position_embeddings", Key::Read),
    ("rms_norm_eps", Key::Read),
    ("rope_parameters", Key::Read),
    ("rope_scaling", Key::Read),
    ("rope_theta", Key::Read),
    ("attention_dropout", Key::Read),
    ("tie_word_embeddings", Key::Read),
    ("initializer_range", Key::Read),
    ("layer_types", Key::Read),
    ("quantization_config", Key::Read),
    ("hidden_act", Key::Only("\"silu\"")),
    ("partial_rotary_factor", Key::Only("1.0")),
    ("architectures", Key::NoEffect),
    ("pad_token_id", Key::NoEffect),
    ("id2label", Key::NoEffect),
    ("label2id", Key::NoEffect),
    ("problem_type", Key::NoEffect),
    ("tokenizer_class", Key::NoEffect),
    ("pretraining_tp", Key::NoEffect),
    ("is_decoder", Key::NoEffect),
];

/// Those that only some kinds have.
fn own_keys(kind: Architecture) -> &'static Keys {
    // A window has an effect only if it is used.
    const OF_QWEN2: &Keys = &[
        ("use_sliding_window", Key::Off),
        ("sliding_window", Key::NoEffect),
        ("max_window_layers", Key::NoEffect),
        ("use_mrope", Key::Off),
    ];
    const OF_QWEN3: &Keys = &[
        ("use_sliding_window", Key::Off),
        ("sliding_window", Key::NoEffect),
        ("max_window_layers", Key::NoEffect),
        ("attention_bias", Key::Read),
    ];
    const OF_LLAMA: &Keys = &[("attention_bias", Key::Read), ("mlp_bias", Key::Read)];
    match kind {
        Architecture::Qwen3 => OF_QWEN3,
        Architecture::Qwen2 => OF_QWEN2,
        Architecture::Llama => OF_LLAMA,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manual_lists_every_key() {
        let manual = include_str!("../../../../man/longhaul-files.5");
        let own = [Architecture::Qwen3, Architecture::Qwen2, Architecture::Llama].map(own_keys);
        for (key, _) in [OF_DECODERS, UNSUPPORTED, WITHOUT_EFFECT, &own.concat()].concat() {
            assert!(manual.contains(&format!(".Li {key}")), "{key}");
        }
    }
}
