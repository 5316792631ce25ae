//! Encoders in folders as transformers writes them: config.json, and model.safetensors or pytorch_model.bin, each in one
//! or several files.

use super::encoder::{EncoderConfig, Kind};
use data::text::Tokenizer;
use learn::adapt::peft;
use learn::foreign;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use unix::{Error, Result, small};

/// Maximum size of config.json in bytes.
const MAX_BYTES: u64 = 16 << 20;
/// Files of weights, by preference.
const WEIGHTS: [&str; 4] = [
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
];
/// Files of tokenizers.
const TOKENIZERS: [&str; 3] = ["tokenizer.json", "vocab.txt", "vocab.json"];
/// How the names of the tensors of heads begin.
const HEADS: [&str; 3] = ["classifier", "pre_classifier", "qa_outputs"];

/// What is read from config.json; keys that are missing have the defaults of transformers.
#[derive(Deserialize)]
struct Config {
    model_type: Kind,
    vocab_size: usize,
    #[serde(alias = "activation", default = "gelu")]
    hidden_act: String,
    #[serde(default)]
    position_embedding_type: Option<String>,
    #[serde(default)]
    is_decoder: bool,
    #[serde(alias = "dim")]
    hidden_size: usize,
    #[serde(alias = "n_layers")]
    num_hidden_layers: usize,
    #[serde(alias = "n_heads")]
    num_attention_heads: usize,
    #[serde(alias = "hidden_dim")]
    intermediate_size: usize,
    max_position_embeddings: usize,
    #[serde(default = "two")]
    type_vocab_size: usize,
    #[serde(default = "epsilon")]
    layer_norm_eps: f64,
    #[serde(alias = "dropout", default = "tenth")]
    hidden_dropout_prob: f64,
    #[serde(alias = "attention_dropout", default = "tenth")]
    attention_probs_dropout_prob: f64,
}

fn gelu() -> String {
    "gelu".into()
}

fn two() -> usize {
    2
}

fn epsilon() -> f64 {
    1e-12
}

fn tenth() -> f64 {
    0.1
}

/// What to start training from.
#[derive(Clone, Debug, Default)]
pub struct Pretrained {
    /// The folder of the encoder.
    pub folder: PathBuf,
    /// Whether the head in the folder is used, too.
    pub head: bool,
    /// The folder of a LoRA adapter of PEFT for this model.
    pub adapter: Option<PathBuf>,
}

impl Pretrained {
    /// The configuration that starts training from it: `model.encoder` with its shape, `model.lora` with that of the
    /// adapter, and `init` with the rules that map the names of the tensors. Without `head` it starts with random
    /// values.
    ///
    /// Errors: 66 when config.json or the weights are missing; 65 when they are damaged, of a model that is not
    /// supported, or without the head.
    pub fn configuration(&self) -> Result<Value> {
        let folder = &self.folder;
        let mut encoder = encoder(folder)?;
        if TOKENIZERS.iter().any(|name| folder.join(name).exists()) {
            encoder.tokenizer_hash = Some(Tokenizer::open(folder, usize::MAX)?.hash().into());
        }
        let weights = WEIGHTS.iter().map(|name| folder.join(name)).find(|path| path.is_file());
        let weights = weights.ok_or_else(|| {
            Error::open(folder, format!("it has neither {} nor {}", WEIGHTS[0], WEIGHTS[2]))
        })?;
        let file = foreign::open(&weights)?;
        let names: Vec<&str> = file.tensors().iter().map(|entry| entry.name.as_str()).collect();
        if self.head && !names.iter().any(|name| is_of_head(name)) {
            let text = format!("{}: it has no head that --head could use", weights.display());
            return Err(Error::data(text));
        }
        let rules = rules(encoder.prefix(), &names, self.head);
        let mut init = json!({"from": weights.to_string_lossy(), "names": rules});
        let mut model = json!({"encoder": encoder});
        if let Some(folder) = &self.adapter {
            model["lora"] = serde_json::to_value(peft::read(folder)?).map_err(Error::bug)?;
            init["adapter"] = json!(folder.join(peft::WEIGHTS).to_string_lossy());
        }
        Ok(json!({"model": model, "init": init}))
    }
}

