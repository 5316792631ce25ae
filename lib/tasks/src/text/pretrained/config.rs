//! config.json of transformers, key by key.

use crate::common::transformers::{
    ENCODERS, UNSUPPORTED, WITHOUT_EFFECT, config_of, model_type, require_nf4,
};
use crate::text::encoder::{Architecture, EncoderConfig};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use unix::foreign_keys::{Key, Keys, check};
use unix::{Error, Result};

/// The keys of every kind of encoder.
const COMMON: &Keys = &[
    ("model_type", Key::Read),
    ("architectures", Key::Read),
    ("vocab_size", Key::Read),
    ("max_position_embeddings", Key::Read),
    ("pad_token_id", Key::Read),
    ("id2label", Key::Read),
    ("label2id", Key::Read),
    ("num_labels", Key::Read),
    ("problem_type", Key::Read),
    ("tokenizer_class", Key::Read),
    ("position_embedding_type", Key::Only("\"absolute\"")),
    ("is_decoder", Key::Off),
    ("quantization_config", Key::Read),
    ("initializer_range", Key::NoEffect),
    ("tie_word_embeddings", Key::NoEffect),
];

/// Those of BERT, RoBERTa and XLM-R.
const OF_BERT: &Keys = &[
    ("hidden_size", Key::Read),
    ("num_hidden_layers", Key::Read),
    ("num_attention_heads", Key::Read),
    ("intermediate_size", Key::Read),
    ("type_vocab_size", Key::Read),
    ("layer_norm_eps", Key::Read),
    ("hidden_dropout_prob", Key::Read),
    ("attention_probs_dropout_prob", Key::Read),
    ("classifier_dropout", Key::Read),
    ("hidden_act", Key::Only("\"gelu\"")),
    ("directionality", Key::Only("\"bidi\"")),
    ("pooler_fc_size", Key::NoEffect),
    ("pooler_num_attention_heads", Key::NoEffect),
    ("pooler_num_fc_layers", Key::NoEffect),
    ("pooler_size_per_head", Key::NoEffect),
    ("pooler_type", Key::NoEffect),
];

/// Those of DistilBERT.
const OF_DISTILBERT: &Keys = &[
    ("dim", Key::Read),
    ("hidden_size", Key::Read),
    ("n_layers", Key::Read),
    ("num_hidden_layers", Key::Read),
    ("n_heads", Key::Read),
    ("num_attention_heads", Key::Read),
    ("hidden_dim", Key::Read),
    ("dropout", Key::Read),
    ("attention_dropout", Key::Read),
    ("seq_classif_dropout", Key::Read),
    ("qa_dropout", Key::Read),
    ("activation", Key::Only("\"gelu\"")),
    ("layer_norm_eps", Key::NoEffect),
    ("sinusoidal_pos_embds", Key::NoEffect),
    ("tie_weights_", Key::NoEffect),
];

/// A config.json whose keys were checked.
pub(super) struct Config {
    path: PathBuf,
    keys: Map<String, Value>,
    kind: Architecture,
}

impl Config {
    /// Reads config.json in `folder`. Errors: 66 when it is missing; 65 when it is damaged, or has settings that are
    /// not supported.
    pub fn read(folder: &Path) -> Result<Self> {
        let (path, keys) = config_of(folder)?;
        let kind = model_type(&path, &keys, &ENCODERS)?;
        let kind: Architecture = serde_json::from_value(kind.into()).map_err(Error::bug)?;
        let own = if kind == Architecture::Distilbert { OF_DISTILBERT } else { OF_BERT };
        check(&path, &keys, &[own, COMMON, UNSUPPORTED, WITHOUT_EFFECT].concat())?;
        let config = Self { path, keys, kind };
        require_nf4(&config.keys).map_err(|what| config.error(&what))?;
        Ok(config)
    }

    pub fn error(&self, what: &str) -> Error {
        Error::data(format!("{}: {what}", self.path.display()))
    }

    fn get(&self, key: &str) -> Option<&Value> {
        self.keys.get(key).filter(|value| !value.is_null())
    }

    /// The size stored under any of these keys, or `default`. Errors: 65 for a value that is not a size, and for keys
    /// that differ.
    fn size(&self, keys: &[&str], default: usize) -> Result<usize> {
        let mut found = None;
        for key in keys {
            let Some(value) = self.get(key) else { continue };
            let size = value.as_u64().and_then(|size| usize::try_from(size).ok());
            let size = size.ok_or_else(|| self.error(&format!("{key} {value} is not a size")))?;
            if found.is_some_and(|found| found != size) {
                return Err(self.error(&format!("{} and {key} differ", keys[0])));
            }
            found = Some(size);
        }
        Ok(found.unwrap_or(default))
    }

    fn number(&self, key: &str, default: f64) -> Result<f64> {
        let Some(value) = self.get(key) else { return Ok(default) };
        value.as_f64().ok_or_else(|| self.error(&format!("{key} {value} is not a number")))
    }

