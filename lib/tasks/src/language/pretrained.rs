//! Pretrained decoders in folders of transformers.

use super::config::{Architecture, DecoderConfig};
use crate::common::transformers::{Pretrained, adapter, has_tokenizer};
use data::text::Tokenizer;
use data::text::chat::ChatTemplate;
use learn::adapt::peft;
use learn::foreign::{self, TensorEntry, WeightFile};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::path::Path;
use unix::text::{matches, quote};
use unix::{Error, Exit, Result, warn};

/// The matrices of embeddings and head.
const EMBEDDINGS: &str = "model.embed_tokens.weight";
const HEAD: &str = "lm_head.weight";
/// The part of a name that all layers share.
const LAYERS: &str = "model.layers";
/// What old versions of transformers also stored: it follows from config.json.
const FREQUENCIES: &str = "*.rotary_emb.inv_freq";

/// The configuration that starts training from these files: `model.decoder` with the shape of the decoder, `model.lora` with
/// that of the adapter, and `init`. Parameters have the names of the file.
///
/// Errors: 2 with `head`; 66 when config.json or the weights are missing; 65 when they are damaged, of a model that is not
/// supported, or contradict each other or the tokenizer.
pub(crate) fn configuration(request: &Pretrained) -> Result<Value> {
    let folder = &request.folder;
    if request.head {
        return Err(Error::usage(format!(
            "--head: {} has a decoder, whose head is always used; leave the option out",
            folder.display()
        )));
    }
    let config = DecoderConfig::read(folder)?;
    let hash = has_tokenizer(folder).then(|| tokenizer_hash(folder, &config)).transpose()?;
    let weights = foreign::folder_weights(folder)?;
    let ignored = ignored(&config, folder, &foreign::open(&weights)?)?;
    let mut init = json!({"from": weights.to_string_lossy()});
    if !ignored.is_empty() {
        init["names"] = json!({"ignore": ignored});
    }
    let mut model = json!({"decoder": config, "tokenizer_hash": hash});
    if let Some(folder) = &request.adapter {
        let lora = peft::read(folder)?;
        let file = folder.join(peft::WEIGHTS);
        let layers: Vec<String> = parameters(&config)
            .into_iter()
            .filter_map(|(name, shape)| layer(name, &shape))
            .collect();
        let is_layer = |module: &str| layers.iter().any(|own| own == module);
        adapter::require(&lora, &file, LAYERS, is_layer)?;
        model["lora"] = serde_json::to_value(lora).map_err(Error::bug)?;
        init["adapter"] = json!(file.to_string_lossy());
    }
    Ok(json!({"model": model, "init": init}))
}

/// The linear layer in a block with this weight, if it is one.
fn layer(name: String, shape: &[usize]) -> Option<String> {
    let is_layer = name.starts_with(LAYERS) && shape.len() == 2;
    name.strip_suffix(".weight").filter(|_| is_layer).map(String::from)
}

/// The hash of the tokenizer in `folder`. Errors: 65 when it does not fit the model.
fn tokenizer_hash(folder: &Path, config: &DecoderConfig) -> Result<String> {
    let bad = |file: &str, what: String| {
        Err(Error::data(format!("{}: {what}", folder.join(file).display())))
    };
    let (tokenizer, tokens) = Tokenizer::open_decoder(folder, usize::MAX)?;
    let (ids, rows) = (tokenizer.vocabulary(), config.vocab_size);
    if rows < ids {
        let what = format!(
            "vocab_size {rows} is less than the {ids} ids of the tokenizer in the folder; restore the tokenizer of this model, \
             or add rows to its embeddings"
        );
        return bad("config.json", what);
    }
    if tokenizer.special().eos.is_none() {
        let what = "the tokenizer has no eos_token, so no answer would end; set the key to the token that ends an \
                    answer, such as <|im_end|>";
        return bad("tokenizer_config.json", what.into());
    }
    match ChatTemplate::open(folder, tokens) {
        Ok(_) => {}
        Err(error) if error.exit == Exit::NoInput => {
            warn!("{error}: add one before you run ds-prep tokenize with this tokenizer");
        }
        Err(error) => return Err(error),
    }
    Ok(tokenizer.hash().into())
}

/// Names and shapes of the parameters of a decoder.
fn parameters(config: &DecoderConfig) -> Vec<(String, Vec<usize>)> {
    let (width, inner, head) = (config.hidden_size, config.intermediate_size, config.head_size());
    let (q, kv) = (config.num_attention_heads * head, config.kv_heads() * head);
    let (of_qkv, of_output) = match config.model_type {
        Architecture::Qwen2 => (true, false),
        Architecture::Qwen3 | Architecture::Llama => (config.attention_bias, config.attention_bias),
    };
    let mut all = vec![(EMBEDDINGS.to_string(), vec![config.vocab_size, width])];
    for number in 0..config.num_hidden_layers {
        let mut add = |name: &str, shape: Vec<usize>| {
            all.push((format!("{LAYERS}.{number}.{name}"), shape));
        };
        for (name, outputs, inputs, has_bias) in [
            ("self_attn.q_proj", q, width, of_qkv),
            ("self_attn.k_proj", kv, width, of_qkv),
            ("self_attn.v_proj", kv, width, of_qkv),
            ("self_attn.o_proj", width, q, of_output),
            ("mlp.gate_proj", inner, width, config.mlp_bias),
            ("mlp.up_proj", inner, width, config.mlp_bias),
            ("mlp.down_proj", width, inner, config.mlp_bias),
        ] {
            add(&format!("{name}.weight"), vec![outputs, inputs]);
            if has_bias {
                add(&format!("{name}.bias"), vec![outputs]);
            }
        }
        for name in ["input_layernorm.weight", "post_attention_layernorm.weight"] {
            add(name, vec![width]);
        }
        if config.model_type == Architecture::Qwen3 {
            for name in ["self_attn.q_norm.weight", "self_attn.k_norm.weight"] {
                add(name, vec![head]);
            }
        }
    }
    all.push(("model.norm.weight".into(), vec![width]));
    if !config.tie_word_embeddings {
        all.push((HEAD.into(), vec![config.vocab_size, width]));
    }
    all
}

