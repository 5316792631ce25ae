//! Violations of a configuration, all of them reported at once.

use std::fmt;

use crate::{Error, Exit, text};

/// One violation: where it was written, which key it is about, what is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Violation {
    /// File, or `-s KEY=VALUE`, that the value came from; empty when nothing was given.
    pub source: String,
    /// Path of the key, e.g. `model.core.hidden`; empty for the whole file.
    pub key: String,
    /// What is wrong and what would be right.
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

/// One error (78) out of all violations, a line each.
pub(super) fn report(violations: &[Violation]) -> Error {
    match violations {
        [only] => Error::config(only),
        many => {
            let first = format!("{} problems in the configuration:", many.len());
            Error::list(Exit::Config, first, many)
        }
    }
}
