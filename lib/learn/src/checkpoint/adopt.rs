//! Recovers checkpoints that were completely written but not yet renamed when their process or node died.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;
use unix::disk::{Disk, RealDisk, Rename};
use unix::publish::{Publisher, TEMPORARY_PREFIX};
use unix::{Error, Result};

use super::find::{manifest_of, require_folder};
use super::hold::hold_run_of;
use super::list::folder_name;
use super::verify::verify;

/// Outcome for one temporary directory, returned by [`adopt`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AdoptOutcome {
    /// Path of the temporary directory.
    pub path: PathBuf,
    /// Final path of the checkpoint; None when the directory was left alone.
    pub checkpoint: Option<PathBuf>,
    /// Reason for leaving the directory alone; None when it was adopted.
    pub why: Option<String>,
}

/// Renames every temporary directory of a run (or of its `ckpt`) that holds a complete checkpoint. Incomplete ones, and
/// those whose target name already exists, are left alone; training removes them when it next starts.
///
/// Errors: 66 when there is no such run, 75 while a process is training it, 74 when an I/O operation fails.
pub fn adopt(run: &Path) -> Result<Vec<AdoptOutcome>> {
    let folder = require_folder(run)?;
    let _lease = hold_run_of(&folder)?;
    let mut paths = Vec::new();
    for item in fs::read_dir(&folder).map_err(|cause| Error::open(&folder, cause))? {
        let item = item.map_err(|cause| Error::open(&folder, cause))?;
        let ours = item.file_name().to_string_lossy().starts_with(TEMPORARY_PREFIX);
        // Symbolic links are ignored: their targets do not belong to this run.
        if ours && item.file_type().is_ok_and(|kind| kind.is_dir()) {
            paths.push(item.path());
        }
    }
    paths.sort();
    paths.into_iter().map(|path| adopt_one(&folder, path)).collect()
}

fn adopt_one(folder: &Path, path: PathBuf) -> Result<AdoptOutcome> {
    if let Some(damage) = verify(&path)?.damage.first() {
        return Ok(AdoptOutcome { why: Some(damage.to_string()), path, checkpoint: None });
    }
    let target = folder.join(folder_name(manifest_of(&path)?.update));
    // The process may have died before everything was on disk.
    RealDisk.sync_all(&path).map_err(|cause| Error::io(&path, cause))?;
    if fs::symlink_metadata(&target).is_ok() {
        let why = format!("{} already exists", target.display());
        return Ok(AdoptOutcome { path, checkpoint: None, why: Some(why) });
    }
    Publisher::new(&RealDisk).rename(&path, &target, Rename::New)?;
    Ok(AdoptOutcome { path, checkpoint: Some(target), why: None })
}
