//! Loads checkpoints. No data is used before its hash has been verified.

use std::path::{Path, PathBuf};

use rayon::iter::{IntoParallelRefIterator, ParallelIterator};
use tensor::Tensor;
use unix::{Error, Result, warn};

use super::find::{all_in, folder_of};
use super::list::list;
use super::manifest::{FileEntry, Manifest};
use super::problem::Problem;
use super::shards;
use super::tensor_file::TensorFile;
use super::verify::verify;

/// A checkpoint loaded into memory.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// Manifest of the checkpoint.
    pub manifest: Manifest,
    path: PathBuf,
    files: Vec<Vec<(String, Tensor)>>,
}

impl Loaded {
    /// Path of the checkpoint directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the tensors of the file with this stem (`model`, `ema`, …), in the order in which they were saved; None
    /// when there is no such file.
    pub fn tensors(&self, stem: &str) -> Option<Vec<(String, Tensor)>> {
        let mut files = self.manifest.files.iter().zip(&self.files);
        files.find(|(entry, _)| entry.stem() == stem).map(|(_, tensors)| tensors.clone())
    }

    /// Returns the optimizer state, merged from all of its files; None when there is none or a file is missing.
    pub fn optimizer(&self) -> Option<Vec<(String, Tensor)>> {
        shards::union(self)
    }
}

/// Loads one checkpoint. Errors: 66 when the checkpoint or one of its files is missing; 65 when it is damaged (the
/// message names the file and, if possible, the tensor) or has a newer format.
pub fn load(path: &Path) -> Result<Loaded> {
    if !path.is_dir() {
        return Err(Error::open(path, "no such checkpoint"));
    }
    try_load(path).map_err(|problem| match problem {
        // Verify everything to find the exact location of the damage.
        Problem::Damaged(_) => {
            let damage = verify(path).ok().and_then(|report| report.damage.into_iter().next());
            let text = damage.map_or_else(|| problem.to_string(), |damage| damage.to_string());
            Error::data(format!("{}: {text}", path.display()))
        }
        problem => problem.error(path),
    })
}

/// Loads the checkpoint `path`, or the newest good checkpoint of a run directory or of its `ckpt`.
///
/// Errors: 66 when there is no checkpoint; otherwise as in [`load`] and [`load_newest`].
pub fn load_at(path: &Path) -> Result<Loaded> {
    if !path.is_dir() || all_in(path)? == [path] {
        return load(path);
    }
    load_newest(&folder_of(path))?.ok_or_else(|| Error::open(path, "it contains no checkpoint"))
}

/// Loads the newest good checkpoint in `folder` (RUN/ckpt). Damaged checkpoints are skipped with a warning. None when
/// there are no checkpoints.
///
/// Errors: 65 when there are checkpoints but none is good, or when the newest has a newer format (resuming from an
/// older one would discard work).
pub fn load_newest(folder: &Path) -> Result<Option<Loaded>> {
    let entries = list(folder)?;
    let mut problems = Vec::new();
    for entry in entries.iter().rev() {
        if entry.is_newer_format() {
            let problem = entry.problem().unwrap_or_default();
            return Err(Error::data(format!("{}: {problem}", entry.path.display())));
        }
        match load(&entry.path) {
            Ok(loaded) => return Ok(Some(loaded)),
            Err(error) => {
                warn!("skipping checkpoint: {error}");
                problems.push(error.to_string());
            }
        }
    }
    if problems.is_empty() {
        return Ok(None);
    }
    Err(Error::data(format!(
        "none of the {} checkpoints in {} is good; `ckpt verify` lists the damage. Restore one from a copy or \
         start a new run in another directory",
        problems.len(),
        folder.display()
    )))
}

fn try_load(path: &Path) -> Result<Loaded, Problem> {
    let manifest = Manifest::read(path)?;
    let files = manifest.files.par_iter().map(|entry| tensors(path, entry));
    let files = files.collect::<Result<_, Problem>>()?;
    Ok(Loaded { manifest, path: path.to_path_buf(), files })
}

/// Reads and verifies one file; returns its tensors in manifest order.
fn tensors(folder: &Path, entry: &FileEntry) -> Result<Vec<(String, Tensor)>, Problem> {
    let file = TensorFile::open(folder, entry)?;
    let mut hasher = blake3::Hasher::new();
    hasher.update(&file.header.bytes);
    let mut read = std::collections::HashMap::new();
    for stored in &file.header.entries {
        let tensor = file.tensor(&stored.name, |piece| {
            hasher.update(piece);
        })?;
        read.insert(stored.name.clone(), tensor);
    }
    let changed = || Problem::changed(&entry.name);
    if hasher.finalize().to_hex().as_str() != entry.blake3 {
        return Err(changed());
    }
    let mut take = |name: &String| Some((name.clone(), read.remove(name)?));
    entry.tensors.iter().map(|tensor| take(&tensor.name).ok_or_else(changed)).collect()
}
