//! What must hold of a checkpoint before it gets its name, as far as only the thread that writes it can know.

use std::fmt;
use std::sync::Arc;

use unix::Result;

use super::manifest::FileEntry;

/// A condition on the files of a checkpoint, asked when all are written but the manifest. With an error
/// there is no checkpoint.
#[derive(Clone)]
pub struct Condition(Arc<Holds>);

type Holds = dyn Fn(&[FileEntry]) -> Result<()> + Send + Sync;

impl Condition {
    /// That `holds`; it may wait for what other threads tell it.
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
