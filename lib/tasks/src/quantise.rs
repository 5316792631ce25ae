//! Quantises the model in a folder of transformers to 4 bits.

use crate::common::transformers::{MODEL_TYPES, config_of, model_type};
use learn::foreign::{TensorEntry, folder_weights, open, write};
use learn::params::{Storage, Value};
use serde_json::{Map, Value as Json, json};
use std::fs;
use std::path::Path;
use tensor::{Dtype, Tensor};
use unix::publish::REAL;
use unix::{Context, Error, Result, small, space};

/// Maximum size of a file that is copied.
const MAX_BYTES: u64 = 256 << 20;
/// Endings of files of weights, which are not copied.
const WEIGHTS: [&str; 9] = [
    ".safetensors",
    ".safetensors.index.json",
    ".bin",
    ".bin.index.json",
    ".pt",
    ".h5",
    ".msgpack",
    ".onnx",
    ".gguf",
];
/// Heads that models get after loading, or that share a weight with the embeddings; they stay dense.
const HEADS: [&str; 8] = [
    "classifier",
    "cls",
    "lm_head",
    "pre_classifier",
    "qa_outputs",
    "score",
    "vocab_projector",
    "vocab_transform",
];
/// What was quantised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct QuantisedModel {
    /// Matrices in 4 bits.
    pub quantised: usize,
    /// Tensors that stay dense.
    pub dense: usize,
    /// Size of the weights before, in bytes.
    pub bytes_before: u64,
    /// Size of the weights now, in bytes.
    pub bytes: u64,
}

/// Writes the model in `folder` (config.json, weights, tokenizer) as the folder `to`, with the weights of the linear layers
/// inside its numbered blocks in NF4, as bitsandbytes stores them: transformers loads it, and so does training. Everything
/// else stays as it is, since transformers expects one dtype; with `bf16`, all weights are rounded to it first.
///
/// Errors: 66 when config.json or the weights are missing; 65 when they are damaged or not finite, already quantised, or have
/// no such layers; 73 when `to` exists.
pub fn quantise(folder: &Path, to: &Path, bf16: bool) -> Result<QuantisedModel> {
    let (path, mut config) = config_of(folder)?;
    // All of these store W [outputs, inputs], as opposed to those with its transpose.
    model_type(&path, &config, &MODEL_TYPES)?;
    if config.get("quantization_config").is_some_and(|own| !own.is_null()) {
        let what = "the model is already quantised (quantization_config)";
        return Err(Error::data(format!("{}: {what}", path.display())));
    }
    let weights = folder_weights(folder)?;
    let file = open(&weights)?;
    let (mut tensors, mut names): (Vec<(String, Tensor)>, Vec<&str>) = (Vec::new(), Vec::new());
    let mut base = "";
    let mut found = QuantisedModel { quantised: 0, dense: 0, bytes_before: 0, bytes: 0 };
    for entry in file.tensors() {
        let elements = entry.shape.iter().product::<usize>();
        found.bytes_before += (elements * entry.dtype.bytes()) as u64;
        if !entry.dtype.is_float() {
            // Such as the numbers of positions.
            if let Some(dtype) = entry.dtype.dtype() {
                tensors.push((entry.name.clone(), file.read(entry, dtype)?));
                found.dense += 1;
            }
            continue;
        }
        let value = match (bf16, is_block_layer(entry)) {
            (false, true) => file.read_as(entry, Storage::Nf4)?,
            (false, false) => file.read_stored(entry)?,
            (true, is_block_layer) => {
                let rounded = Value::Dense(file.read(entry, Dtype::Bf16)?);
                match is_block_layer {
                    true => rounded
                        .stored_as(Storage::Nf4)
                        .context(|| format!("{}: {}", weights.display(), entry.name))?,
                    false => rounded,
                }
            }
        };
        if !value.is_finite() {
            let at = format!("{}: {}", weights.display(), entry.name);
            return Err(Error::data(format!(
                "{at}: some values are not finite; the model is damaged"
            )));
        }
        match value {
            Value::Nf4(weight) => {
                tensors.extend(weight.entries(&entry.name));
                base = entry.name.split('.').next().unwrap_or_default();
                found.quantised += 1;
            }
            Value::Dense(tensor) => {
                if entry.shape.len() == 2 {
                    names.push(entry.name.strip_suffix(".weight").unwrap_or(&entry.name));
                }
                tensors.push((entry.name.clone(), tensor));
                found.dense += 1;
            }
        }
    }
    if found.quantised == 0 {
        return Err(Error::data(format!(
            "{}: no tensor is the weight of a linear layer in a numbered block (NAME.0.NAME.weight)",
            weights.display()
        )));
    }
    found.bytes = tensors.iter().map(|(_, tensor)| tensor.bytes() as u64).sum();
    if bf16 {
        config.remove("torch_dtype");
        config.insert("dtype".into(), "bfloat16".into());
    }
    config.insert("quantization_config".into(), description(&config, base, &names));
    let config = serde_json::to_string_pretty(&config).map_err(Error::bug)? + "\n";
    space::ensure_space(to, found.bytes)?;
    REAL.folder_of_files(to, |inside| {
        for name in others(folder)? {
            let content = small::read(&folder.join(&name), MAX_BYTES)?;
            REAL.inner_bytes(&inside.join(&name), &content)?.sync()?;
        }
        REAL.inner_bytes(&inside.join("config.json"), config.as_bytes())?.sync()?;
        write(&inside.join("model.safetensors"), &tensors)
    })?;
    Ok(found)
}

