//! `manifest.json` describes a checkpoint and marks it as complete.
//!
//! The last line holds the BLAKE3 hash of everything before it, so a change to any byte of a checkpoint is detected:
//! the manifest covers the other files, and this line covers the manifest. Its syntax is the same in all format
//! versions.

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use unix::{Error, Result, small};

use super::problem::{Problem, metadata};
use crate::dependency::Dependencies;
use crate::score::Direction;

/// Format version written by this program, and the newest that it can read.
pub(super) const FORMAT: u64 = 1;
/// File name of the manifest.
pub(super) const NAME: &str = "manifest.json";
/// Maximum size of a manifest in bytes.
const MAX_BYTES: u64 = 100_000_000;

/// The manifest of a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Format version.
    pub format: u64,
    /// Time of writing, UTC.
    pub created: String,
    /// Version of the program that wrote the checkpoint.
    pub version: String,
    /// Commit of the program that wrote the checkpoint.
    pub commit: String,
    /// Host on which the checkpoint was written.
    pub host: String,
    /// Number of the attempt that wrote the checkpoint, from 1. A checkpoint from a later attempt counts as newer.
    pub attempt: u64,
    /// Name of the task.
    pub task: String,
    /// Updates completed.
    pub update: u64,
    /// Number of ranks that wrote the checkpoint.
    pub world: u64,
    /// Seed of the run.
    #[serde(with = "unix::decimal")]
    pub seed: u64,
    /// Hash of the configuration.
    pub config_hash: String,
    /// Hash of the data.
    pub data_hash: String,
    /// Other trained models that using this model requires, by name, e.g. the `codec` of an operator.
    pub dependencies: Dependencies,
    /// Metrics of the last validation by name.
    pub metrics: Value,
    /// The metric that selects the best checkpoint of a run; empty for none.
    pub monitor: String,
    /// Whether `monitor` is minimised or maximised.
    pub direction: Direction,
    /// State of the training loop.
    pub progress: Value,
    /// The resolved configuration, without secrets.
    pub config: Value,
    /// All files of the checkpoint except the manifest.
    pub files: Vec<FileEntry>,
}

/// A file of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// File name, e.g. `model.safetensors`.
    pub name: String,
    /// File size in bytes.
    pub bytes: u64,
    /// BLAKE3 hash of the file in hexadecimal.
    pub blake3: String,
    /// Tensors in the file, in the order in which they were saved.
    pub tensors: Vec<TensorEntry>,
}

/// A tensor in a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorEntry {
    /// Tensor name.
    pub name: String,
    /// Dtype in safetensors notation, e.g. `F32`.
    pub dtype: String,
    /// Shape.
    pub shape: Vec<usize>,
    /// Offset of the first byte in the file.
    pub start: u64,
    /// Offset one past the last byte.
    pub end: u64,
    /// BLAKE3 hash of the tensor bytes in hexadecimal.
    pub blake3: String,
}

impl FileEntry {
    /// The file name without `.safetensors`.
    pub fn stem(&self) -> &str {
        self.name.strip_suffix(".safetensors").unwrap_or(&self.name)
    }
}

impl Manifest {
    /// Total size of all files in bytes.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    /// Value of a metric at the last validation; None when it is absent or not finite.
    pub fn metric(&self, name: &str) -> Option<f64> {
        self.metrics.get(name)?.as_f64().filter(|value| value.is_finite())
    }

    /// Encodes the manifest: one line per field, the digest last.
    pub(super) fn encode(&self) -> Result<Vec<u8>> {
        let Value::Object(fields) = serde_json::to_value(self).map_err(Error::bug)? else {
            return Err(Error::bug("a manifest does not serialise to an object"));
        };
        let mut text = String::from("{\n");
        for (name, value) in fields {
            text += &format!("{}: {value},\n", Value::String(name));
        }
        let digest = blake3::hash(text.as_bytes()).to_hex();
        text += &format!("{DIGEST}{digest}{END}");
        Ok(text.into_bytes())
    }

    /// Decodes a manifest. The digest is verified before anything else is used.
    pub(super) fn decode(text: &[u8]) -> Result<Self, Problem> {
        let damaged = |what: &str| Problem::Damaged(format!("{NAME} {what}"));
        let tail = DIGEST.len() + 64 + END.len();
        let Some(at) = text.len().checked_sub(tail) else { return Err(damaged("is truncated")) };
        let (before, tail) = text.split_at(at);
        let digest = tail.strip_prefix(DIGEST.as_bytes());
        let digest = digest.and_then(|tail| tail.strip_suffix(END.as_bytes()));
        if digest.is_none() {
            return Err(damaged("is truncated, or was written by another program"));
        }
        if digest != Some(blake3::hash(before).to_hex().as_bytes()) {
            return Err(damaged("was changed after it was written"));
        }
        let value: Value = serde_json::from_slice(text)
            .map_err(|cause| damaged(&format!("is not valid JSON: {cause}")))?;
        // A missing format field is reported below.
        let format = value.get("format").and_then(Value::as_u64).unwrap_or(FORMAT);
        if format == 0 {
            return Err(damaged("has format 0, which no program writes"));
        }
        if format > FORMAT {
            return Err(Problem::Newer(format!(
                "{NAME} has format {format}, but this program reads only up to {FORMAT}: use a newer version"
            )));
        }
        let manifest: Self = serde_json::from_value(value)
            .map_err(|cause| damaged(&format!("is incomplete: {cause}")))?;
        for file in &manifest.files {
            if !is_plain_name(&file.name) {
                return Err(damaged(&format!("names a file outside its folder: {:?}", file.name)));
            }
        }
        Ok(manifest)
    }

