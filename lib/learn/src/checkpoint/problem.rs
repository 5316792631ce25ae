//! Reasons why a checkpoint or one of its files cannot be used.

use std::fs::Metadata;
use std::io::ErrorKind::NotFound;
use std::path::Path;

use unix::{Error, Exit};

/// Problem with a checkpoint; the text describes it for users.
#[derive(Clone, Debug, PartialEq, Eq, strum::Display)]
pub(super) enum Problem {
    /// A file or directory is missing.
    #[strum(to_string = "{0}")]
    Missing(String),
    /// Something is present but invalid.
    #[strum(to_string = "{0}")]
    Damaged(String),
    /// The checkpoint is intact, but was written by a newer version of this program.
    #[strum(to_string = "{0}")]
    Newer(String),
}

impl Problem {
    /// Reports that `what`, a file or a tensor in it, does not match its hash.
    pub fn changed(what: impl std::fmt::Display) -> Self {
        Self::Damaged(format!("{what} was changed after it was written"))
    }

    /// Converts the problem into an error, for a checkpoint that the user requested explicitly.
    pub fn error(&self, checkpoint: &Path) -> Error {
        let exit = if matches!(self, Self::Missing(_)) { Exit::NoInput } else { Exit::Data };
        Error::new(exit, self).context(checkpoint.display())
    }
}

/// Returns the metadata of the file `name` in a checkpoint, without following links.
pub(super) fn metadata(checkpoint: &Path, name: &str) -> Result<Metadata, Problem> {
    std::fs::symlink_metadata(checkpoint.join(name)).map_err(|cause| match cause.kind() {
        NotFound => Problem::Missing(format!("{name} is missing")),
        _ => Problem::Damaged(format!("{name}: {cause}")),
    })
}
