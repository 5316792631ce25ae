//! Reads pretrained encoders from folders in the layout of transformers: config.json and model.safetensors or
//! pytorch_model.bin, single or sharded.

mod config;
mod names;

use super::encoder::{Architecture, EncoderConfig};
use crate::common::transformers::{Pretrained, adapter, has_tokenizer};
use config::Config;
use data::text::Tokenizer;
use learn::adapt::{Lora, peft};
use learn::foreign::{self, TensorEntry};
use learn::init::InitFrom;
use names::Names;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use unix::{Error, Result, warn};

/// The configuration that starts training from these files: `model.encoder` with the shape of the encoder, `model.lora` with
/// that of the adapter, and `init` with the rules that map tensor names. Without `head`, the head is initialised randomly.
///
/// Errors: 66 when config.json or the weights are missing; 65 when they are damaged, of a model that is not supported, or
/// without the head.
pub(crate) fn configuration(request: &Pretrained) -> Result<Value> {
    let (found, lacks_pooler) = read(request)?;
    if let Some(weights) = lacks_pooler {
        warn!(
            "{}: no pooler, as usual for a masked language model: bert.pooler.* is initialised randomly and must be \
             trained; or set model.head.pooling=mean",
            weights.display()
        );
    }
    Ok(found)
}

/// The configuration, and the weights if they lack a pooler that a head needs.
fn read(request: &Pretrained) -> Result<(Value, Option<PathBuf>)> {
    let folder = &request.folder;
    let config = Config::read(folder)?;
    let mut encoder = config.encoder()?;
    if has_tokenizer(folder) {
        let tokenizer = Tokenizer::open(folder, usize::MAX)?;
        let (ids, padding) = (tokenizer.vocabulary(), tokenizer.special().padding);
        if encoder.vocab_size.is_some_and(|rows| rows < ids) {
            return Err(config.error(&format!(
                "vocab_size is less than the {ids} ids of the tokenizer in the folder"
            )));
        }
        if encoder.pad_token_id.is_some_and(|id| id != padding as usize) {
            return Err(config.error(&format!(
                    "positions begin after pad_token_id, but the tokenizer in the folder pads with {padding}; make them agree"
                )));
        }
        encoder.tokenizer_hash = Some(tokenizer.hash().into());
    }
    let weights = foreign::folder_weights(folder)?;
    let file = foreign::open(&weights)?;
    let bad = |what: &str| Error::data(format!("{}: {what}", weights.display()));
    let all: Vec<&str> = file.tensors().iter().map(|entry| entry.name.as_str()).collect();
    let names = Names::of(encoder.model_type, encoder.prefix(), &all).map_err(|what| bad(&what))?;
    let own = |entry: &&TensorEntry| {
        names.is_of_encoder(&entry.name) || names.of_head(&entry.name).is_some()
    };
    if let Some(entry) = file.tensors().iter().filter(own).find(|e| !e.dtype.is_float()) {
        let (name, dtype) = (&entry.name, entry.dtype);
        return Err(bad(&format!(
            "{name} has dtype {dtype}: only weights quantised to NF4 by bitsandbytes are supported"
        )));
    }
    let mut init = json!({
        "from": weights.to_string_lossy(),
        "names": names.rules(request.head).map_err(|what| bad(&what))?,
    });
    let mut model = json!({"encoder": encoder});
    let mut is_of_spans = false;
    if request.head {
        let heads = file.tensors().iter().filter_map(|e| Some((names.of_head(&e.name)?, e)));
        let heads: Vec<(&str, &TensorEntry)> = heads.collect();
        let last = |name: &&(&str, &TensorEntry)| {
            ["classifier.weight", "classifier.out_proj.weight"].contains(&name.0)
        };
        is_of_spans = heads.iter().any(|(name, _)| name.starts_with("qa_outputs."));
        model["head"] = match heads.iter().find(last) {
            Some((_, entry)) => config.class_head(entry.shape.first().copied().unwrap_or(0))?,
            None if is_of_spans => config.span_head()?,
            None => return Err(bad("it has no head that --head could use")),
        };
    }
    let has_pooler = encoder.model_type != Architecture::Bert || names.has_pooler();
    if let Some(folder) = &request.adapter {
        let lora = peft::read(folder)?;
        let file = folder.join(peft::WEIGHTS);
        require_adapter(&lora, encoder.prefix(), has_pooler, &file)?;
        model["lora"] = serde_json::to_value(lora).map_err(Error::bug)?;
        init["adapter"] = json!(file.to_string_lossy());
    }
    let found = json!({"model": model, "init": init});
    Ok((found, (!has_pooler && !is_of_spans).then_some(weights)))
}

/// The shape of the encoder in a folder, and the rules that read its weights. Errors: those of
/// [`configuration`].
pub(super) fn pretrained_encoder(folder: &Path) -> Result<(EncoderConfig, InitFrom)> {
    let (found, _) = read(&Pretrained { folder: folder.into(), ..Pretrained::default() })?;
    let encoder = serde_json::from_value(found["model"]["encoder"].clone()).map_err(Error::bug)?;
    Ok((encoder, serde_json::from_value(found["init"].clone()).map_err(Error::bug)?))
}

/// Checks that an adapter changes only layers of the encoder, and that the base model has a pooler unless the adapter
/// brings a trained one. Errors: 66, 65.
fn require_adapter(lora: &Lora, prefix: &str, has_pooler: bool, path: &Path) -> Result<()> {
    let pooler = format!("{prefix}.pooler.dense");
    let layers = ["encoder", "transformer"].map(|part| format!("{prefix}.{part}."));
    let is_layer =
        |module: &str| layers.iter().any(|part| module.starts_with(part)) || module == pooler;
    adapter::require(lora, path, prefix, is_layer)?;
    match has_pooler || lora.pooler {
        true => Ok(()),
        false => Err(Error::data(format!(
            "{}: the base model has no pooler, and modules_to_save does not train one",
            path.display()
        ))),
    }
}
