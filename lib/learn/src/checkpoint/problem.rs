//! Why a checkpoint, or a part of it, cannot be used.

use std::fmt;

use unix::{Error, Exit};

/// What is wrong with a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Problem {
    /// Something is not there.
    Missing(String),
    /// Something is there and wrong.
    Damaged(String),
    /// It is whole, and made by a later version of this program.
    Newer(String),
}

impl Problem {
    /// The error for a user who asked for just this checkpoint.
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
