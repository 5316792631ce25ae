//! What the config.json files of all models of transformers have in common.

use serde_json::{Map, Value, json};
use unix::foreign_keys::{Key, Keys};

/// Maximum size of config.json in bytes.
pub(crate) const MAX_BYTES: u64 = 16 << 20;

/// Maximum number of rows of an embedding table.
pub(crate) const MAX_ROWS: usize = (1 << 24) - 1;

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
