//! Pretrained decoders in folders of transformers, with or without a vision tower.

use super::config::DecoderConfig;
use super::sft::{Language, SftModel};
use super::vision;
use crate::common::transformers::{
    DECODERS, Pretrained, VISION_LANGUAGE, adapter, config_of, has_tokenizer, model_type,
};
use data::text::Tokenizer;
use data::text::chat::ChatTemplate;
use learn::adapt::{ALL_LINEAR, Lora, Targets, peft};
use learn::foreign::{self, TensorEntry, WeightFile};
use learn::params::Builder;
use serde_json::{Value, json};
use std::collections::{HashMap, HashSet};
use std::path::Path;
use unix::text::{matches, quote};
use unix::{Error, Exit, Result, warn};

/// The matrices of the head and of embeddings, the latter also beside a vision tower.
const HEAD: &str = "lm_head.weight";
const EMBEDDINGS: [&str; 2] =
    ["model.embed_tokens.weight", "model.language_model.embed_tokens.weight"];
/// What old versions of transformers also stored: it follows from config.json.
const FREQUENCIES: &str = "*.rotary_emb.inv_freq";

impl SftModel {
    /// The shape of the model in `folder`, a folder of transformers, by its config.json.
    ///
    /// Errors: 66 when it is missing; 65 when it is damaged, lacks a key, or has settings that are not supported.
    pub fn read(folder: &Path) -> Result<Self> {
        let (path, keys) = config_of(folder)?;
        let (decoder, vision) = match model_type(&path, &keys, &DECODERS)? {
            VISION_LANGUAGE => {
                let (decoder, tower) = vision::parts(&path, &keys)?;
                (decoder, Some(tower))
            }
            kind => (DecoderConfig::of_file(&path, &keys, kind)?, None),
        };
        let config = Self { decoder, vision, lora: None, tokenizer_hash: None };
        match config.violations().into_iter().next() {
            Some((key, text)) => {
                // A decoder alone has its keys at the top.
                let key = key
                    .strip_prefix("decoder.")
                    .filter(|_| config.vision.is_none())
                    .unwrap_or(&key);
                Err(Error::data(format!("{}: {key}: {text}", path.display())))
            }
            None => Ok(config),
        }
    }
}

/// The configuration that starts training from these files: `model.decoder` and `model.vision` with the shape of decoder and
/// vision tower, `model.lora` with that of the adapter, and `init`. Parameters have the names of the file.
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
    let mut config = SftModel::read(folder)?;
    config.tokenizer_hash =
        has_tokenizer(folder).then(|| tokenizer_hash(folder, &config)).transpose()?;
    let weights = foreign::folder_weights(folder)?;
    let ignored = ignored(&config, folder, &foreign::open(&weights)?)?;
    let mut init = json!({"from": weights.to_string_lossy()});
    if !ignored.is_empty() {
        init["names"] = json!({"ignore": ignored});
    }
    if let Some(folder) = &request.adapter {
        let lora = peft::read(folder)?;
        let file = folder.join(peft::WEIGHTS);
        let layers = layers(&config, &lora);
        adapter::require(&lora, &file, "the model", |module| layers.contains(module))?;
        config.lora = Some(lora);
        init["adapter"] = json!(file.to_string_lossy());
    }
    let mut model = serde_json::to_value(&config).map_err(Error::bug)?;
    if let Value::Object(keys) = &mut model {
        // Without an adapter in a folder, another file may configure one.
        keys.retain(|key, value| key != "lora" || !value.is_null());
    }
    Ok(json!({"model": model, "init": init}))
}

/// The linear layers that an adapter like `lora` may change.
fn layers(config: &SftModel, lora: &Lora) -> HashSet<String> {
    let targets = Targets::Pattern(ALL_LINEAR.into());
    let config = SftModel { lora: Some(Lora { targets, ..lora.clone() }), ..config.clone() };
    let module = |(name, _): (String, _)| name.strip_suffix(".lora_A.weight").map(String::from);
    Builder::shapes(|b| Language::new(b, &config, 0)).into_iter().filter_map(module).collect()
}

/// The hash of the tokenizer in `folder`. Errors: 65 when it does not fit the model.
fn tokenizer_hash(folder: &Path, config: &SftModel) -> Result<String> {
    let bad = |file: &str, what: String| {
        Err(Error::data(format!("{}: {what}", folder.join(file).display())))
    };
    let (tokenizer, tokens) = Tokenizer::open_decoder(folder, usize::MAX)?;
    let (ids, rows) = (tokenizer.vocabulary(), config.decoder.vocab_size);
    if rows < ids {
        let what = format!(
            "vocab_size {rows} is less than the {ids} ids of the tokenizer in the folder; restore the tokenizer of this model, \
             or add rows to its embeddings"
        );
        return bad("config.json", what);
    }
    if let Some(vision) = &config.vision
        && tokenizer.token(vision.image_token_id as i32).is_none()
    {
        let what = format!(
            "image_token_id {} is no token of the tokenizer in the folder; restore the tokenizer of this model",
            vision.image_token_id
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

/// Checks that the tensors of `file` are those of the model in `folder`, and returns patterns of the names that are not
/// parameters and may be ignored. Errors: 65 with all tensors that are missing, unknown, or have other shapes or dtypes.
fn ignored(config: &SftModel, folder: &Path, file: &WeightFile) -> Result<Vec<&'static str>> {
    let path = file.path().display();
    let named = |name: &str| file.tensors().iter().find(|entry| entry.name == name);
    let mut ignored = Vec::new();
    let embeddings = EMBEDDINGS[usize::from(config.vision.is_some())];
    let is_tied = config.decoder.tie_word_embeddings;
    let tied = named(HEAD).zip(named(embeddings)).filter(|_| is_tied);
    if let Some((head, table)) = tied {
        if !is_same(file, head, table)? {
            return Err(Error::data(format!(
                "{path}: {HEAD} differs from {embeddings}, but tie_word_embeddings in {} is true; set it to false to use \
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
    for (name, shape) in Builder::shapes(|b| Language::new(b, config, 0)) {
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
