//! Exports trained text models as folders that transformers and PEFT load.

mod config;
mod head;

use super::encoder::EncoderConfig;
use super::trained::require_tokens_of;
use crate::common::transformers::adapter;
use crate::common::transformers::export::{
    Contents, ExportRequest, Exported, Format, Tensors, text, tokens_of,
};
use data::text::{TokenInfo, Tokenizer};
use head::{EXPORTABLE_TASKS, Head};
use learn::adapt::{Lora, merged};
use learn::params::Builder;
use learn::trained::Parts;
use serde::Deserialize;
use std::path::{Path, PathBuf};
use tensor::{Device, Tensor};
use unix::{Context, Error, Result};

/// Writes the model of a checkpoint with these `parts` as the folder `to`, which must not exist.
///
/// Errors: 2 for a model that reads no texts, has no LoRA, or has a head that transformers does not have; 66 when the
/// tokens are missing; 65 when they or the checkpoint are damaged or do not belong together; 73, 74.
pub(crate) fn export(request: &ExportRequest, parts: Parts, to: &Path) -> Result<Exported> {
    let model = Model::open(request, parts)?;
    let contents = match request.format {
        Format::Model => model.complete()?,
        Format::Encoder => model.encoder()?,
        Format::Adapter => model.adapter()?,
    };
    let (bytes, ()) = contents.write(to, |_| Ok(()))?;
    Ok(Exported { bytes, compared: None })
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
    fn open(request: &ExportRequest, parts: Parts) -> Result<Self> {
        let checkpoint = || request.checkpoint.display().to_string();
        let Some(source) = EXPORTABLE_TASKS.iter().find(|source| source.task == parts.task) else {
            return Err(Error::usage(format!(
                "{}: transformers has no model of task {}; --format safetensors exports the weights of any model",
                checkpoint(),
                parts.task
            )));
        };
        let (tokens, set) = tokens_of(request, &parts)?;
        let info = set.info().clone();
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

    fn complete(&self) -> Result<Contents> {
        match &self.head {
            Head::TransformersHead(head) => self.contents(self.params.clone(), Some(head)),
            Head::Unknown(problem) => {
                let text = format!("{problem}; --encoder-only exports the model without its head");
                Err(self.error(&text))
            }
        }
    }

    fn encoder(&self) -> Result<Contents> {
        let prefix = format!("{}.", self.config.prefix());
        let own = |(name, tensor): &(String, Tensor)| {
            Some((name.strip_prefix(&prefix)?.to_string(), tensor.clone()))
        };
        self.contents(self.params.iter().filter_map(own).collect(), None)
    }

    /// These weights, config.json and the tokenizer.
    fn contents(
        &self,
        tensors: Tensors,
        head: Option<&head::TransformersHead>,
    ) -> Result<Contents> {
        let tokenizer = Tokenizer::open(&self.tokens, self.info.max_length)?;
        let [of_tokenizer, special] = config::tokenizer(&self.config, &tokenizer);
        let files = vec![
            ("config.json", text(&config::model(&self.config, &self.info, head))?),
            ("tokenizer.json", tokenizer.json().to_string()),
            ("tokenizer_config.json", text(&of_tokenizer)?),
            ("special_tokens_map.json", text(&special)?),
        ];
        Ok(Contents { tensors, name: None, files })
    }

    /// The trained parameters (A, B and the head), and the configuration of the adapter.
    fn adapter(&self) -> Result<Contents> {
        let lora = adapter::required(&self.parts, self.lora.as_ref())?;
        let Head::TransformersHead(head) = &self.head else {
            return Err(self.error("PEFT has no adapters for a model with such a head"));
        };
        let trained = &self.parts.weights;
        let saved: Vec<&str> = ["classifier", "pooler", "qa_outputs"]
            .into_iter()
            .filter(|module| {
                let is_whole = |name: &str| !name.contains(".lora_") && has_part(name, module);
                trained.iter().any(|(name, _)| is_whole(name))
            })
            .collect();
        let names = self.params.iter().map(|(name, _)| name.as_str());
        adapter::contents(&self.parts, lora, names, (head.peft_task, &saved))
    }
}

/// Whether a part of a dotted name ends with `module`, as PEFT compares names.
fn has_part(name: &str, module: &str) -> bool {
    name.split('.').any(|part| part.ends_with(module))
}
