//! Trained models that other models depend on, and where to find them.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use unix::relative::{located, relative};

/// The trained models that a model depends on, by name, e.g. the `codec` whose latents it reads.
pub type Dependencies = BTreeMap<String, Dependency>;

/// A trained model that another model depends on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dependency {
    /// Its run directory or checkpoint when it was used; None when that is unknown.
    pub path: Option<PathBuf>,
    /// The same relative to the run directory of the model that depends on it, once that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub relative: Option<PathBuf>,
    /// Hash over its configuration, weights and buffers. A replacement must have the same hash.
    pub hash: String,
}

impl Dependency {
    /// A dependency as a task finds it.
    pub fn new(path: Option<PathBuf>, hash: String) -> Self {
        Self { path, relative: None, hash }
    }

    /// As the model in `run` records it, so that both can be moved together.
    pub(crate) fn recorded_in(self, run: &Path) -> Self {
        let path = self.path.as_deref().filter(|path| path.is_absolute());
        let relative = path.and_then(|path| relative(path, run).ok());
        Self { relative, ..self }
    }

    /// As the model that is now in `run` finds it.
    pub(crate) fn found_from(self, run: &Path) -> Self {
        let path = located(self.path, self.relative.as_deref(), run);
        Self { path, relative: None, hash: self.hash }
    }
}
