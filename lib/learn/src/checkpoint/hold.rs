//! Takes the lease of a run before its checkpoints are modified.

use std::path::Path;

use unix::lease::Lease;
use unix::run_dir::RunDir;
use unix::{Error, Result};

use super::list::list;

/// Takes the lease of the run and removes the leftovers of killed attempts. The attempt number continues from the
/// highest one recorded in the run. `stop` aborts the wait for an owner that has stopped sending heartbeats.
///
/// Errors: 75 when another process holds the lease, 73 when the lease cannot be created.
pub(crate) fn hold(run: &RunDir, stop: &dyn Fn() -> bool) -> Result<Lease> {
    let first = || {
        let entries = list(&run.checkpoints())?;
        let saved = entries.iter().filter_map(|entry| Some(entry.manifest()?.attempt)).max();
        let newest = run.last_attempt()?.max(saved.unwrap_or(0));
        newest.checked_add(1).ok_or_else(|| {
            let path = run.path().display();
            Error::data(format!(
                "{path}: attempt number {newest} in env.json or a checkpoint is too large"
            ))
        })
    };
    let lease = Lease::take(&run.lease(), first, stop)?;
    run.remove_leftovers();
    Ok(lease)
}

/// Takes the lease of the run whose checkpoints are in `folder`; None when the directory does not belong to a run.
pub(super) fn hold_run_of(folder: &Path) -> Result<Option<Lease>> {
    // Resolves `.` and symbolic links, so that the path ends in `ckpt` as in the run directory.
    let folder = folder.canonicalize().map_err(|cause| Error::open(folder, cause))?;
    let Some(root) = folder.parent().filter(|_| folder.ends_with("ckpt")) else { return Ok(None) };
    let run = RunDir::open(root)?;
    let is_run = [run.lease(), run.log(), run.env()].iter().any(|path| path.exists());
    if is_run { hold(&run, &|| false).map(Some) } else { Ok(None) }
}
