//! Sharded weight files as saved by Hugging Face transformers for large models: `model.safetensors.index.json` or
//! `pytorch_model.bin.index.json` maps the name of each tensor to its file in the same directory.

use super::{MAX_TENSORS, TensorEntry, WeightFile, open_part, quantised};
use serde::Deserialize;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use unix::text::quote;
use unix::{Error, Result, small};

/// File name suffix of an index.
pub(super) const ENDING: &str = ".index.json";
/// Maximum size of an index in bytes.
const MAX_BYTES: u64 = 64 << 20;
/// Maximum number of files in an index.
const MAX_FILES: usize = 4096;

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// Opens all files of an index. Errors: as [`super::open`]; 65 when the index is damaged, names a file outside its
/// directory, or names a tensor that its file lacks or that is in two files.
pub(super) fn open(path: &Path) -> Result<WeightFile> {
    let bad = |what: String| Error::data(format!("{}: {what}", path.display()));
    let index: Index = serde_json::from_slice(&small::read(path, MAX_BYTES)?)
        .map_err(|cause| bad(format!("not an index of weight files: {cause}")))?;
    let mut own: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (name, file) in &index.weight_map {
        own.entry(file).or_default().push(name);
    }
    if own.len() > MAX_FILES || index.weight_map.len() > MAX_TENSORS {
        return Err(bad(format!("more than {MAX_FILES} files or {MAX_TENSORS} tensors")));
    }
    let folder = path.parent().unwrap_or(Path::new(""));
    let (mut parts, mut tensors) = (Vec::new(), Vec::new());
    for (file, names) in own {
        let outside =
            || bad(format!("\"{}\" is not the name of a file in its folder", quote(file)));
        let (part, entries) = open_part(&small::inside(folder, file).ok_or_else(outside)?)?;
        let mut entries: HashMap<String, TensorEntry> =
            entries.into_iter().map(|entry| (entry.name.clone(), entry)).collect();
        for name in names {
            let missing = || bad(format!("tensor {} is missing in {}", quote(name), quote(file)));
            let entry = entries.remove(name).ok_or_else(missing)?;
            tensors.push(TensorEntry { part: parts.len(), ..entry });
        }
        // What is left is not in the index, such as a copy of a tied weight; it must not contradict it.
        if let Some(name) = entries.keys().filter(|name| index.weight_map.contains_key(*name)).min()
        {
            let [name, file, other] = [name, file, &index.weight_map[name]].map(quote);
            return Err(bad(format!("tensor {name} is in {file} and in {other}; remove one")));
        }
        parts.push(part);
    }
    quantised::grouped(WeightFile { path: path.into(), parts, tensors })
}
