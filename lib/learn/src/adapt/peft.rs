//! PEFT's file formats: `adapter_config.json`, and `adapter_model.safetensors` with A, B and the fully trained layers,
//! whose names start with `base_model.model.`.

use super::{Lora, Targets};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::path::Path;
use unix::foreign_keys::{Key, Keys, check};
use unix::{Error, Result, small};

/// Name of the configuration file.
pub const CONFIG: &str = "adapter_config.json";
/// Name of the weight file.
pub const WEIGHTS: &str = "adapter_model.safetensors";
/// Prefix that PEFT adds to parameter names.
pub const PREFIX: &str = "base_model.model.";
/// Maximum size of the configuration in bytes.
const MAX_BYTES: u64 = 1 << 20;

/// Creates the content of adapter_config.json for the layers `targets` of the model in the folder `base`. `task` is
/// PEFT's `task_type`; `saved` are the fully trained modules, PEFT's `modules_to_save`.
pub fn config(lora: &Lora, targets: &Targets, task: &str, base: &str, saved: &[&str]) -> Value {
    json!({
        "peft_type": "LORA",
        "task_type": task,
        "base_model_name_or_path": base,
        "inference_mode": true,
        "r": lora.r,
        "lora_alpha": lora.alpha,
        "use_rslora": lora.rslora,
        "lora_dropout": lora.dropout,
        "target_modules": targets,
        "modules_to_save": if saved.is_empty() { Value::Null } else { json!(saved) },
        "bias": "none",
        "fan_in_fan_out": false,
        "init_lora_weights": true,
    })
}

/// Keys of adapter_config.json that affect the result.
#[derive(Deserialize)]
struct Config {
    peft_type: String,
    r: usize,
    lora_alpha: f64,
    #[serde(default)]
    lora_dropout: f64,
    target_modules: Value,
    #[serde(default)]
    use_rslora: Option<bool>,
    #[serde(default)]
    modules_to_save: Option<Vec<String>>,
    #[serde(default)]
    init_lora_weights: Value,
}

/// All known keys of adapter_config.json.
const KEYS: &Keys = &[
    ("peft_type", Key::Read),
    ("r", Key::Read),
    ("lora_alpha", Key::Read),
    ("lora_dropout", Key::Read),
    ("target_modules", Key::Read),
    ("modules_to_save", Key::Read),
    ("init_lora_weights", Key::Read),
    ("bias", Key::Off),
    ("lora_bias", Key::Off),
    ("fan_in_fan_out", Key::Off),
    ("rank_pattern", Key::Off),
    ("alpha_pattern", Key::Off),
    ("exclude_modules", Key::Off),
    ("layers_to_transform", Key::Off),
    ("layers_pattern", Key::Off),
    ("target_parameters", Key::Off),
    ("trainable_token_indices", Key::Off),
    ("layer_replication", Key::Off),
    ("alora_invocation_tokens", Key::Off),
    ("ensure_weight_tying", Key::Off),
    ("use_rslora", Key::Read),
    ("use_dora", Key::Off),
    ("use_qalora", Key::Off),
    ("use_bdlora", Key::Off),
    ("loftq_config", Key::Off),
    ("eva_config", Key::Off),
    ("corda_config", Key::Off),
    ("lora_ga_config", Key::Off),
    ("velora_config", Key::Off),
    ("monteclora_config", Key::Off),
    ("arrow_config", Key::Off),
    ("kasa_config", Key::Off),
    ("megatron_config", Key::Off),
    ("megatron_core", Key::NoEffect),
    ("qalora_group_size", Key::NoEffect),
    ("runtime_config", Key::NoEffect),
    ("task_type", Key::NoEffect),
    ("base_model_name_or_path", Key::NoEffect),
    ("revision", Key::NoEffect),
    ("inference_mode", Key::NoEffect),
    ("auto_mapping", Key::NoEffect),
    ("peft_version", Key::NoEffect),
];
/// Initialisations that also change the weights of the base model.
const CHANGE_BASE: [&str; 5] = ["pissa", "olora", "corda", "loftq", "lora_ga"];
/// Modules that may be fully trained, matched by suffix as in PEFT.
const SAVED: [&str; 4] = ["classifier", "score", "pooler", "qa_outputs"];

