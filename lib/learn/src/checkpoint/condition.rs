//! A precondition for publishing a checkpoint that only the writing thread can check.

use std::fmt;
use std::sync::Arc;

use unix::Result;

use super::manifest::FileEntry;

/// Checked after all files of a checkpoint except the manifest have been written. If it returns an error, no checkpoint
/// is created.
#[derive(Clone)]
pub struct Condition(Arc<Holds>);

type Holds = dyn Fn(&[FileEntry]) -> Result<()> + Send + Sync;

impl Condition {
    /// Wraps `holds`, which may block while it waits for other threads.
    pub fn new(holds: impl Fn(&[FileEntry]) -> Result<()> + Send + Sync + 'static) -> Self {
        Self(Arc::new(holds))
    }

    pub(super) fn check(&self, files: &[FileEntry]) -> Result<()> {
        (self.0)(files)
    }
}

impl fmt::Debug for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Condition")
    }
}
