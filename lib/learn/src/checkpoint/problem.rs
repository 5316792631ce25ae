//! Why a checkpoint or one of its files cannot be used.

use std::fmt;

use unix::{Error, Exit};

/// What is wrong with a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Problem {
    /// Something is missing.
    Missing(String),
    /// Something is present but wrong.
    Damaged(String),
    /// It is intact, but was written by a newer version of this program.
    Newer(String),
}

impl Problem {
    /// The error when the user requested this particular checkpoint.
    pub fn error(&self) -> Error {
        match self {
            Problem::Missing(_) => Error::new(Exit::NoInput, self),
            Problem::Damaged(_) | Problem::Newer(_) => Error::data(self),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Problem::Missing(text) | Problem::Damaged(text) | Problem::Newer(text) => {
                f.write_str(text)
            }
        }
    }
}
