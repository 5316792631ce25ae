//! Trained models that other models depend on, and where to find them.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use unix::relative::{located, relative};

/// Trained models that a model depends on, by name, e.g. the `codec` whose latents it reads.
pub type Dependencies = BTreeMap<String, Dependency>;

/// A trained model that another model depends on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dependency {
    /// Run directory or checkpoint at the time of use; None if unknown.
    pub path: Option<PathBuf>,
    /// `path` relative to the run directory of the dependent model; None until recorded in a run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub relative: Option<PathBuf>,
    /// Hash over configuration, weights and buffers of the model. A replacement must have the same hash.
    pub hash: String,
}

impl Dependency {
    /// Creates a dependency located at `path`, without a relative path.
    pub fn new(path: Option<PathBuf>, hash: String) -> Self {
        Self { path, relative: None, hash }
    }

    /// Adds the path relative to `run`, the run directory of the dependent model, so that both can be moved together.
    pub(crate) fn recorded_in(self, run: &Path) -> Self {
        let path = self.path.as_deref().filter(|path| path.is_absolute());
        let relative = path.and_then(|path| relative(path, run).ok());
        Self { relative, ..self }
    }

    /// Resolves the location for a dependent model whose run directory is now `run`.
    pub(crate) fn found_from(self, run: &Path) -> Self {
        let path = located(self.path, self.relative.as_deref(), run);
        Self { path, relative: None, hash: self.hash }
    }
}
