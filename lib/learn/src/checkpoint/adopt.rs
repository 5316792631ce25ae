//! Saves that were whole but not yet named when their process or machine died.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde::Serialize;
use unix::publish::TEMPORARY_PREFIX;
use unix::{Error, Result};

use super::find::{folder_of, manifest_of};
use super::list::folder_name;
use super::prune::refuse_at_work;
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
    refuse_at_work(&folder)?;
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
    let io = |cause: io::Error| Error::io(&path, cause);
    // Its process may have died before all of it was on the disk.
    sync_files(&path).map_err(io)?;
    if fs::symlink_metadata(&target).is_ok() {
        let why = format!("{} is there already", target.display());
        return Ok(Adopted { path, checkpoint: None, why: Some(why) });
    }
    match renameat_with(CWD, &path, CWD, &target, RenameFlags::NOREPLACE) {
        // Some network file systems know no such rename; that nothing is there was just seen.
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => fs::rename(&path, &target),
        other => other.map_err(io::Error::from),
    }
    .and_then(|()| File::open(folder)?.sync_all())
    .map_err(io)?;
    Ok(Adopted { path, checkpoint: Some(target), why: None })
}

/// Makes the files of a folder, and their names in it, durable.
fn sync_files(folder: &Path) -> io::Result<()> {
    for item in fs::read_dir(folder)? {
        let item = item?;
        if item.file_type()?.is_file() {
            File::open(item.path())?.sync_all()?;
        }
    }
    File::open(folder)?.sync_all()
}
