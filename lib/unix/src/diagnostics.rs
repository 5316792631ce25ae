//! Talk to the user on stderr: one line each, with the program's name (and rank) in front.

use std::fmt;
use std::io::Write;
use std::sync::OnceLock;

use crate::{Error, cli, progress, text};

static RANK: OnceLock<(usize, usize)> = OnceLock::new();

/// From now on every line names the rank: `train-stage[3/64]: …`. With one rank nothing changes.
pub fn set_rank(rank: usize, world: usize) {
    let _ = RANK.set((rank, world)); // said twice: the first stays
}

/// `train-stage`, or `train-stage[3/64]` in a job of many ranks.
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

/// The same of an error, whose message may be a list.
pub fn say_error(error: &Error) {
    write(&text::lines(&error.to_string()));
}

/// Writes `NAME: message` to stderr in a single write, so that lines of many ranks stay whole.
/// A closed stderr is no reason to stop working and is ignored.
pub(crate) fn write(message: &str) {
    let line = format!("{}: {message}\n", speaker());
    progress::without_bar(|| {
        let _ = std::io::stderr().write_all(line.as_bytes());
    });
}

/// Tells the user something worth knowing: `note!("resumed at update {update}")`.
#[macro_export]
macro_rules! note {
    ($($arg:tt)*) => { $crate::diagnostics::say(::core::format_args!($($arg)*)) };
}

/// Tells the user of something that may be wrong while the work goes on.
#[macro_export]
macro_rules! warn {
    ($($arg:tt)*) => {
        $crate::diagnostics::say(::core::format_args!("warning: {}", ::core::format_args!($($arg)*)))
    };
}
