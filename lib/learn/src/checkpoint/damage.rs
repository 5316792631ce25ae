//! Why a checkpoint, or a part of it, cannot be used.

use std::fmt;

use unix::{Error, Exit};

/// A fault of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// Something is not there.
    Missing(String),
    /// Something is there and wrong.
    Damaged(String),
    /// It is whole, and made by a later version of this program.
    Newer(String),
}

impl Fault {
    /// The error for a user who asked for just this checkpoint.
    pub fn error(&self) -> Error {
        match self {
            Fault::Missing(_) => Error::new(Exit::NoInput, self),
            Fault::Damaged(_) | Fault::Newer(_) => Error::data(self),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Missing(text) | Fault::Damaged(text) | Fault::Newer(text) => f.write_str(text),
        }
    }
}
