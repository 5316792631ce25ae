//! The name of a run: what the user calls it, or what tells it from similar ones.

use super::ConfiguredTask;
use std::path::{Component, Path};

/// Endings of the names of weight files.
const FILES: [&str; 4] = [".safetensors", ".bin", ".pt", ".pth"];
/// Beginnings of the names of files and folders that say nothing about the model.
const COMMON: [&str; 4] = ["model.", "model-", "pytorch_model", "step-"];
/// Such names of folders.
const FOLDERS: [&str; 3] = ["ckpt", "latest", "best"];

impl ConfiguredTask {
    /// Name of the run: the key `name`, or model, rank of LoRA, learning rate and updates, such as
    /// `qwen3-vl-2b-instruct-r16-lr0.0002-3000`.
    pub fn name(&self) -> String {
        self.config.name.clone().unwrap_or_else(|| {
            let init = self.config.init.as_ref();
            let model = init.and_then(|init| model(&init.from));
            let model = model.unwrap_or_else(|| self.spec.name.into());
            let rank = self.resolved.pointer("/model/lora/r");
            let rank = rank.map_or(String::new(), |rank| format!("-r{rank}"));
            // Small numbers with an exponent: 1e-5.
            let rate = format!("{:?}", self.config.optimizer.learning_rate);
            format!("{model}{rank}-lr{rate}-{}", self.config.training.updates)
        })
    }
}

/// The folder of transformers, the run or the file at `path`, in lower case.
fn model(path: &Path) -> Option<String> {
    let names = path.components().rev().filter_map(|part| match part {
        Component::Normal(name) => name.to_str(),
        _ => None,
    });
    let is_common = |name: &str| COMMON.iter().any(|common| name.starts_with(common));
    let name = names.into_iter().find(|name| !is_common(name) && !FOLDERS.contains(name))?;
    let stem = FILES.iter().find_map(|ending| name.strip_suffix(ending));
    Some(stem.unwrap_or(name).to_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_named_after_folders_runs_and_files() {
        for (path, name) in [
            ("/models/Qwen3-VL-2B-Instruct/model.safetensors.index.json", "qwen3-vl-2b-instruct"),
            ("Qwen2.5-0.5B/model.safetensors", "qwen2.5-0.5b"),
            ("../bert/pytorch_model.bin", "bert"),
            ("runs/codec", "codec"),
            ("runs/codec/ckpt/best", "codec"),
            ("runs/codec/ckpt/step-00001200", "codec"),
            ("weights/MMDiT.pt", "mmdit"),
        ] {
            assert_eq!(model(Path::new(path)).as_deref(), Some(name), "{path}");
        }
        assert_eq!(model(Path::new("../model.safetensors")), None);
    }
}