/// Reads adapter_config.json in `folder`. Errors: 66 when it is missing; 65 when it is damaged or has unsupported
/// options.
pub fn read(folder: &Path) -> Result<Lora> {
    let path = folder.join(CONFIG);
    let bad = |what: String| Error::data(format!("{}: {what}", path.display()));
    let file: Map<String, Value> = serde_json::from_slice(&small::read(&path, MAX_BYTES)?)
        .map_err(|cause| bad(cause.to_string()))?;
    check(&path, &file, KEYS)?;
    let config: Config =
        serde_json::from_value(file.into()).map_err(|cause| bad(cause.to_string()))?;
    if config.peft_type != "LORA" {
        return Err(bad(format!("peft_type {:?}; only \"LORA\" is known", config.peft_type)));
    }
    let start = config.init_lora_weights.as_str().unwrap_or_default();
    if CHANGE_BASE.iter().any(|name| start.starts_with(name)) {
        return Err(bad(format!("init_lora_weights {start} is not supported")));
    }
    let mut targets: Targets =
        serde_json::from_value(config.target_modules.clone()).map_err(|_| {
            bad(format!(
                "target_modules {} is neither a list of names nor a regular expression",
                config.target_modules
            ))
        })?;
    if let Targets::Pattern(pattern) = &targets
        && let Err(what) = Targets::expression(pattern)
    {
        return Err(bad(format!(
            "target_modules {what} here: look-around and references to groups are not supported"
        )));
    }
    let saved = config.modules_to_save.unwrap_or_default();
    if let Some(other) = saved.iter().find(|module| !SAVED.iter().any(|own| module.ends_with(own)))
    {
        return Err(bad(format!(
            "modules_to_save {other}: only the head and the pooler can be trained beside LoRA"
        )));
    }
    // PEFT adapts no layer inside a fully trained module, but "all-linear" also lists the layers of RoBERTa's head.
    if let Targets::Names(names) = &mut targets {
        names.retain(|target| {
            let is_inside = |module: &String| target.starts_with(&format!("{module}."));
            !saved.iter().any(is_inside)
        });
    }
    let pooler = saved.iter().any(|module| module.ends_with("pooler"));
    let (r, alpha, dropout) = (config.r, config.lora_alpha, config.lora_dropout);
    let rslora = config.use_rslora.unwrap_or(false);
    Ok(Lora { r, alpha, rslora, dropout, targets, pooler })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manual_lists_every_key() {
        let manual = include_str!("../../../../man/longhaul-files.5");
        for (key, _) in KEYS {
            assert!(manual.contains(&format!(".Li {key}")), "{key}");
        }
    }

    #[test]
    fn a_pooler_is_trained_if_the_file_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let targets = Targets::Pattern(".*query".into());
        let lora = Lora { r: 4, alpha: 6.0, rslora: true, dropout: 0.1, targets, pooler: true };
        let own = config(&lora, &lora.targets, "SEQ_CLS", "", &["classifier", "pooler"]);
        std::fs::write(folder.path().join(CONFIG), own.to_string()).unwrap();
        assert_eq!(read(folder.path()).unwrap(), lora);
    }

    #[test]
    fn layers_of_modules_that_are_trained_completely_are_no_targets() {
        let folder = tempfile::tempdir().unwrap();
        let targets = ["classifier.dense".to_string(), "query".into(), "classifiers.dense".into()];
        let names = targets.to_vec().into();
        let lora =
            Lora { r: 4, alpha: 6.0, rslora: false, dropout: 0.1, targets: names, pooler: false };
        let own = config(&lora, &lora.targets, "SEQ_CLS", "", &["classifier", "score"]);
        std::fs::write(folder.path().join(CONFIG), own.to_string()).unwrap();
        assert_eq!(read(folder.path()).unwrap().targets.all(), &targets[1..]);
    }

    #[test]
    fn options_that_change_the_formula_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let targets = vec!["query".to_string()].into();
        let lora = Lora { r: 4, alpha: 6.0, rslora: false, dropout: 0.1, targets, pooler: false };
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
            ("layers_to_transform", json!(null)),
            ("init_lora_weights", json!("gaussian")),
        ] {
            assert_eq!(with(key, value), Ok(lora.clone()), "{key}");
        }
        for (key, value) in [
            ("bias", json!("all")),
            ("rank_pattern", json!({"query": 2})),
            ("arrow_config", json!({"top_k": 1})),
            ("init_lora_weights", json!("pissa_niter_4")),
            ("target_modules", json!(7)),
            ("target_modules", json!("(?!.*pooler).*dense")),
            ("layers_to_transform", json!([1])),
            ("exclude_modules", json!(["key"])),
            ("modules_to_save", json!(["embeddings"])),
            ("a_key_of_tomorrow", json!(1)),
            ("peft_type", json!("IA3")),
        ] {
            assert!(with(key, value).unwrap_err().contains(key), "{key}");
        }
    }
}
