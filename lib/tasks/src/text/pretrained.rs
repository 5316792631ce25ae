//! Encoders in folders as transformers writes them: config.json, and model.safetensors or pytorch_model.bin.

use super::encoder::{EncoderConfig, Kind};
use learn::foreign;
use serde::Deserialize;
use serde_json::{Value, json};
use std::path::Path;
use unix::{Error, Result, small};

/// Maximum size of config.json in bytes.
const MAX_BYTES: u64 = 1 << 20;
/// Files of weights, by preference.
const WEIGHTS: [&str; 2] = ["model.safetensors", "pytorch_model.bin"];

/// What is read from config.json; keys that are missing have the defaults of transformers.
#[derive(Deserialize)]
struct Config {
    model_type: String,
    #[serde(default = "gelu")]
    hidden_act: String,
    #[serde(default)]
    position_embedding_type: Option<String>,
    #[serde(default)]
    is_decoder: bool,
    hidden_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    intermediate_size: usize,
    max_position_embeddings: usize,
    type_vocab_size: usize,
    #[serde(default = "epsilon")]
    layer_norm_eps: f64,
    #[serde(default = "tenth")]
    hidden_dropout_prob: f64,
    #[serde(default = "tenth")]
    attention_probs_dropout_prob: f64,
}

fn gelu() -> String {
    "gelu".into()
}

fn epsilon() -> f64 {
    1e-12
}

fn tenth() -> f64 {
    0.1
}

/// The configuration that starts training from the encoder in a folder: `model.encoder` with its shape, and `init` with
/// the rules that map the names of its tensors. The head starts with random values.
///
/// Errors: 66 when config.json or the weights are missing; 65 when they are damaged, or of a model that is not BERT or
/// RoBERTa.
pub fn configuration(folder: &Path) -> Result<Value> {
    let path = folder.join("config.json");
    let bad = |what: String| Error::data(format!("{}: {what}", path.display()));
    let config: Config = serde_json::from_slice(&small::read(&path, MAX_BYTES)?)
        .map_err(|cause| bad(cause.to_string()))?;
    let model_type = match config.model_type.as_str() {
        "bert" => Kind::Bert,
        "roberta" | "xlm-roberta" => Kind::Roberta,
        other => {
            return Err(bad(format!(
                "model_type {other:?}; known are bert, roberta and xlm-roberta"
            )));
        }
    };
    if config.hidden_act != "gelu" {
        return Err(bad(format!("hidden_act {:?}; only \"gelu\" is known", config.hidden_act)));
    }
    let positions = config.position_embedding_type.as_deref().unwrap_or("absolute");
    if positions != "absolute" || config.is_decoder {
        return Err(bad("relative positions and decoders are not known".into()));
    }
    let encoder = EncoderConfig {
        model_type,
        hidden_size: config.hidden_size,
        num_hidden_layers: config.num_hidden_layers,
        num_attention_heads: config.num_attention_heads,
        intermediate_size: config.intermediate_size,
        max_position_embeddings: config.max_position_embeddings,
        type_vocab_size: config.type_vocab_size,
        layer_norm_eps: config.layer_norm_eps,
        hidden_dropout_prob: config.hidden_dropout_prob,
        attention_probs_dropout_prob: config.attention_probs_dropout_prob,
        freeze_layers: 0,
    };
    if let Some((key, text)) = encoder.violations().into_iter().next() {
        return Err(bad(format!("{key}: {text}")));
    }
    let weights = WEIGHTS.iter().map(|name| folder.join(name)).find(|path| path.is_file());
    let weights = weights.ok_or_else(|| {
        Error::open(folder, format!("it has neither {} nor {}", WEIGHTS[0], WEIGHTS[1]))
    })?;
    let file = foreign::open(&weights)?;
    let names: Vec<&str> = file.tensors().iter().map(|entry| entry.name.as_str()).collect();
    let init = json!([{"from": weights, "names": rules(encoder.prefix(), &names)}]);
    Ok(json!({"model": {"encoder": encoder}, "init": init}))
}

/// The rules for a file with these tensors.
fn rules(prefix: &str, names: &[&str]) -> Value {
    let own = format!("{prefix}.");
    // A file of the encoder alone has no prefix.
    let is_alone = !names.iter().any(|name| name.starts_with(&own));
    let given = if is_alone { "" } else { own.as_str() };
    let mut map = Vec::new();
    // Files converted from TensorFlow.
    for (old, new) in [("gamma", "weight"), ("beta", "bias")] {
        if names.iter().any(|name| name.ends_with(&format!(".{old}"))) {
            map.push(format!("{given}*.{old}={own}*.{new}"));
        }
    }
    if is_alone {
        map.push(format!("*={own}*"));
    }
    let belongs = |name: &str| {
        let rest = name.strip_prefix(given);
        rest.is_some_and(|rest| {
            let parts = ["embeddings.", "encoder.", "pooler."];
            parts.iter().any(|part| rest.starts_with(part)) && !rest.ends_with("position_ids")
        })
    };
    let mut ignore: Vec<String> = Vec::new();
    for name in names.iter().filter(|name| !belongs(name)) {
        let pattern = match name.rsplit_once("position_ids") {
            Some((_, "")) => "*position_ids".to_string(),
            _ => format!("{}.*", name.split('.').next().unwrap_or(name)),
        };
        if !ignore.contains(&pattern) {
            ignore.push(pattern);
        }
    }
    let pooler = format!("{own}pooler.*");
    let mut keep = vec!["classifier*".to_string()];
    let has_pooler = names.iter().any(|name| name.starts_with(&format!("{given}pooler.")));
    if !has_pooler {
        keep.push(pooler.clone());
    }
    // RoBERTa's head has a layer of its own; with a mean or maximum over tokens, BERT's has none.
    let optional: Vec<String> = has_pooler.then_some(pooler).into_iter().collect();
    json!({"map": map, "ignore": ignore, "keep": keep, "optional": optional})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_of_the_files_that_exist() {
        let old = [
            "bert.embeddings.LayerNorm.gamma",
            "bert.embeddings.LayerNorm.beta",
            "bert.pooler.dense.bias",
            "cls.predictions.bias",
            "cls.seq_relationship.weight",
        ];
        assert_eq!(
            rules("bert", &old),
            json!({
                "map": ["bert.*.gamma=bert.*.weight", "bert.*.beta=bert.*.bias"],
                "ignore": ["cls.*"], "keep": ["classifier*"], "optional": ["bert.pooler.*"],
            })
        );
        let alone = ["embeddings.position_ids", "embeddings.LayerNorm.weight", "encoder.layer.0.x"];
        assert_eq!(
            rules("roberta", &alone),
            json!({
                "map": ["*=roberta.*"], "ignore": ["*position_ids"],
                "keep": ["classifier*", "roberta.pooler.*"], "optional": [],
            })
        );
    }
}
