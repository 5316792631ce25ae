//! `pipeline.yaml`: commands that depend on each other, each of which runs until it has succeeded once.
//!
//! A step is up to date if its stamp ([`step`]) holds its current key. The key is the BLAKE3 hash of the words of the
//! command, the content of the regular files that the command names, and the keys of the steps that it depends on, so a
//! change propagates to all later steps. Files below the folder of the pipeline are not included, because earlier steps
//! wrote them, and neither are `.jsonl` files: a leaderboard to which rows are appended is a history, not an input.
//! [`summary`] collects the results.

mod file;
pub mod step;
pub mod summary;

use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};

use serde_json::json;

use crate::config;
use crate::publish::hash_file;
use crate::{Context, Error, Exit, Result, secrets};
use file::{PipelineFile, folder_of, hint, resolve};

/// Name of the summary file in the folder of the pipeline.
const SUMMARY: &str = "summary.json";

/// A valid pipeline.
#[derive(Clone, Debug)]
pub struct Pipeline {
    /// The file that the pipeline was read from.
    pub file: PathBuf,
    /// The folder of the pipeline.
    pub folder: PathBuf,
    /// The steps; each depends only on steps with smaller indices.
    pub steps: Vec<PipelineStep>,
}

/// A step of a pipeline.
#[derive(Clone, Debug)]
pub struct PipelineStep {
    /// Name of the step.
    pub name: String,
    /// Program and arguments.
    pub words: Vec<String>,
    /// Indices of the steps that this step depends on.
    pub after: Vec<usize>,
    /// Options of sbatch for the job of the step.
    pub sbatch: Vec<String>,
    /// The JSON file with the result of the step.
    pub result: Option<PathBuf>,
}

impl Pipeline {
    /// Reads a pipeline. Errors: 66; 78 with every violation.
    pub fn load(file: &Path) -> Result<Self> {
        let environment = |name: &str| std::env::var(name).ok();
        let check = |entries: &PipelineFile| resolve(entries).1;
        let loaded =
            config::load::<PipelineFile>(&[file.to_path_buf()], &[], &environment, &check)?;
        let (steps, _) = resolve(&loaded.config);
        steps.iter().for_each(|step| secrets::register_words(&step.words));
        let folder = folder_of(&loaded.config).into();
        Ok(Self { file: file.to_path_buf(), folder, steps })
    }

    /// Returns the folder of a step.
    pub fn folder_of(&self, at: usize) -> PathBuf {
        self.folder.join(&self.steps[at].name)
    }

    /// Returns the index of a step. Errors: 2 for an unknown name.
    pub fn find(&self, name: &str) -> Result<usize> {
        let names = || self.steps.iter().map(|step| step.name.as_str());
        names().position(|known| known == name).ok_or_else(|| {
            let file = self.file.display();
            Error::usage(format!("{file} has no step {name}{}", hint(name, names())))
        })
    }

    /// Returns the keys of all steps. Errors: 66, 74 for an input that cannot be read.
    pub fn keys(&self) -> Result<Vec<String>> {
        let (mut keys, mut hashes) = (Vec::<String>::new(), HashMap::new());
        for (at, step) in self.steps.iter().enumerate() {
            let mut files = Vec::new();
            for path in self.inputs(step) {
                if !hashes.contains_key(&path) {
                    let key = || format!("{}: steps.{at}.run", self.file.display());
                    hashes.insert(path.clone(), hash_file(Path::new(&path)).context(key)?);
                }
                files.push(json!([path, hashes[&path]]));
            }
            let after: Vec<&String> = step.after.iter().map(|at| &keys[*at]).collect();
            let content = json!([step.words, files, after]).to_string();
            keys.push(blake3::hash(content.as_bytes()).to_hex().to_string());
        }
        Ok(keys)
    }

    /// Returns the regular files that the key of a step covers, sorted.
    fn inputs(&self, step: &PipelineStep) -> Vec<String> {
        let is_input = |path: &&str| {
            Path::new(path).is_file()
                && !path.ends_with(".jsonl")
                && inside(&self.folder, path).is_none()
        };
        let mut inputs: Vec<String> =
            paths(&step.words).filter(is_input).map(String::from).collect();
        inputs.sort();
        inputs.dedup();
        inputs
    }
}

/// Returns the words of a command that may be paths: all except a program that is looked up in PATH, and also each part
/// after a `=` of `KEY=VALUE`.
fn paths(words: &[String]) -> impl Iterator<Item = &str> {
    let words = words.iter().enumerate().filter(|(at, word)| *at > 0 || word.contains('/'));
    words.flat_map(|(_, word)| {
        let values = word.match_indices('=').map(|(at, _)| &word[at + 1..]);
        std::iter::once(word.as_str()).chain(values).filter(|path| !path.is_empty())
    })
}

/// Returns the first component of `path` relative to `folder`, empty for the folder itself; `None` if the path is
/// outside the folder.
fn inside(folder: &Path, path: &str) -> Option<String> {
    let [folder, path] = [folder, Path::new(path)].map(|path| std::path::absolute(path).ok());
    let (folder, path) = (folder?, path?);
    match path.strip_prefix(folder).ok()?.components().next() {
        Some(Component::Normal(name)) => Some(name.to_string_lossy().into_owned()),
        _ => Some(String::new()),
    }
}

/// Joins the words of a command, quoted for a shell. Errors: 78 for a word with a NUL byte.
pub fn quoted<'a>(words: impl IntoIterator<Item = &'a str>) -> Result<String> {
    shlex::try_join(words).map_err(|cause| Error::new(Exit::Config, cause))
}