/// Checks that the tensors of `file` are those of the decoder in `folder`, and returns patterns of the names that are not
/// parameters and may be ignored. Errors: 65 with all tensors that are missing, unknown, or have other shapes or dtypes.
fn ignored(config: &DecoderConfig, folder: &Path, file: &WeightFile) -> Result<Vec<&'static str>> {
    let path = file.path().display();
    let named = |name: &str| file.tensors().iter().find(|entry| entry.name == name);
    let mut ignored = Vec::new();
    let tied = named(HEAD).zip(named(EMBEDDINGS)).filter(|_| config.tie_word_embeddings);
    if let Some((head, embeddings)) = tied {
        if !is_same(file, head, embeddings)? {
            return Err(Error::data(format!(
                "{path}: {HEAD} differs from {EMBEDDINGS}, but tie_word_embeddings in {} is true; set it to false to use \
                 the head in the file, or remove the tensor",
                folder.join("config.json").display()
            )));
        }
        ignored.push(HEAD);
    }
    if file.tensors().iter().any(|entry| matches(FREQUENCIES, &entry.name)) {
        ignored.push(FREQUENCIES);
    }
    let given = file.tensors().iter().filter(|e| !ignored.iter().any(|p| matches(p, &e.name)));
    let mut given: HashMap<&str, &TensorEntry> = given.map(|e| (e.name.as_str(), e)).collect();
    let mut problems = Vec::new();
    for (name, shape) in parameters(config) {
        match given.remove(name.as_str()) {
            None if name == HEAD => problems.push(format!(
                "missing: {name} {shape:?}; if the logits are computed with the embeddings, set tie_word_embeddings to true \
                 in config.json"
            )),
            None => problems.push(format!("missing: {name} {shape:?}")),
            Some(entry) if entry.shape != shape => problems.push(format!(
                "shape: {name} is {:?} in the file, {shape:?} by config.json",
                entry.shape
            )),
            Some(entry) if !entry.dtype.is_float() => problems.push(format!(
                "dtype: {name} is {}; only weights quantised to NF4 by bitsandbytes are supported",
                entry.dtype
            )),
            Some(_) => {}
        }
    }
    let mut unknown: Vec<&TensorEntry> = given.into_values().collect();
    unknown.sort_by(|a, b| a.name.cmp(&b.name));
    let unknown = unknown.into_iter();
    problems.extend(unknown.map(|e| format!("unknown: {} {:?}", quote(&e.name), e.shape)));
    match problems.is_empty() {
        true => Ok(ignored),
        false => {
            let first = format!(
                "{path}: the tensors are not those of {}; take both files from the same model:",
                folder.join("config.json").display()
            );
            Err(Error::list(Exit::Data, first, &problems))
        }
    }
}

/// Whether two tensors of a file have the same values.
fn is_same(file: &WeightFile, a: &TensorEntry, b: &TensorEntry) -> Result<bool> {
    if a.shape != b.shape || a.dtype != b.dtype {
        return Ok(false);
    }
    let dtype = |entry: &TensorEntry| entry.dtype.dtype().filter(|dtype| dtype.is_float());
    let Some(dtype) = dtype(a) else { return Ok(false) };
    Ok(file.read(a, dtype)?.as_bytes() == file.read(b, dtype)?.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::language::Decoder;
    use learn::params::Builder;

    /// The parameters that the model registers, whose order is another one.
    #[test]
    fn the_parameters_are_those_of_the_model() {
        let small = DecoderConfig {
            vocab_size: 11,
            hidden_size: 8,
            intermediate_size: 6,
            num_hidden_layers: 2,
            num_attention_heads: 4,
            num_key_value_heads: Some(2),
            head_dim: Some(4),
            ..DecoderConfig::default()
        };
        for model_type in [Architecture::Qwen3, Architecture::Qwen2, Architecture::Llama] {
            for flag in [false, true] {
                let config = DecoderConfig {
                    model_type,
                    attention_bias: flag,
                    mlp_bias: flag && model_type == Architecture::Llama,
                    tie_word_embeddings: !flag,
                    ..small.clone()
                };
                let mut builder = Builder::new(1);
                Decoder::new(&mut builder, &config);
                let params = builder.finish();
                let mut own: Vec<(String, Vec<usize>)> =
                    params.trained.shapes().map(|(n, s)| (n.to_string(), s.to_vec())).collect();
                let mut listed = parameters(&config);
                own.sort();
                listed.sort();
                assert_eq!(listed, own);
            }
        }
    }
}
