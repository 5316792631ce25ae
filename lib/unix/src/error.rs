//! One error type for the whole toolkit: a message for the user and the exit status of the program.
//!
//! The status is chosen where the problem is detected, because only the code there knows whether a file was missing
//! (66), damaged (65) or not writable (73). Context that callers add does not change it.

use std::fmt;
use std::path::Path;

use crate::status::Cause;
use crate::text;

/// Maximum number of items printed by [`Error::list`]; longer lists are truncated.
const LISTED: usize = 100;

/// Exit status of every program (`longhaul(7)`, EXIT STATUS).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// The work is complete.
    Done = 0,
    /// A failure without a status of its own.
    Failure = 1,
    /// The command line is wrong.
    Usage = 2,
    /// The input data is invalid.
    Data = 65,
    /// An input file or folder is missing or unreadable.
    NoInput = 66,
    /// A bug in longhaul.
    Bug = 70,
    /// An output cannot be created.
    CannotCreate = 73,
    /// Reading or writing failed midway.
    Io = 74,
    /// Stopped early with a checkpoint: run the same command again.
    Again = 75,
    /// The configuration is wrong.
    Config = 78,
}

impl Exit {
    /// Returns the status with this number; [`Exit::Failure`] if there is none.
    pub fn of(number: u8) -> Self {
        use Exit::*;
        let all = [Done, Failure, Usage, Data, NoInput, Bug, CannotCreate, Io, Again, Config];
        all.into_iter().find(|exit| *exit as u8 == number).unwrap_or(Failure)
    }
}

impl From<Exit> for std::process::ExitCode {
    fn from(exit: Exit) -> Self {
        std::process::ExitCode::from(exit as u8)
    }
}

/// A failure as shown to the user: what happened, to which file, key or shape, and what to do.
#[derive(Debug)]
pub struct Error {
    /// Exit status of the program that ends with this error.
    pub exit: Exit,
    /// The cause, if it is one that programs distinguish.
    pub cause: Option<Cause>,
    message: String,
}

/// `Result` with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Creates an error with the given exit status. The message is reduced to one line; [`text::line`] describes its
    /// treatment of secrets, control characters and long names.
    pub fn new(exit: Exit, message: impl fmt::Display) -> Self {
        Self { exit, cause: None, message: text::line(&message.to_string()) }
    }

    /// Status 1: a failure without a status of its own.
    pub fn failure(message: impl fmt::Display) -> Self {
        Self::new(Exit::Failure, message)
    }
    /// Creates an error with a list below its first line, one item per line.
    pub fn list<T: fmt::Display>(exit: Exit, first: impl fmt::Display, items: &[T]) -> Self {
        let mut error = Self::new(exit, first);
        for item in items.iter().take(LISTED) {
            error.message += &format!("\n{}", text::line(&item.to_string()));
        }
        if let Some(more) = items.len().checked_sub(LISTED).filter(|more| *more > 0) {
            error.message += &format!("\n… and {more} more");
        }
        error
    }
    /// Combines all errors into one, with the exit status of the first.
    pub fn all(errors: &[Self]) -> Result<()> {
        let Some(first) = errors.first() else { return Ok(()) };
        let messages: Vec<&str> = errors.iter().map(|error| error.message.as_str()).collect();
        Err(Self { exit: first.exit, cause: first.cause, message: messages.join("\n") })
    }
    /// The command line is wrong (2).
    pub fn usage(message: impl fmt::Display) -> Self {
        Self::new(Exit::Usage, message)
    }
    /// The data is invalid (65).
    pub fn data(message: impl fmt::Display) -> Self {
        Self::new(Exit::Data, message)
    }
    /// A bug in longhaul (70).
    pub fn bug(message: impl fmt::Display) -> Self {
        Self::new(Exit::Bug, message)
    }
    /// The configuration is wrong (78).
    pub fn config(message: impl fmt::Display) -> Self {
        Self::new(Exit::Config, message)
    }
    /// Opening an input failed (66).
    pub fn open(path: &Path, cause: impl fmt::Display) -> Self {
        Self::new(Exit::NoInput, format!("cannot open {}: {cause}", path.display()))
    }
    /// Memory cannot be allocated (1).
    pub fn out_of_memory(message: impl fmt::Display) -> Self {
        Self::failure(message).caused_by(Cause::OutOfMemory)
    }
    /// Attaches a cause to the error.
    pub fn caused_by(mut self, cause: Cause) -> Self {
        self.cause = Some(cause);
        self
    }
    /// Creating an output failed (73).
    pub fn create(path: &Path, cause: impl fmt::Display) -> Self {
        Self::new(Exit::CannotCreate, format!("cannot create {}: {cause}", path.display()))
    }
    /// Reading or writing failed midway (74).
    pub fn io(path: &Path, cause: impl fmt::Display) -> Self {
        Self::new(Exit::Io, format!("{}: {cause}", path.display()))
    }
    /// Prefixes the message with `what`.
    pub fn context(mut self, what: impl fmt::Display) -> Self {
        self.message = format!("{}: {}", text::line(&what.to_string()), self.message);
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

/// Adds a description of the failed operation to an error; the exit status is kept.
pub trait Context<T> {
    /// Prefixes the error with `what`, which is only evaluated if there is an error.
    fn context<D: fmt::Display>(self, what: impl FnOnce() -> D) -> Result<T>;
}

impl<T> Context<T> for Result<T> {
    fn context<D: fmt::Display>(self, what: impl FnOnce() -> D) -> Result<T> {
        self.map_err(|error| error.context(what()))
    }
}
