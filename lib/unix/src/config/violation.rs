//! Violations in a configuration, which are all reported at once.

use std::fmt;

use crate::{Error, Exit, text};

/// A violation: the source of the value, its key, and the problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Violation {
    /// The file or `-s KEY=VALUE` that the value came from; empty if no value was given.
    pub source: String,
    /// Path of the key, e.g. `model.backbone.hidden`; empty for the whole file.
    pub key: String,
    /// The problem and the expected values.
    pub message: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in [&self.source, &self.key] {
            if !part.is_empty() {
                write!(f, "{}: ", text::quote(part))?;
            }
        }
        f.write_str(&self.message)
    }
}

/// Combines all violations into one error (78) with one violation per line.
pub(super) fn report(violations: &[Violation]) -> Error {
    match violations {
        [only] => Error::config(only),
        many => {
            let first = format!("{} problems in the configuration:", many.len());
            Error::list(Exit::Config, first, many)
        }
    }
}
