//! Paths as users give them, to checkpoints.

use std::path::{Path, PathBuf};

use unix::{Error, Result};

use super::list::list;
use super::manifest::{self, Manifest};

/// The one checkpoint that `path` means: itself, or the newest of a run directory or of its `ckpt`.
/// Errors: 66 when there is none.
pub fn one_in(path: &Path) -> Result<PathBuf> {
    let all = all_in(path)?;
    all.last().cloned().ok_or_else(|| Error::open(path, "there is no checkpoint in it"))
}

/// All checkpoints that `path` means, the newest last: itself, or all of a run directory or of its
/// `ckpt`. Errors: 66 when `path` is nothing of that kind; a run without checkpoints has none.
pub fn all_in(path: &Path) -> Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Err(Error::open(path, "no such folder; a run or a checkpoint is wanted"));
    }
    if path.join(manifest::NAME).exists() {
        return Ok(vec![path.to_path_buf()]);
    }
    let own = list(&folder_of(path))?.into_iter().map(|entry| entry.path).collect::<Vec<_>>();
    // A checkpoint that lost its manifest is still meant as one.
    let named = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("step-"));
    Ok(if own.is_empty() && named { vec![path.to_path_buf()] } else { own })
}

/// The manifest of a checkpoint. Errors: 66 when it is missing, 65 when it is damaged or of a newer
/// format.
pub fn manifest_of(checkpoint: &Path) -> Result<Manifest> {
    Manifest::read(checkpoint).map_err(|fault| fault.error().context(checkpoint.display()))
}

/// The folder of checkpoints that `path` means: RUN/ckpt, or itself.
pub(super) fn folder_of(path: &Path) -> PathBuf {
    let inside = path.join("ckpt");
    if inside.is_dir() { inside } else { path.to_path_buf() }
}