/// Whether a tensor is the weight of a linear layer in a numbered block.
fn is_block_layer(entry: &TensorEntry) -> bool {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    let Some(module) = entry.name.strip_suffix(".weight") else { return false };
    // Tables, and what makes tokens of patches after some blocks of a vision tower.
    let is_other =
        ["embed", "relative", "position", "merger"].iter().any(|part| module.contains(part));
    entry.shape.len() == 2 && module.split('.').any(is_number) && !is_other
}

/// The files of a folder other than config.json and weights.
fn others(folder: &Path) -> Result<Vec<String>> {
    let read = |cause| Error::io(folder, cause);
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(read)? {
        let entry = entry.map_err(read)?;
        let is_file = fs::metadata(entry.path()).is_ok_and(|found| found.is_file());
        if let Some(name) = entry.file_name().to_str().filter(|_| is_file)
            && name != "config.json"
            && !WEIGHTS.iter().any(|ending| name.ends_with(ending))
        {
            names.push(name.to_string());
        }
    }
    names.sort();
    Ok(names)
}

/// The section `quantization_config`, as transformers writes it. `dense` are the modules with matrices that stay dense; they
/// are listed with and without the prefix `base` of the blocks, which a model for another task may not have.
fn description(config: &Map<String, Json>, base: &str, dense: &[&str]) -> Json {
    let dtype = ["dtype", "torch_dtype"].iter().find_map(|key| config.get(*key)?.as_str());
    let compute = dtype.filter(|dtype| ["bfloat16", "float16"].contains(dtype));
    let mut skipped: Vec<&str> = HEADS.to_vec();
    for module in dense {
        skipped.push(module);
        skipped.extend(module.strip_prefix(base).and_then(|rest| rest.strip_prefix('.')));
    }
    skipped.sort_unstable();
    skipped.dedup();
    json!({
        "quant_method": "bitsandbytes",
        "load_in_4bit": true,
        "load_in_8bit": false,
        "bnb_4bit_compute_dtype": compute.unwrap_or("float32"),
        "bnb_4bit_quant_storage": "uint8",
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": true,
        "llm_int8_enable_fp32_cpu_offload": false,
        "llm_int8_has_fp16_weight": false,
        "llm_int8_skip_modules": skipped,
        "llm_int8_threshold": 6.0,
    })
}
