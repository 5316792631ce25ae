//! Writes folders for transformers and PEFT.

use data::split::SplitName;
use data::text::{TokenSet, Tokenizer};
use learn::foreign;
use learn::trained::{Parts, Weights};
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use tensor::Tensor;
use unix::publish::REAL;
use unix::{Context, Error, Result, space};

/// Maximum size of a file of weights in bytes; more are divided into several.
const MAX_SHARD: u64 = 5_000_000_000;
/// The name of the file of weights without its ending.
const STEM: &str = "model";

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

/// What was exported.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Exported {
    /// Size of the weights in bytes.
    pub bytes: u64,
    /// How the exported files compare with the trained model, if the task compares them.
    pub compared: Option<Comparison>,
}

/// The logits of a model read back from exported files, beside those of the model as it was trained.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// Number of tokens whose logits were compared.
    pub tokens: usize,
    /// The largest magnitude of a logit.
    pub largest_logit: f64,
    /// The largest difference between two logits.
    pub largest_difference: f64,
    /// The largest difference that rounding explains.
    pub tolerance: f64,
}

/// Tensors by name.
pub(crate) type Tensors = Vec<(String, Tensor)>;

/// The contents of a folder.
pub(crate) struct Contents {
    /// The weights.
    pub tensors: Tensors,
    /// Name of the file of weights; None: those of transformers.
    pub name: Option<&'static str>,
    /// Names and contents of small files.
    pub files: Vec<(&'static str, String)>,
}

impl Contents {
    /// Writes the folder `to`, which must not exist; returns the size of the weights in bytes and what `check` returns, which
    /// gets the folder before it has its name. If `check` fails, nothing is left. Errors: also 73, 74.
    pub fn write<T>(self, to: &Path, check: impl FnOnce(&Path) -> Result<T>) -> Result<(u64, T)> {
        let bytes = self.tensors.iter().map(|(_, tensor)| tensor.bytes() as u64).sum();
        space::ensure_space(to, bytes)?;
        let checked = REAL.folder_of_files(to, |inside| {
            for (name, content) in &self.files {
                REAL.inner_bytes(&inside.join(name), content.as_bytes())?.sync()?;
            }
            match self.name {
                Some(name) => foreign::write(&inside.join(name), &self.tensors)?,
                None => foreign::write_shards(inside, STEM, &self.tensors, MAX_SHARD)?,
            }
            // Reading them back should not take their memory twice.
            drop(self.tensors);
            check(inside)
        })?;
        Ok((bytes, checked))
    }
}

/// Reads the checkpoint of a request. Errors: 66 when it is missing or has no such weights; 65 when it is damaged.
pub(crate) fn parts_of(request: &ExportRequest) -> Result<Parts> {
    let parts = Parts::read(&request.checkpoint, request.weights)?;
    match parts.origin.weights == request.weights {
        true => Ok(parts),
        false => Err(Error::open(&request.checkpoint, "it has no EMA weights (--what ema)")),
    }
}

/// Folder and training split of the tokens of a request. Errors: 66, 65.
pub(crate) fn tokens_of(request: &ExportRequest, parts: &Parts) -> Result<(PathBuf, TokenSet)> {
    let recorded = parts.config["data"]["tokens"].as_str().unwrap_or_default();
    let folder = request.tokens.clone().unwrap_or_else(|| recorded.into());
    let hint = || "the tokens and labels of the model; give their folder with --tokens";
    let set = TokenSet::open(&folder, SplitName::Train).context(hint)?;
    Ok((folder, set))
}

/// The content of tokenizer_config.json for a tokenizer of at most `longest` tokens that returns `inputs`, and the special
/// tokens in it: those among `names` that have an id.
pub(crate) fn tokenizer_config(
    tokenizer: &Tokenizer,
    names: &[(&str, Option<i32>)],
    inputs: &[&str],
    longest: usize,
) -> [Value; 2] {
    let named =
        |(key, id): &(&str, Option<i32>)| Some((key.to_string(), tokenizer.token((*id)?)?.into()));
    let names: Map<String, Value> = names.iter().filter_map(named).collect();
    let mut all = json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": longest,
        "model_input_names": inputs,
        "truncation_side": if tokenizer.cut().left { "left" } else { "right" },
        "clean_up_tokenization_spaces": false,
    });
    if let Value::Object(all) = &mut all {
        all.extend(names.clone());
    }
    [all, names.into()]
}

/// The content of a JSON file.
pub(crate) fn text(value: &Value) -> Result<String> {
    Ok(serde_json::to_string_pretty(value).map_err(Error::bug)? + "\n")
}
