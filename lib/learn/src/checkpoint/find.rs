//! Resolves user-supplied paths to checkpoints.

use std::path::{Path, PathBuf};

use unix::{Error, Result};

use super::list::list;
use super::manifest::{self, Manifest};

/// Resolves `path` to one checkpoint: the path itself, or the newest checkpoint of a run directory or of its `ckpt`.
/// Errors: 66 when there is none.
pub fn one_in(path: &Path) -> Result<PathBuf> {
    let all = all_in(path)?;
    all.last().cloned().ok_or_else(|| Error::open(path, "it contains no checkpoint"))
}

/// Resolves `path` to checkpoints, newest last: the path itself, or all checkpoints of a run directory or of its
/// `ckpt`; empty for a run without checkpoints. Errors: 66 when `path` is neither.
pub fn all_in(path: &Path) -> Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Err(Error::open(path, "not a directory; expected a run directory or a checkpoint"));
    }
    if path.join(manifest::NAME).exists() {
        return Ok(vec![path.to_path_buf()]);
    }
    let own = list(&folder_of(path))?.into_iter().map(|entry| entry.path).collect::<Vec<_>>();
    // A checkpoint without a manifest still counts as one, so that its damage is reported.
    let named = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("step-"));
    Ok(if own.is_empty() && named { vec![path.to_path_buf()] } else { own })
}

/// Reads the manifest of a checkpoint. Errors: 66 when it is missing, 65 when it is damaged or has a newer format.
pub fn manifest_of(checkpoint: &Path) -> Result<Manifest> {
    Manifest::read(checkpoint).map_err(|problem| problem.error(checkpoint))
}

/// The checkpoint directory that `path` refers to: RUN/ckpt, or `path` itself.
pub(super) fn folder_of(path: &Path) -> PathBuf {
    let inside = path.join("ckpt");
    if inside.is_dir() { inside } else { path.to_path_buf() }
}

/// Like [`folder_of`]. Errors: 66 when `path` is not a directory.
pub(super) fn require_folder(path: &Path) -> Result<PathBuf> {
    if path.is_dir() {
        return Ok(folder_of(path));
    }
    Err(Error::open(path, "not a directory; expected a run directory or its ckpt"))
}
