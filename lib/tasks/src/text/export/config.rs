//! config.json and tokenizer_config.json of transformers.

use super::head::TransformersHead;
use crate::common::transformers::export::tokenizer_config;
use crate::text::encoder::{Architecture, EncoderConfig};
use data::text::{TokenInfo, Tokenizer};
use serde_json::{Value, json};

/// The content of config.json; if `head` is None, that of the encoder alone.
pub(super) fn model(
    config: &EncoderConfig,
    info: &TokenInfo,
    head: Option<&TransformersHead>,
) -> Value {
    let (name, model_type) = match config.model_type {
        Architecture::Bert => ("Bert", "bert"),
        Architecture::Roberta => ("Roberta", "roberta"),
        Architecture::XlmRoberta => ("XLMRoberta", "xlm-roberta"),
        Architecture::Distilbert => ("DistilBert", "distilbert"),
    };
    let architecture = head.map_or("Model", |head| head.architecture);
    let mut all = json!({
        "architectures": [format!("{name}{architecture}")],
        "model_type": model_type,
        "dtype": "float32",
        "vocab_size": config.vocab_size.unwrap_or(info.vocabulary),
        "max_position_embeddings": config.max_position_embeddings,
        "pad_token_id": info.special.padding,
        "bos_token_id": info.special.cls,
        "eos_token_id": info.special.sep,
        "initializer_range": 0.02,
    });
    let sizes = match config.model_type {
        Architecture::Distilbert => json!({
            "dim": config.hidden_size,
            "n_layers": config.num_hidden_layers,
            "n_heads": config.num_attention_heads,
            "hidden_dim": config.intermediate_size,
            "activation": "gelu",
            "dropout": config.hidden_dropout_prob,
            "attention_dropout": config.attention_probs_dropout_prob,
            "sinusoidal_pos_embds": false,
        }),
        Architecture::Bert | Architecture::Roberta | Architecture::XlmRoberta => json!({
            "hidden_size": config.hidden_size,
            "num_hidden_layers": config.num_hidden_layers,
            "num_attention_heads": config.num_attention_heads,
            "intermediate_size": config.intermediate_size,
            "hidden_act": "gelu",
            "hidden_dropout_prob": config.hidden_dropout_prob,
            "attention_probs_dropout_prob": config.attention_probs_dropout_prob,
            "type_vocab_size": config.type_vocab_size,
            "layer_norm_eps": config.layer_norm_eps,
        }),
    };
    let of_head = head.map(|head| Value::from(head.keys.clone()));
    if let Value::Object(all) = &mut all {
        for more in [Some(sizes), of_head].into_iter().flatten() {
            all.extend(more.as_object().cloned().unwrap_or_default());
        }
    }
    all
}

/// The contents of tokenizer_config.json and special_tokens_map.json.
pub(super) fn tokenizer(config: &EncoderConfig, tokenizer: &Tokenizer) -> [Value; 2] {
    let special = tokenizer.special();
    let names = [
        ("pad_token", Some(special.padding)),
        ("cls_token", special.cls),
        ("sep_token", special.sep),
        ("mask_token", special.mask),
        ("unk_token", special.unk),
    ];
    let cut = tokenizer.cut();
    let has_segments = config.has_segments() && config.type_vocab_size > 1 && !cut.no_segments;
    let inputs = match has_segments {
        true => vec!["input_ids", "token_type_ids", "attention_mask"],
        false => vec!["input_ids", "attention_mask"],
    };
    let longest = config.longest(special.padding as usize);
    tokenizer_config(tokenizer, &names, &inputs, longest)
}
