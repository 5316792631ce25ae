//! The config.json of an exported model.

use crate::common::transformers::VISION_LANGUAGE;
use crate::language::config::{Architecture, DecoderConfig};
use crate::language::sft::SftModel;
use data::text::Tokenizer;
use serde_json::{Map, Value, json};
use unix::Result;

/// The special tokens that transformers needs.
pub(super) struct Ids<'a> {
    pub(super) bos: Option<i32>,
    /// Those that end an answer.
    pub(super) stops: &'a [i32],
    pub(super) padding: i32,
    /// Those around images and of videos, by key.
    pub(super) images: Vec<(&'static str, i32)>,
}

/// The tokens around images and of videos, by their keys in config.json, as far as a tokenizer has those of Qwen. Errors: 65 for a
/// damaged tokenizer.
pub(super) fn image_tokens(tokenizer: &Tokenizer) -> Result<Vec<(&'static str, i32)>> {
    let mut found = Vec::new();
    for (key, name) in [
        ("video_token_id", "<|video_pad|>"),
        ("vision_end_token_id", "<|vision_end|>"),
        ("vision_start_token_id", "<|vision_start|>"),
    ] {
        if let [id] = tokenizer.encode_rendered(name)?.ids[..]
            && tokenizer.is_added(id)
        {
            found.push((key, id));
        }
    }
    Ok(found)
}

impl Ids<'_> {
    /// The keys of generation_config.json, which config.json has, too.
    pub(super) fn keys(&self) -> Map<String, Value> {
        let ends = match self.stops {
            [one] => json!(one),
            several => json!(several),
        };
        Map::from_iter([
            ("bos_token_id".to_string(), json!(self.bos)),
            ("eos_token_id".into(), ends),
            ("pad_token_id".into(), json!(self.padding)),
        ])
    }
}

/// The content of config.json, as transformers 5 writes it.
pub(super) fn config_of(config: &SftModel, ids: &Ids) -> Value {
    let decoder = &config.decoder;
    let name = match (&config.vision, decoder.model_type) {
        (Some(_), _) => "Qwen3VLForConditionalGeneration",
        (None, Architecture::Qwen3) => "Qwen3ForCausalLM",
        (None, Architecture::Qwen2) => "Qwen2ForCausalLM",
        (None, Architecture::Llama) => "LlamaForCausalLM",
    };
    let mut all = of_text(decoder, ids);
    if let Some(vision) = &config.vision {
        for key in ["tie_word_embeddings", "layer_types", "use_sliding_window"] {
            all.remove(key);
        }
        all.insert("model_type".into(), json!("qwen3_vl_text"));
        if let Some(Value::Object(rope)) = all.get_mut("rope_parameters") {
            rope.insert("mrope_interleaved".into(), json!(true));
            rope.insert("mrope_section".into(), json!(vision.mrope_section));
        }
        let mut tower = without_nulls(serde_json::to_value(vision).unwrap_or_default());
        tower.retain(|key, _| key != "mrope_section" && key != "image_token_id");
        tower.insert("model_type".into(), json!("qwen3_vl_vision"));
        tower.insert("hidden_act".into(), json!("gelu_pytorch_tanh"));
        tower.insert("in_channels".into(), json!(3));
        let images = ids.images.iter().map(|(key, id)| (key.to_string(), json!(id)));
        all = Map::from_iter([
            ("model_type".to_string(), json!(VISION_LANGUAGE)),
            ("text_config".into(), all.into()),
            ("vision_config".into(), tower.into()),
            ("image_token_id".into(), json!(vision.image_token_id)),
            ("tie_word_embeddings".into(), json!(decoder.tie_word_embeddings)),
        ]);
        all.extend(images);
    }
    all.insert("architectures".into(), json!([name]));
    all.insert("dtype".into(), json!("float32"));
    all.into()
}

/// The keys of a decoder.
fn of_text(config: &DecoderConfig, ids: &Ids) -> Map<String, Value> {
    let kind = config.model_type;
    let mut all = Map::from_iter([
        ("hidden_act".to_string(), json!("silu")),
        ("use_cache".into(), json!(true)),
    ]);
    all.extend(ids.keys());
    // The keys of the configuration are those of config.json, but some exist only in some kinds of models.
    let own = serde_json::to_value(config).unwrap_or_default();
    let has = |key: &str| match key {
        "attention_bias" => kind != Architecture::Qwen2,
        "mlp_bias" => kind == Architecture::Llama,
        _ => true,
    };
    all.extend(without_nulls(own).into_iter().filter(|(key, _)| has(key)));
    all.insert("num_key_value_heads".into(), config.kv_heads().into());
    if kind != Architecture::Llama {
        let types = vec!["full_attention"; config.num_hidden_layers];
        all.insert("layer_types".into(), json!(types));
        all.insert("use_sliding_window".into(), json!(false));
    }
    if kind == Architecture::Qwen3 {
        all.insert("head_dim".into(), config.head_size().into());
    }
    if let Some(rope) = all.get_mut("rope_parameters") {
        *rope = without_nulls(rope.take()).into();
    }
    all
}

/// The keys of an object whose values are not null.
fn without_nulls(object: Value) -> Map<String, Value> {
    let Value::Object(mut keys) = object else { return Map::new() };
    keys.retain(|_, value| !value.is_null());
    keys
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::language::vision::VisionConfig;

    /// What is written for a model, which is read as that model.
    fn written(config: &SftModel, ids: &Ids) -> Value {
        let (folder, found) = (tempfile::tempdir().unwrap(), config_of(config, ids));
        std::fs::write(folder.path().join("config.json"), found.to_string()).unwrap();
        assert_eq!(SftModel::read(folder.path()).unwrap(), *config);
        found
    }

    /// config.json of each kind is read as what was written.
    #[test]
    fn configurations_are_read_back() {
        use crate::language::RopeParameters;
        let ids =
            Ids { bos: None, stops: &[7, 3], padding: 7, images: vec![("video_token_id", 9)] };
        let yarn = RopeParameters::Yarn {
            rope_theta: 1e5,
            factor: 2.5,
            original_max_position_embeddings: 64,
            attention_factor: None,
            beta_fast: 32.0,
            beta_slow: 1.0,
            mscale: None,
            mscale_all_dim: None,
            truncate: true,
        };
        for model_type in [Architecture::Qwen3, Architecture::Qwen2, Architecture::Llama] {
            for (rope_parameters, tied) in
                [(RopeParameters::Default { rope_theta: 1e4 }, true), (yarn.clone(), false)]
            {
                let config = DecoderConfig {
                    model_type,
                    rope_parameters,
                    tie_word_embeddings: tied,
                    attention_bias: !tied && model_type != Architecture::Qwen2,
                    mlp_bias: !tied && model_type == Architecture::Llama,
                    attention_dropout: 0.125,
                    ..DecoderConfig::default()
                };
                let mut config = SftModel { decoder: config, ..SftModel::default() };
                let written = written(&config, &ids);
                assert_eq!(written["eos_token_id"], json!([7, 3]));
                assert_eq!(written.get("video_token_id"), None);
                if model_type == Architecture::Qwen3 {
                    let hidden_size = config.decoder.hidden_size;
                    config.vision = Some(VisionConfig {
                        out_hidden_size: hidden_size,
                        mrope_section: [32, 20, 12],
                        image_token_id: 8,
                        ..VisionConfig::default()
                    });
                    let written = self::written(&config, &ids);
                    assert_eq!(written["text_config"]["eos_token_id"], json!([7, 3]));
                    assert_eq!(written["video_token_id"], json!(9));
                }
            }
        }
    }
}