    /// The shape of the encoder; keys that are missing have the defaults of transformers.
    pub fn encoder(&self) -> Result<EncoderConfig> {
        let is_roberta = matches!(self.kind, Architecture::Roberta | Architecture::XlmRoberta);
        let is_distil = self.kind == Architecture::Distilbert;
        let vocabulary = if self.kind == Architecture::Roberta { 50265 } else { 30522 };
        let keys = |bert: &'static str, distil: &'static str| match is_distil {
            true => vec![distil, bert],
            false => vec![bert],
        };
        let (hidden, attention) = match is_distil {
            true => ("dropout", "attention_dropout"),
            false => ("hidden_dropout_prob", "attention_probs_dropout_prob"),
        };
        let intermediate = if is_distil { "hidden_dim" } else { "intermediate_size" };
        let layers = if is_distil { 6 } else { 12 };
        let encoder = EncoderConfig {
            model_type: self.kind,
            vocab_size: Some(self.size(&["vocab_size"], vocabulary)?),
            tokenizer_hash: None,
            hidden_size: self.size(&keys("hidden_size", "dim"), 768)?,
            num_hidden_layers: self.size(&keys("num_hidden_layers", "n_layers"), layers)?,
            num_attention_heads: self.size(&keys("num_attention_heads", "n_heads"), 12)?,
            intermediate_size: self.size(&[intermediate], 3072)?,
            max_position_embeddings: self.size(&["max_position_embeddings"], 512)?,
            type_vocab_size: self.size(&["type_vocab_size"], 2)?,
            pad_token_id: if is_roberta { Some(self.size(&["pad_token_id"], 1)?) } else { None },
            layer_norm_eps: if is_distil { 1e-12 } else { self.number("layer_norm_eps", 1e-12)? },
            hidden_dropout_prob: self.number(hidden, 0.1)?,
            attention_probs_dropout_prob: self.number(attention, 0.1)?,
            freeze_layers: 0,
        };
        match encoder.violations(true).into_iter().next() {
            Some((key, text)) => Err(self.error(&format!("{key}: {text}"))),
            None => Ok(encoder),
        }
    }

    /// The section `model.head` for a span head.
    pub fn span_head(&self) -> Result<Value> {
        self.require_architecture("ForQuestionAnswering")?;
        let dropout = if self.kind == Architecture::Distilbert {
            self.number("qa_dropout", 0.1)?
        } else {
            0.0
        };
        Ok(json!({"dropout": dropout}))
    }

    /// The section `model.head` for a head of `classes` classes.
    pub fn class_head(&self, classes: usize) -> Result<Value> {
        self.require_architecture("ForSequenceClassification")?;
        let dropout = match self.kind {
            Architecture::Distilbert => self.number("seq_classif_dropout", 0.2)?,
            _ => self.number("classifier_dropout", self.number("hidden_dropout_prob", 0.1)?)?,
        };
        let multi_label = match self.get("problem_type").and_then(Value::as_str) {
            Some("multi_label_classification") => Some(true),
            Some("single_label_classification") => Some(false),
            None if classes > 1 => None,
            Some("regression") | None => {
                return Err(self.error("the head is a regression head, which is not supported"));
            }
            Some(other) => {
                return Err(self.error(&format!("problem_type {other:?} is not known")));
            }
        };
        let labels = self.labels(classes)?;
        Ok(json!({"labels": labels, "multi_label": multi_label, "dropout": dropout}))
    }

    /// Errors: 65 when config.json names a different kind of head than the tensors do, e.g. one for token
    /// classification.
    fn require_architecture(&self, ending: &str) -> Result<()> {
        let names = self.get("architectures").and_then(Value::as_array);
        let name = names.and_then(|names| names.first()).and_then(Value::as_str);
        match name {
            Some(name) if !name.ends_with(ending) => Err(self.error(&format!(
                "its head is that of {name}; --head supports only architectures that end in ForSequenceClassification or \
                 ForQuestionAnswering"
            ))),
            _ => Ok(()),
        }
    }

    /// The names of the classes of the head, in order. Errors: 65 when their number is not `classes`.
    fn labels(&self, classes: usize) -> Result<Vec<String>> {
        let count = self.size(&["num_labels"], classes)?;
        let Some(names) = self.get("id2label") else {
            let names = (0..classes).map(|class| format!("LABEL_{class}"));
            return if count == classes { Ok(names.collect()) } else { Err(self.differ(classes)) };
        };
        let names = names.as_object().ok_or_else(|| self.error("id2label is not a mapping"))?;
        let name = |class: usize| match names.get(&class.to_string())? {
            Value::String(name) => Some(name.clone()),
            Value::Number(name) => Some(name.to_string()),
            _ => None,
        };
        let labels: Option<Vec<String>> = (0..classes).map(name).collect();
        let labels = labels.filter(|labels| labels.len() == names.len() && count == classes);
        let labels = labels.ok_or_else(|| self.differ(classes))?;
        for (class, label) in labels.iter().enumerate() {
            let other = self.get("label2id").and_then(|ids| ids.get(label));
            let differs = other.is_some_and(|id| id.as_u64() != Some(class as u64));
            if differs || labels[..class].contains(label) {
                return Err(self.error(&format!(
                    "id2label and label2id contradict each other or name {label} twice"
                )));
            }
        }
        Ok(labels)
    }

    fn differ(&self, classes: usize) -> Error {
        self.error(&format!(
            "id2label or num_labels does not match the {classes} classes of the head in the weights"
        ))
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_manual_lists_every_key() {
        let manual = include_str!("../../../../../man/longhaul-files.5");
        let common = [super::COMMON, super::UNSUPPORTED, super::WITHOUT_EFFECT];
        for (key, _) in [common.concat(), [super::OF_BERT, super::OF_DISTILBERT].concat()].concat()
        {
            assert!(manual.contains(&format!(".Li {key}")), "{key}");
        }
    }
}
