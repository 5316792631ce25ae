//! Removes checkpoints. A checkpoint is renamed first, so that readers never find a partially removed one.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use unix::disk::{Disk, Rename};
use unix::publish::{Publisher, TEMPORARY_PREFIX};
use unix::{Error, Result, warn};

use super::write::step;

/// Name prefix of directories that are being removed.
const PREFIX: &str = ".trash-";

/// Returns a unique name next to `path` that is not recognised as a checkpoint.
pub(super) fn name(path: &Path) -> PathBuf {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let (host, pid) = (unix::host::name(), std::process::id());
    let count = COUNTER.fetch_add(1, Ordering::Relaxed);
    path.with_file_name(format!("{PREFIX}{name}-{host}-{pid}-{count}"))
}

/// Removes the checkpoint `path`. The rename is durable before anything in it is unlinked, so after a crash the name
/// refers either to the complete checkpoint or to nothing.
pub(super) fn remove(disk: &dyn Disk, path: &Path) -> Result<()> {
    let trash = name(path);
    Publisher::new(disk).rename(path, &trash, Rename::New)?;
    step("save.after_trash", path)?;
    discard(disk, &trash);
    Ok(())
}

/// Deletes a renamed directory. If this fails, the next attempt tries again.
pub(super) fn discard(disk: &dyn Disk, trash: &Path) {
    if let Err(cause) = disk.remove_all(trash) {
        warn!("cannot remove {}: {cause}", trash.display());
    }
}

/// Deletes the leftovers of interrupted saves. Only the process that holds the run's lease may call this.
pub(super) fn remove_leftovers(disk: &dyn Disk, folder: &Path) -> Result<()> {
    let found = fs::read_dir(folder).map_err(|cause| Error::open(folder, cause))?;
    for item in found {
        let item = item.map_err(|cause| Error::open(folder, cause))?;
        let name = item.file_name();
        let name = name.to_string_lossy();
        if name.starts_with(TEMPORARY_PREFIX) || name.starts_with(PREFIX) {
            discard(disk, &item.path());
        }
    }
    Ok(())
}
