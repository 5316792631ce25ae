//! Saves that were whole but not yet named when their process or machine died.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;
use unix::disk::{Disk, RealDisk, Rename};
use unix::publish::{Publisher, TEMPORARY_PREFIX};
use unix::{Error, Result};

use super::find::{folder_of, manifest_of};
use super::hold::hold_run_of;
use super::list::folder_name;
use super::verify::verify;

/// What became of a temporary folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Adopted {
    /// The temporary folder.
    pub path: PathBuf,
    /// The checkpoint that it is now.
    pub checkpoint: Option<PathBuf>,
    /// Why it was left alone.
    pub why: Option<String>,
}

/// Gives every temporary folder of a run (or of its `ckpt`) that is a whole checkpoint its name. All
/// others, and those whose name is taken, are left alone; training removes them at its next start.
///
/// Errors: 66 when there is no such run, 75 while it is at work, 74.
pub fn adopt(run: &Path) -> Result<Vec<Adopted>> {
    if !run.is_dir() {
        return Err(Error::open(run, "no such folder; a run or its ckpt is wanted"));
    }
    let folder = folder_of(run);
    let _lease = hold_run_of(&folder)?;
    let mut paths = Vec::new();
    for item in fs::read_dir(&folder).map_err(|cause| Error::open(&folder, cause))? {
        let item = item.map_err(|cause| Error::open(&folder, cause))?;
        let ours = item.file_name().to_string_lossy().starts_with(TEMPORARY_PREFIX);
        // Not through a link: what lies elsewhere is not ours to name.
        if ours && item.file_type().is_ok_and(|kind| kind.is_dir()) {
            paths.push(item.path());
        }
    }
    paths.sort();
    paths.into_iter().map(|path| adopt_one(&folder, path)).collect()
}

fn adopt_one(folder: &Path, path: PathBuf) -> Result<Adopted> {
    if let Some(damage) = verify(&path)?.damage.first() {
        return Ok(Adopted { why: Some(damage.to_string()), path, checkpoint: None });
    }
    let target = folder.join(folder_name(manifest_of(&path)?.update));
    // Its process may have died before all of it was on the disk.
    RealDisk.sync_all(&path).map_err(|cause| Error::io(&path, cause))?;
    if fs::symlink_metadata(&target).is_ok() {
        let why = format!("{} is there already", target.display());
        return Ok(Adopted { path, checkpoint: None, why: Some(why) });
    }
    Publisher::new(&RealDisk).rename(&path, &target, Rename::New)?;
    Ok(Adopted { path, checkpoint: Some(target), why: None })
}
