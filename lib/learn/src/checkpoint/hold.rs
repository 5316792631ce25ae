//! The lease of a run, for whoever writes to its checkpoints.

use std::path::Path;

use unix::lease::Lease;
use unix::run_dir::RunDir;
use unix::{Error, Result};

use super::list::list;

/// Takes the lease of the run. Attempts are numbered on from what the run has of them. `stop` ends the
/// waiting for an owner that gives no sign of life.
///
/// Errors: 75 when another process is at work, 73.
pub(crate) fn hold(run: &RunDir, stop: &dyn Fn() -> bool) -> Result<Lease> {
    let first = || {
        let entries = list(&run.checkpoints())?;
        let saved = entries.iter().filter_map(|entry| Some(entry.manifest()?.attempt)).max();
        let newest = run.last_attempt()?.max(saved.unwrap_or(0));
        newest.checked_add(1).ok_or_else(|| {
            let path = run.path().display();
            Error::data(format!(
                "{path}: no attempt can follow attempt {newest} of env.json or a checkpoint"
            ))
        })
    };
    Lease::take(&run.lease(), first, stop)
}

/// The lease of the run whose checkpoints are in `folder`; none where that is a folder of checkpoints
/// without a run.
pub(super) fn hold_run_of(folder: &Path) -> Result<Option<Lease>> {
    // As the run names it: `.` and a link to it are the same folder.
    let folder = folder.canonicalize().map_err(|cause| Error::open(folder, cause))?;
    let Some(root) = folder.parent().filter(|_| folder.ends_with("ckpt")) else { return Ok(None) };
    let run = RunDir::open(root)?;
    let is_run = [run.lease(), run.log(), run.env()].iter().any(|path| path.exists());
    if is_run { hold(&run, &|| false).map(Some) } else { Ok(None) }
}
