//! Reads pretrained encoders from folders in the layout of transformers: config.json and model.safetensors or
//! pytorch_model.bin, single or sharded.

mod config;
mod names;

use super::encoder::{Architecture, EncoderConfig};
use config::Config;
use data::text::Tokenizer;
use learn::adapt::{Lora, peft};
use learn::foreign::{self, TensorEntry};
use learn::init::InitFrom;
use names::Names;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use unix::{Error, Result, warn};

/// Files of tokenizers.
const TOKENIZERS: [&str; 3] = ["tokenizer.json", "vocab.txt", "vocab.json"];
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
    /// The configuration that starts training from these files: `model.encoder` with the shape of the encoder,
    /// `model.lora` with that of the adapter, and `init` with the rules that map tensor names. Without `head`, the head
    /// is initialised randomly.
    ///
    /// Errors: 66 when config.json or the weights are missing; 65 when they are damaged, of a model that is not
    /// supported, or without the head.
    pub fn configuration(&self) -> Result<Value> {
        let (found, lacks_pooler) = self.read()?;
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
    fn read(&self) -> Result<(Value, Option<PathBuf>)> {
        let folder = &self.folder;
        let config = Config::read(folder)?;
        let mut encoder = config.encoder()?;
        if TOKENIZERS.iter().any(|name| folder.join(name).exists()) {
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
        let names =
            Names::of(encoder.model_type, encoder.prefix(), &all).map_err(|what| bad(&what))?;
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
            "names": names.rules(self.head).map_err(|what| bad(&what))?,
        });
        let mut model = json!({"encoder": encoder});
        let mut is_of_spans = false;
        if self.head {
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
        if let Some(adapter) = &self.adapter {
            let lora = peft::read(adapter)?;
            let file = adapter.join(peft::WEIGHTS);
            require_adapter(&lora, encoder.prefix(), has_pooler, &file)?;
            model["lora"] = serde_json::to_value(lora).map_err(Error::bug)?;
            init["adapter"] = json!(file.to_string_lossy());
        }
        let found = json!({"model": model, "init": init});
        Ok((found, (!has_pooler && !is_of_spans).then_some(weights)))
    }
}

/// The shape of the encoder in a folder, and the rules that read its weights. Errors: those of
/// [`Pretrained::configuration`].
pub(super) fn pretrained_encoder(folder: &Path) -> Result<(EncoderConfig, InitFrom)> {
    let (found, _) = Pretrained { folder: folder.into(), ..Pretrained::default() }.read()?;
    let encoder = serde_json::from_value(found["model"]["encoder"].clone()).map_err(Error::bug)?;
    Ok((encoder, serde_json::from_value(found["init"].clone()).map_err(Error::bug)?))
}

/// Checks that an adapter changes only layers of the encoder, and that the base model has a pooler unless the adapter
/// brings a trained one. Errors: 66, 65.
fn require_adapter(lora: &Lora, prefix: &str, has_pooler: bool, path: &Path) -> Result<()> {
    let bad = |what: String| Error::data(format!("{}: {what}", path.display()));
    let file = foreign::open(path)?;
    let names = file.tensors().iter().map(|entry| entry.name.as_str());
    let pooler = format!("{prefix}.pooler.dense");
    let layers = ["encoder", "transformer"].map(|part| format!("{prefix}.{part}."));
    let mut has_layers = false;
    for name in names.filter(|name| name.contains(".lora_")) {
        let module = name.strip_prefix(peft::PREFIX).unwrap_or(name);
        let module = module.split(".lora_").next().unwrap_or(module);
        let is_known = layers.iter().any(|part| module.starts_with(part)) || module == pooler;
        if !is_known || lora.targets_of(module).is_empty() {
            return Err(bad(format!(
                "{module} is adapted, but is not a target in adapter_config.json or not a layer of {prefix}"
            )));
        }
        has_layers = true;
    }
    if !has_layers {
        return Err(bad(format!("it has no tensors {}NAME.lora_A.weight", peft::PREFIX)));
    }
    match has_pooler || lora.pooler {
        true => Ok(()),
        false => {
            Err(bad("the base model has no pooler, and modules_to_save does not train one".into()))
        }
    }
}
