//! What all folders of transformers and PEFT have in common: config.json, adapters, and how such folders are written.

pub(crate) mod adapter;
pub(crate) mod export;

use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use unix::foreign_keys::{Key, Keys};
use unix::{Error, Result, small};

/// Maximum size of config.json in bytes.
pub(crate) const MAX_BYTES: u64 = 16 << 20;

/// Maximum number of rows of an embedding table.
pub(crate) const MAX_ROWS: usize = (1 << 24) - 1;

/// The encoders that are supported, as `model_type` in config.json names them.
pub(crate) const ENCODERS: [&str; 4] = ["bert", "roberta", "xlm-roberta", "distilbert"];

/// The decoders that are supported, as `model_type` names them.
pub(crate) const DECODERS: [&str; 4] = ["qwen3", "qwen2", "llama", VISION_LANGUAGE];

/// The decoder with a vision tower.
pub(crate) const VISION_LANGUAGE: &str = "qwen3_vl";

/// All models that are supported.
pub(crate) const MODEL_TYPES: [&str; 8] =
    ["bert", "roberta", "xlm-roberta", "distilbert", "qwen3", "qwen2", "llama", VISION_LANGUAGE];

/// A folder of a pretrained model.
#[derive(Clone, Debug, Default)]
pub struct Pretrained {
    /// The folder.
    pub folder: PathBuf,
    /// Whether the head in the folder is used, too.
    pub head: bool,
    /// The folder of a LoRA adapter of PEFT for this model.
    pub adapter: Option<PathBuf>,
}

/// Files of tokenizers.
const TOKENIZERS: [&str; 3] = ["tokenizer.json", "vocab.txt", "vocab.json"];

/// Whether a folder has a tokenizer.
pub(crate) fn has_tokenizer(folder: &Path) -> bool {
    TOKENIZERS.iter().any(|name| folder.join(name).exists())
}

/// Path and keys of the config.json in `folder`. Errors: 66 when it is missing; 65 when it is damaged.
pub(crate) fn config_of(folder: &Path) -> Result<(PathBuf, Map<String, Value>)> {
    let path = folder.join("config.json");
    let keys = serde_json::from_slice(&small::read(&path, MAX_BYTES)?)
        .map_err(|cause| Error::data(format!("{}: {cause}", path.display())))?;
    Ok((path, keys))
}

/// The value of `model_type` among the keys of the config.json at `path`. Errors: 65 when it is not one of `known`, which the
/// message lists.
pub(crate) fn model_type<'a>(
    path: &Path,
    keys: &'a Map<String, Value>,
    known: &[&str],
) -> Result<&'a str> {
    let kind = keys.get("model_type").unwrap_or(&Value::Null);
    kind.as_str().filter(|kind| known.contains(kind)).ok_or_else(|| {
        let (last, others) = known.split_last().unwrap_or((&"none", &[]));
        let path = path.display();
        Error::data(format!(
            "{path}: model_type {kind} is not supported; supported are {} and {last}",
            others.join(", ")
        ))
    })
}

/// Errors: the weights are quantised in another way than by bitsandbytes to NF4.
pub(crate) fn require_nf4(keys: &Map<String, Value>) -> Result<(), String> {
    let Some(quantised) = keys.get("quantization_config").filter(|value| !value.is_null()) else {
        return Ok(());
    };
    let has = |key: &str, value: Value| quantised.get(key) == Some(&value);
    let is_known = has("quant_method", json!("bitsandbytes"))
        && has("load_in_4bit", json!(true))
        && has("bnb_4bit_quant_type", json!("nf4"));
    match is_known {
        true => Ok(()),
        false => {
            Err("quantization_config: only weights quantised to NF4 by bitsandbytes are supported"
                .into())
        }
    }
}

/// Keys of every kind of model that would make another one of it.
pub(crate) const UNSUPPORTED: &Keys = &[
    ("is_encoder_decoder", Key::Off),
    ("add_cross_attention", Key::Off),
    ("cross_attention_hidden_size", Key::Off),
    ("tie_encoder_decoder", Key::Off),
    ("pruned_heads", Key::Off),
    ("per_layer_config", Key::Off),
    ("auto_map", Key::Off),
];

/// Keys of every kind of model that do not affect what we compute.
pub(crate) const WITHOUT_EFFECT: &Keys = &[
    ("dtype", Key::NoEffect),
    ("torch_dtype", Key::NoEffect),
    ("use_cache", Key::NoEffect),
    ("gradient_checkpointing", Key::NoEffect),
    ("chunk_size_feed_forward", Key::NoEffect),
    ("return_dict", Key::NoEffect),
    ("output_hidden_states", Key::NoEffect),
    ("output_attentions", Key::NoEffect),
    ("output_past", Key::NoEffect),
    ("torchscript", Key::NoEffect),
    ("use_bfloat16", Key::NoEffect),
    ("tf_legacy_loss", Key::NoEffect),
    ("attn_implementation", Key::NoEffect),
    ("_attn_implementation", Key::NoEffect),
    ("_attn_implementation_autoset", Key::NoEffect),
    ("_name_or_path", Key::NoEffect),
    ("name_or_path", Key::NoEffect),
    ("_commit_hash", Key::NoEffect),
    ("_num_labels", Key::NoEffect),
    ("transformers_version", Key::NoEffect),
    ("unsloth_fixed", Key::NoEffect),
    ("finetuning_task", Key::NoEffect),
    ("task_specific_params", Key::NoEffect),
    ("prefix", Key::NoEffect),
    ("language", Key::NoEffect),
    ("bos_token_id", Key::NoEffect),
    ("eos_token_id", Key::NoEffect),
    ("sep_token_id", Key::NoEffect),
    ("cls_token_id", Key::NoEffect),
    ("mask_token_id", Key::NoEffect),
    ("decoder_start_token_id", Key::NoEffect),
    ("max_length", Key::NoEffect),
    ("min_length", Key::NoEffect),
    ("do_sample", Key::NoEffect),
    ("early_stopping", Key::NoEffect),
    ("num_beams", Key::NoEffect),
    ("num_beam_groups", Key::NoEffect),
    ("diversity_penalty", Key::NoEffect),
    ("temperature", Key::NoEffect),
    ("top_k", Key::NoEffect),
    ("top_p", Key::NoEffect),
    ("typical_p", Key::NoEffect),
    ("repetition_penalty", Key::NoEffect),
    ("length_penalty", Key::NoEffect),
    ("no_repeat_ngram_size", Key::NoEffect),
    ("encoder_no_repeat_ngram_size", Key::NoEffect),
    ("bad_words_ids", Key::NoEffect),
    ("num_return_sequences", Key::NoEffect),
    ("output_scores", Key::NoEffect),
    ("return_dict_in_generate", Key::NoEffect),
    ("forced_bos_token_id", Key::NoEffect),
    ("forced_eos_token_id", Key::NoEffect),
    ("remove_invalid_values", Key::NoEffect),
    ("exponential_decay_length_penalty", Key::NoEffect),
    ("suppress_tokens", Key::NoEffect),
    ("begin_suppress_tokens", Key::NoEffect),
];
