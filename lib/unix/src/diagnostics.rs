//! Messages to the user on stderr: one line each, prefixed with the program's name (and rank).

use std::fmt;
use std::io::Write;
use std::sync::OnceLock;

use crate::{Error, cli, progress, text};

static RANK: OnceLock<(usize, usize)> = OnceLock::new();

/// Adds the rank to every following line: `train-stage[3/64]: …`. Has no effect with a single rank.
pub fn set_rank(rank: usize, world: usize) {
    let _ = RANK.set((rank, world)); // only the first call counts
}

/// Returns the prefix of messages: `train-stage`, or `train-stage[3/64]` in a job with several ranks.
pub fn speaker() -> String {
    let name = cli::program().name;
    match RANK.get() {
        Some((rank, world)) if *world > 1 => format!("{name}[{rank}/{world}]"),
        _ => name,
    }
}

/// Writes `NAME: message` to stderr as one line ([`text::line`]).
pub fn say(message: impl fmt::Display) {
    write(&text::line(&message.to_string()));
}

/// Writes an error, which may have several lines, to stderr.
pub fn say_error(error: &Error) {
    write(&text::lines(&error.to_string()));
}

/// Writes `NAME: message` to stderr in a single write, so that lines of different ranks do not interleave. Write errors
/// are ignored: a closed stderr is no reason to stop.
pub(crate) fn write(message: &str) {
    let line = format!("{}: {message}\n", speaker());
    progress::without_bar(|| {
        let _ = std::io::stderr().write_all(line.as_bytes());
    });
}

/// Prints a note to the user: `note!("resumed at update {update}")`.
#[macro_export]
macro_rules! note {
    ($($arg:tt)*) => { $crate::diagnostics::say(::core::format_args!($($arg)*)) };
}

/// Prints a warning to the user: something may be wrong, but the program continues.
#[macro_export]
macro_rules! warn {
    ($($arg:tt)*) => {
        $crate::diagnostics::say(::core::format_args!("warning: {}", ::core::format_args!($($arg)*)))
    };
}