    /// Reads the manifest of the checkpoint in `folder`.
    pub(super) fn read(folder: &Path) -> Result<Self, Problem> {
        let path = folder.join(NAME);
        let found = metadata(folder, NAME)?;
        if !found.is_file() || found.len() > MAX_BYTES {
            return Err(Problem::Damaged(format!("{NAME} is too large or not a regular file")));
        }
        let text = std::fs::read(&path);
        Self::decode(&text.map_err(|cause| Problem::Damaged(format!("{NAME}: {cause}")))?)
    }
}

const DIGEST: &str = "\"digest\": \"";
const END: &str = "\"\n}\n";

/// Whether a name is a plain file name (a single path component, not `.` or `..`) other than [`NAME`].
pub(super) fn is_plain_name(name: &str) -> bool {
    small::inside(Path::new(""), name).is_some() && name != NAME
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn manifest() -> Manifest {
        Manifest {
            format: FORMAT,
            created: "2026-11-20T21:53:37.123Z".into(),
            version: "0.1.0".into(),
            commit: "unknown".into(),
            host: "node".into(),
            attempt: 2,
            task: "codec".into(),
            update: 1200,
            world: 1,
            seed: u64::MAX,
            config_hash: "c".into(),
            data_hash: "d".into(),
            dependencies: Dependencies::new(),
            metrics: json!({"a": 0.1 + 0.2, "b": null}),
            monitor: "a".into(),
            direction: Direction::Maximize,
            progress: json!({"seconds": 1e-300, "unknown": [1]}),
            config: json!({"text": "\"digest\": \"\n}\n", "unicode": "ν"}),
            files: vec![FileEntry {
                name: "model.safetensors".into(),
                bytes: 3,
                blake3: "x".into(),
                tensors: Vec::new(),
            }],
        }
    }

    #[test]
    fn what_is_written_is_read_and_is_json() {
        let text = manifest().encode().unwrap();
        assert_eq!(Manifest::decode(&text).unwrap(), manifest());
        let json: Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(json["update"], 1200);
        assert_eq!(json["seed"], "18446744073709551615", "not a number: f64 would round it");
        assert_eq!(manifest().metric("a"), Some(0.1 + 0.2));
        assert_eq!(manifest().metric("b"), None);
    }

    #[test]
    fn every_changed_bit_and_every_cut_is_found() {
        let text = manifest().encode().unwrap();
        for at in 0..text.len() {
            for bit in 0..8 {
                let mut changed = text.clone();
                changed[at] ^= 1 << bit;
                assert!(Manifest::decode(&changed).is_err(), "bit {bit} of byte {at}");
            }
            assert!(Manifest::decode(&text[..at]).is_err(), "cut at {at}");
        }
    }

    #[test]
    fn newer_formats_and_names_that_lead_away_are_refused() {
        let newer = Manifest { format: FORMAT + 1, ..manifest() }.encode().unwrap();
        assert!(matches!(Manifest::decode(&newer), Err(Problem::Newer(_))));
        let none = Manifest { format: 0, ..manifest() }.encode().unwrap();
        assert!(matches!(Manifest::decode(&none), Err(Problem::Damaged(_))));
        for name in ["", ".", "..", "/etc/passwd", "a/b", "../a", "a/", "./a", "a\0", NAME] {
            let mut bad = manifest();
            bad.files[0].name = name.into();
            let bad = Manifest::decode(&bad.encode().unwrap());
            assert!(matches!(bad, Err(Problem::Damaged(_))), "{name:?}");
        }
    }

    /// Fields added by later versions of the same format are ignored; missing fields are an error.
    #[test]
    fn unknown_fields_are_ignored_and_missing_ones_are_not() {
        let sealed = |value: &Value| {
            let mut text = String::from("{\n");
            for (name, value) in value.as_object().unwrap() {
                text += &format!("\"{name}\": {value},\n");
            }
            text += &format!("{DIGEST}{}{END}", blake3::hash(text.as_bytes()).to_hex());
            text
        };
        let mut value = serde_json::to_value(manifest()).unwrap();
        value["colour"] = json!("red");
        assert_eq!(Manifest::decode(sealed(&value).as_bytes()).unwrap(), manifest());
        for name in serde_json::to_value(manifest()).unwrap().as_object().unwrap().keys() {
            let mut value = value.clone();
            value.as_object_mut().unwrap().shift_remove(name);
            let read = Manifest::decode(sealed(&value).as_bytes());
            assert!(matches!(read, Err(Problem::Damaged(_))), "{name}");
        }
    }
}