/// The shape of the encoder in a folder.
fn encoder(folder: &Path) -> Result<EncoderConfig> {
    let path = folder.join("config.json");
    let bad = |what: String| Error::data(format!("{}: {what}", path.display()));
    let config: Map<String, Value> = serde_json::from_slice(&small::read(&path, MAX_BYTES)?)
        .map_err(|cause| bad(cause.to_string()))?;
    let of = |key: &str| config.get(key).cloned().unwrap_or_default();
    if serde_json::from_value::<Kind>(of("model_type")).is_err() {
        return Err(bad(format!(
            "model_type {}; known are bert, roberta, xlm-roberta and distilbert",
            of("model_type")
        )));
    }
    let config: Config =
        serde_json::from_value(config.into()).map_err(|cause| bad(cause.to_string()))?;
    if config.hidden_act != "gelu" {
        return Err(bad(format!("hidden_act {:?}; only \"gelu\" is known", config.hidden_act)));
    }
    let positions = config.position_embedding_type.as_deref().unwrap_or("absolute");
    if positions != "absolute" || config.is_decoder {
        return Err(bad("relative positions and decoders are not known".into()));
    }
    let encoder = EncoderConfig {
        model_type: config.model_type,
        vocab_size: Some(config.vocab_size),
        tokenizer_hash: None,
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
    if let Some((key, text)) = encoder.violations(true).into_iter().next() {
        return Err(bad(format!("{key}: {text}")));
    }
    Ok(encoder)
}

/// Whether a tensor of this name belongs to a head.
fn is_of_head(name: &str) -> bool {
    HEADS.iter().any(|head| name.strip_prefix(head).is_some_and(|rest| rest.starts_with('.')))
}

/// The rules for a file with these tensors.
fn rules(prefix: &str, names: &[&str], head: bool) -> Value {
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
        let is_of_encoder = rest.is_some_and(|rest| {
            let parts = ["embeddings.", "encoder.", "transformer.", "pooler."];
            parts.iter().any(|part| rest.starts_with(part)) && !rest.ends_with("position_ids")
        });
        is_of_encoder || (head && is_of_head(name))
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
    let mut keep: Vec<String> = Vec::new();
    if !head {
        keep.extend(HEADS.map(|head| format!("{head}.*")));
    }
    // Task joint has a second encoder, whose states a layer adds to.
    keep.push("fusion.*".into());
    let has_pooler = names.iter().any(|name| name.starts_with(&format!("{given}pooler.")));
    if !has_pooler {
        keep.push(pooler.clone());
    }
    // RoBERTa's head has a layer of its own; with a mean or maximum over tokens, BERT's has none.
    let optional: Vec<String> = has_pooler.then_some(pooler).into_iter().collect();
    let copy = ["context.*=*"];
    json!({"map": map, "ignore": ignore, "keep": keep, "optional": optional, "copy": copy})
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
            rules("bert", &old, false),
            json!({
                "map": ["bert.*.gamma=bert.*.weight", "bert.*.beta=bert.*.bias"],
                "ignore": ["cls.*"], "keep": ["classifier.*", "pre_classifier.*", "qa_outputs.*", "fusion.*"],
                "optional": ["bert.pooler.*"], "copy": ["context.*=*"],
            })
        );
        let alone = ["embeddings.position_ids", "embeddings.LayerNorm.weight", "encoder.layer.0.x"];
        assert_eq!(
            rules("roberta", &alone, false),
            json!({
                "map": ["*=roberta.*"], "ignore": ["*position_ids"],
                "keep": ["classifier.*", "pre_classifier.*", "qa_outputs.*", "fusion.*", "roberta.pooler.*"],
                "optional": [], "copy": ["context.*=*"],
            })
        );
    }
}
