//! Exports trained text models as folders that transformers and PEFT load.

mod config;
mod head;

use super::encoder::EncoderConfig;
use super::trained::require_tokens_of;
use data::split::SplitName;
use data::text::{TokenInfo, TokenSet, Tokenizer};
use head::{EXPORTABLE_TASKS, Head};
use learn::adapt::{Lora, Targets, merged, peft};
use learn::foreign;
use learn::init::InitFrom;
use learn::params::Builder;
use learn::trained::{Parts, Weights};
use serde::Deserialize;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use tensor::{Device, Tensor};
use unix::publish::REAL;
use unix::{Context, Error, Result, space};

/// What to export.
#[derive(Clone, Debug)]
pub struct ExportRequest {
    /// The checkpoint.
    pub checkpoint: PathBuf,
    /// Which of its weights.
    pub weights: Weights,
    /// The tokens, with tokenizer and labels; None: those that the model was trained on.
    pub tokens: Option<PathBuf>,
    /// The format of the folder.
    pub format: Format,
}

/// The format of a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A complete model and its tokenizer, for `from_pretrained` of transformers.
    Model,
    /// The same without the head.
    Encoder,
    /// A LoRA adapter, for `PeftModel.from_pretrained` of PEFT.
    Adapter,
}

/// Tensors by name.
type Tensors = Vec<(String, Tensor)>;
/// Names and contents of small files.
type Files = Vec<(&'static str, String)>;

/// Writes the model of a checkpoint as the folder `to`, which must not exist; returns the size of its weights in bytes.
///
/// Errors: 2 for a model that reads no texts, has no LoRA, or has a head that transformers does not have; 66 when the
/// checkpoint or the tokens are missing; 65 when they are damaged or do not belong together; 73, 74.
pub fn export(request: &ExportRequest, to: &Path) -> Result<u64> {
    let model = Model::open(request)?;
    let (name, (tensors, files)) = match request.format {
        Format::Model => ("model.safetensors", model.complete()?),
        Format::Encoder => ("model.safetensors", model.encoder()?),
        Format::Adapter => (peft::WEIGHTS, model.adapter()?),
    };
    let bytes = tensors.iter().map(|(_, tensor)| tensor.bytes() as u64).sum();
    space::ensure_space(to, bytes)?;
    REAL.folder_of_files(to, |inside| {
        for (name, content) in &files {
            REAL.inner_bytes(&inside.join(name), content.as_bytes())?.sync()?;
        }
        foreign::write(&inside.join(name), &tensors)
    })?;
    Ok(bytes)
}

/// A restored model.
struct Model {
    config: EncoderConfig,
    lora: Option<Lora>,
    head: Head,
    info: TokenInfo,
    tokens: PathBuf,
    /// All parameters, with LoRA merged.
    params: Tensors,
    parts: Parts,
}

/// The keys of section `model` that all text tasks share.
#[derive(Deserialize)]
struct ModelSection {
    encoder: EncoderConfig,
    #[serde(default)]
    lora: Option<Lora>,
}

impl Model {
    fn open(request: &ExportRequest) -> Result<Self> {
        let checkpoint = || request.checkpoint.display().to_string();
        let parts = Parts::read(&request.checkpoint, request.weights)?;
        if parts.origin.weights != request.weights {
            return Err(Error::open(&request.checkpoint, "it has no EMA weights (--what ema)"));
        }
        let Some(source) = EXPORTABLE_TASKS.iter().find(|source| source.task == parts.task) else {
            return Err(Error::usage(format!(
                "{}: transformers has no model of task {}; --format safetensors exports the weights of any model",
                checkpoint(),
                parts.task
            )));
        };
        let recorded = parts.config["data"]["tokens"].as_str().unwrap_or_default();
        let tokens = request.tokens.clone().unwrap_or_else(|| recorded.into());
        let hint = || "the tokens and labels of the model; give their folder with --tokens";
        let info = TokenSet::open(&tokens, SplitName::Train).context(hint)?.info().clone();
        require_tokens_of(&parts, &info, &tokens)?;
        let ModelSection { encoder, lora } = parts.section("model").context(checkpoint)?;
        let build = |b: &mut Builder| (source.build)(b, &parts, &info);
        let restored = parts.restore(Device::Cpu, build).context(checkpoint)?.params;
        let params = [restored.trained.dense(), restored.frozen.dense()].concat();
        let params = match &lora {
            Some(lora) => merged(&params, lora.scale())?,
            None => params,
        };
        let head = (source.head)(&parts, &info).context(checkpoint)?;
        Ok(Self { config: encoder, lora, head, info, tokens, params, parts })
    }

    fn error(&self, text: &str) -> Error {
        Error::usage(format!("{}: {text}", self.parts.origin.checkpoint.display()))
    }

    fn complete(&self) -> Result<(Tensors, Files)> {
        match &self.head {
            Head::TransformersHead(head) => Ok((self.params.clone(), self.files(Some(head))?)),
            Head::Unknown(problem) => {
                let text = format!("{problem}; --encoder-only exports the model without its head");
                Err(self.error(&text))
            }
        }
    }

    fn encoder(&self) -> Result<(Tensors, Files)> {
        let prefix = format!("{}.", self.config.prefix());
        let own = |(name, tensor): &(String, Tensor)| {
            Some((name.strip_prefix(&prefix)?.to_string(), tensor.clone()))
        };
        Ok((self.params.iter().filter_map(own).collect(), self.files(None)?))
    }

    /// config.json and the tokenizer.
    fn files(&self, head: Option<&head::TransformersHead>) -> Result<Files> {
        let tokenizer = Tokenizer::open(&self.tokens, self.info.max_length)?;
        let [of_tokenizer, special] = config::tokenizer(&self.config, &tokenizer);
        Ok(vec![
            ("config.json", text(&config::model(&self.config, &self.info, head))?),
            ("tokenizer.json", tokenizer.json().to_string()),
            ("tokenizer_config.json", text(&of_tokenizer)?),
            ("special_tokens_map.json", text(&special)?),
        ])
    }

    /// The trained parameters (A, B and the head), and the configuration of the adapter.
    fn adapter(&self) -> Result<(Tensors, Files)> {
        let lora = self.lora.as_ref();
        let lora =
            lora.ok_or_else(|| self.error("it has no adapter, because model.lora is null"))?;
        let Head::TransformersHead(head) = &self.head else {
            return Err(self.error("PEFT has no adapters for a model with such a head"));
        };
        let trained = &self.parts.weights;
        let adapted: Vec<&str> =
            trained.iter().filter_map(|(name, _)| name.strip_suffix(".lora_A.weight")).collect();
        // A target that also names a layer of the head would let PEFT adapt that one too.
        let is_ambiguous = self.params.iter().any(|(name, _)| {
            let module = name.strip_suffix(".weight").unwrap_or_default();
            !lora.targets_of(module).is_empty() && !adapted.contains(&module)
        });
        let targets = match is_ambiguous {
            true => Targets::Names(adapted.into_iter().map(String::from).collect()),
            false => lora.targets.clone(),
        };
        let saved: Vec<&str> = ["classifier", "pooler", "qa_outputs"]
            .into_iter()
            .filter(|module| {
                let is_whole = |name: &str| !name.contains(".lora_") && has_part(name, module);
                trained.iter().any(|(name, _)| is_whole(name))
            })
            .collect();
        let config = peft::config(lora, &targets, head.peft_task, &self.base()?, &saved);
        let named =
            |(name, tensor): &(String, Tensor)| (format!("{}{name}", peft::PREFIX), tensor.clone());
        Ok((trained.iter().map(named).collect(), vec![(peft::CONFIG, text(&config)?)]))
    }

    /// The folder of the pretrained model, if it is one of transformers; otherwise empty.
    fn base(&self) -> Result<String> {
        let init: Option<InitFrom> = self.parts.section("init")?;
        let folder = init.as_ref().and_then(|init| init.from.parent());
        let folder = folder.filter(|folder| folder.join("config.json").exists());
        let folder = folder.and_then(|folder| fs::canonicalize(folder).ok());
        Ok(folder.map(|folder| folder.display().to_string()).unwrap_or_default())
    }
}

/// Whether a part of a dotted name ends with `module`, as PEFT compares names.
fn has_part(name: &str, module: &str) -> bool {
    name.split('.').any(|part| part.ends_with(module))
}

fn text(value: &Value) -> Result<String> {
    Ok(serde_json::to_string_pretty(value).map_err(Error::bug)? + "\n")
}
