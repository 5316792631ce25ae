//! The files of PEFT: `adapter_config.json`, and `adapter_model.safetensors` with A, B and the layers that are trained
//! completely, whose names start with `base_model.model.`.

use super::Lora;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::path::Path;
use unix::{Error, Result, small};

/// The file with the configuration.
pub const CONFIG: &str = "adapter_config.json";
/// The file with the weights.
pub const WEIGHTS: &str = "adapter_model.safetensors";
/// What PEFT puts before the name of a parameter.
pub const PREFIX: &str = "base_model.model.";
/// Maximum size of the configuration in bytes.
const MAX_BYTES: u64 = 1 << 20;

/// The content of adapter_config.json for the layers `targets` of the model in the folder `base`. `task` is PEFT's name
/// of the task; `saved` are the modules that were trained completely.
pub fn config(lora: &Lora, targets: &[String], task: &str, base: &str, saved: &[&str]) -> Value {
    json!({
        "peft_type": "LORA",
        "task_type": task,
        "base_model_name_or_path": base,
        "inference_mode": true,
        "r": lora.r,
        "lora_alpha": lora.alpha,
        "lora_dropout": lora.dropout,
        "target_modules": targets,
        "modules_to_save": saved,
        "bias": "none",
        "fan_in_fan_out": false,
        "init_lora_weights": true,
    })
}

/// What is read from adapter_config.json; options that change the formula are read only to refuse them.
#[derive(Deserialize)]
struct Config {
    peft_type: String,
    r: usize,
    lora_alpha: f64,
    #[serde(default)]
    lora_dropout: f64,
    target_modules: Value,
    #[serde(flatten)]
    others: Map<String, Value>,
}

/// Options that change what an adapter computes, besides all whose names begin with `use_` or end with `_config`.
const REFUSED: [&str; 8] = [
    "bias",
    "lora_bias",
    "fan_in_fan_out",
    "rank_pattern",
    "alpha_pattern",
    "target_parameters",
    "trainable_token_indices",
    "layer_replication",
];
/// Initialisations that also change the weights of the base model.
const CHANGE_BASE: [&str; 3] = ["pissa", "olora", "corda"];

/// Reads adapter_config.json in `folder`. Errors: 66 when it is missing; 65 when it is damaged or has options that are
/// not supported.
pub fn read(folder: &Path) -> Result<Lora> {
    let path = folder.join(CONFIG);
    let bad = |what: String| Error::data(format!("{}: {what}", path.display()));
    let config: Config = serde_json::from_slice(&small::read(&path, MAX_BYTES)?)
        .map_err(|cause| bad(cause.to_string()))?;
    if config.peft_type != "LORA" {
        return Err(bad(format!("peft_type {:?}; only \"LORA\" is known", config.peft_type)));
    }
    let is_off = |value: &Value| match value {
        Value::Null | Value::Bool(false) => true,
        Value::Object(fields) => fields.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::String(text) => text == "none",
        _ => false,
    };
    let changes_base = |value: &Value| {
        let text = value.as_str().unwrap_or_default();
        CHANGE_BASE.iter().any(|start| text.starts_with(start))
    };
    let is_refused = |(key, value): &(&String, &Value)| match key.as_str() {
        "init_lora_weights" => changes_base(value),
        key if key.starts_with("use_") || key.ends_with("_config") => !is_off(value),
        key => REFUSED.contains(&key) && !is_off(value),
    };
    if let Some((key, value)) = config.others.iter().find(is_refused) {
        return Err(bad(format!("{key} {value} is not supported")));
    }
    let targets = serde_json::from_value(config.target_modules.clone())
        .map_err(|_| bad("target_modules is not a list of names".into()))?;
    let Config { r, lora_alpha: alpha, lora_dropout: dropout, .. } = config;
    Ok(Lora { r, alpha, dropout, targets })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_change_the_formula_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let lora = Lora { r: 4, alpha: 6.0, dropout: 0.1, targets: vec!["query".into()] };
        let own = config(&lora, &lora.targets, "SEQ_CLS", "", &["classifier"]);
        let read = |config: &Value| {
            std::fs::write(folder.path().join(CONFIG), config.to_string()).unwrap();
            super::read(folder.path()).map_err(|error| error.to_string())
        };
        assert_eq!(read(&own), Ok(lora.clone()));
        let with = |key: &str, value: Value| {
            let mut config = own.clone();
            config[key] = value;
            read(&config)
        };
        for (key, value) in [
            ("use_dora", json!(false)),
            ("rank_pattern", json!({})),
            ("loftq_config", json!({})),
            ("eva_config", json!(null)),
            ("megatron_core", json!("megatron.core")),
            ("init_lora_weights", json!("gaussian")),
        ] {
            assert_eq!(with(key, value), Ok(lora.clone()), "{key}");
        }
        for (key, value) in [
            ("use_rslora", json!(true)),
            ("bias", json!("all")),
            ("rank_pattern", json!({"query": 2})),
            ("arrow_config", json!({"top_k": 1})),
            ("init_lora_weights", json!("pissa_niter_4")),
            ("target_modules", json!("all-linear")),
            ("peft_type", json!("IA3")),
        ] {
            assert!(with(key, value).unwrap_err().contains(key), "{key}");
        }
    }
}
