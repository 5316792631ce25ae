//! Writes weights for use by other programs.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use super::sharded;
use serde_json::{Map, Value, json};
use tensor::Tensor;
use tensor::safetensors::Header;
use unix::publish::REAL;
use unix::{Context, Error, Result};

/// Writes host tensors, in the given order, to a new safetensors file in a directory that has not been published yet.
///
/// Errors: 73 when the file cannot be created, 74 when writing fails; 70 when a name cannot be stored.
pub fn write(path: &Path, tensors: &[(String, Tensor)]) -> Result<()> {
    let planned = tensors.iter().map(|(name, t)| (name.as_str(), t.dtype().into(), t.shape()));
    // Hugging Face transformers requires this metadata.
    let metadata = BTreeMap::from([("format".to_string(), "pt".to_string())]);
    let header = Header::plan(planned, metadata, 8).map_err(Error::bug);
    let header = header.context(|| path.display().to_string())?;
    let written = REAL.inner_file(path, header.file_bytes(), |file| {
        file.write_all(&header.bytes)?;
        tensors.iter().try_for_each(|(_, tensor)| file.write_all(tensor.as_bytes()))
    });
    written?.sync()
}

/// Like [`write`], to `STEM.safetensors` in `folder`, or to several files and their index, as transformers names them, if the
/// tensors have more than `most` bytes. A file exceeds that size only if it has one tensor.
pub fn write_shards(
    folder: &Path,
    stem: &str,
    tensors: &[(String, Tensor)],
    most: u64,
) -> Result<()> {
    let (mut bounds, mut first, mut bytes) = (Vec::new(), 0, 0);
    for (at, (_, tensor)) in tensors.iter().enumerate() {
        let own = tensor.bytes() as u64;
        if at > first && bytes + own > most {
            bounds.push(first..at);
            (first, bytes) = (at, 0);
        }
        bytes += own;
    }
    bounds.push(first..tensors.len());
    if bounds.len() == 1 {
        return write(&folder.join(format!("{stem}.safetensors")), tensors);
    }
    let mut files = Map::new();
    for (number, own) in bounds.iter().enumerate() {
        let name = format!("{stem}-{:05}-of-{:05}.safetensors", number + 1, bounds.len());
        let own = &tensors[own.clone()];
        write(&folder.join(&name), own)?;
        files.extend(own.iter().map(|(tensor, _)| (tensor.clone(), name.clone().into())));
    }
    let elements: usize = tensors.iter().map(|(_, tensor)| tensor.len()).sum();
    let bytes: usize = tensors.iter().map(|(_, tensor)| tensor.bytes()).sum();
    let metadata = json!({"total_parameters": elements, "total_size": bytes});
    let index: Value = json!({"metadata": metadata, "weight_map": files});
    let text = serde_json::to_string_pretty(&index).map_err(Error::bug)? + "\n";
    let path = folder.join(format!("{stem}.safetensors{}", sharded::ENDING));
    REAL.inner_bytes(&path, text.as_bytes())?.sync()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::foreign::{folder_weights, open};
    use tensor::Dtype;

    #[test]
    fn tensors_in_several_files_are_those_in_one() {
        let values = |i: usize| Tensor::from_slice(&vec![i as f32; 10 * i], &[10 * i]);
        let all: Vec<(String, Tensor)> = (1..6).map(|i| (format!("t{i}"), values(i))).collect();
        // The tensors have 40 to 200 bytes.
        for (most, count) in [(600, 1), (599, 2), (200, 4), (1, 5)] {
            let folder = tempfile::tempdir().unwrap();
            write_shards(folder.path(), "model", &all, most).unwrap();
            let files = std::fs::read_dir(folder.path()).unwrap().count();
            assert_eq!(files, if count == 1 { 1 } else { count + 1 }, "{most}");
            let file = open(&folder_weights(folder.path()).unwrap()).unwrap();
            assert_eq!(file.tensors().len(), all.len());
            for (name, tensor) in &all {
                let entry = file.tensors().iter().find(|entry| entry.name == *name).unwrap();
                assert_eq!(file.read(entry, Dtype::F32).unwrap().to_f64(), tensor.to_f64());
            }
        }
    }
}
