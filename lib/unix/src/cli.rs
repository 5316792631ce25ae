//! The `main` function of every program: parses the command line, runs the body and maps its result to an exit status.
//!
//! A program is `fn main() -> ExitCode { unix::cli::main::<Args>(body) }`, where `Args` derives [`clap::Parser`] with
//! `version = env!("LONGHAUL_VERSION")`. This provides: usage errors with status 2, errors as one line on stderr, a
//! silent exit when the reader of stdout closes the pipe, panics of any thread as one line and status 70, and the
//! hidden `--generate` (see `generate.rs`). clap handles coloured help and NO_COLOR.

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use clap::error::{ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{ArgMatches, Command, FromArgMatches, Parser};

use crate::{
    Error, Exit, Result, config, diagnostics, generate, limits, secrets, signal, terminal, text,
    time,
};

/// The shared option for the output format; use `#[command(flatten)]` to include it in `Args`.
#[derive(clap::Args, Clone, Copy, Debug, Default)]
pub struct Output {
    /// Write JSON lines instead of a table
    #[arg(long)]
    pub json: bool,
}

/// Arguments, together with the options that were given on the command line. For commands in which some options
/// have no effect on some inputs: they reject such options instead of ignoring them.
#[derive(Clone, Debug)]
pub struct Given<T> {
    /// The arguments.
    pub args: T,
    options: Vec<String>,
}

impl<T> Given<T> {
    /// Rejects every option on the command line that is not in `used`, which lists names without dashes; `why`
    /// completes the message `--OPTION: `. Errors: 2.
    pub fn require_only(&self, used: &[&str], why: &str) -> Result<()> {
        let unused = self.options.iter().filter(|option| !used.contains(&option.as_str()));
        let unused: Vec<String> = unused.map(|option| format!("--{option}")).collect();
        match unused.is_empty() {
            true => Ok(()),
            false => Err(Error::usage(format!("{}: {why}", unused.join(", ")))),
        }
    }
}

impl<T: clap::Args> FromArgMatches for Given<T> {
    fn from_arg_matches(found: &ArgMatches) -> Result<Self, clap::Error> {
        let command = T::augment_args(Command::new(""));
        let on_command_line = |argument: &&clap::Arg| {
            found.value_source(argument.get_id().as_str()) == Some(ValueSource::CommandLine)
        };
        let options = command.get_arguments().filter(on_command_line);
        let options =
            options.filter_map(|argument| argument.get_long()).map(String::from).collect();
        Ok(Self { args: T::from_arg_matches(found)?, options })
    }

    fn update_from_arg_matches(&mut self, found: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(found)?;
        Ok(())
    }
}

impl<T: clap::Args> clap::Args for Given<T> {
    fn augment_args(command: Command) -> Command {
        T::augment_args(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        T::augment_args_for_update(command)
    }
}

/// Upper limit for `--threads`, above any machine's core count: far more threads would take minutes to start and stop.
pub const MAX_THREADS: usize = 1024;

/// Parses the value of `--threads`.
pub fn threads(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(threads @ 1..=MAX_THREADS) => Ok(threads),
        _ => Err(format!("must be a number from 1 to {MAX_THREADS}")),
    }
}

/// The running program, as shown in messages and `env.json`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Program name, e.g. `train-stage`.
    pub name: String,
    /// Version, e.g. `0.1.0`.
    pub version: String,
    /// Git commit that the program was built from, or `unknown`.
    pub commit: String,
}

static PROGRAM: Mutex<Option<Program>> = Mutex::new(None);

/// Returns the running program; outside of [`main`] (tests, examples), a placeholder named `longhaul`.
pub fn program() -> Program {
    let known = PROGRAM.lock().unwrap_or_else(PoisonError::into_inner).clone();
    known.unwrap_or_else(|| Program {
        name: "longhaul".into(),
        version: env!("CARGO_PKG_VERSION").into(),
        commit: "unknown".into(),
    })
}

/// Runs a program that exits with one of the statuses of [`Exit`].
pub fn main<A: Parser>(body: fn(A) -> Result<Exit>) -> ExitCode {
    main_with_status(body)
}

/// Runs a program that may also exit with the status of a child process (`timekeep run`).
pub fn main_with_status<A: Parser, S: Into<ExitCode>>(body: fn(A) -> Result<S>) -> ExitCode {
    main_of(|command, _| command, body)
}

/// Runs a program whose arguments depend on the command line: `narrow` may change the command before it is parsed.
pub fn main_of<A: Parser, S: Into<ExitCode>>(
    narrow: fn(Command, &[OsString]) -> Command,
    body: fn(A) -> Result<S>,
) -> ExitCode {
    time::mark_process_start();
    signal::catch_early();
    let command = A::command();
    set_program(&command);
    secrets::register_environment();
    config::register_env_file();
    limits::install();
    end_on_panic();
    let words: Vec<OsString> = std::env::args_os().collect();
    if let Some(done) = generate::asked(command, &words) {
        return end(done);
    }
    // Hide these values: help would otherwise print the values of environment variables.
    let parsed = without_values(narrow(A::command(), &words)).try_get_matches_from(&words);
    match parsed.and_then(|found| A::from_arg_matches(&found)) {
        Ok(args) => end(body(args)),
        Err(error) => end_of_parsing(error),
    }
}

fn without_values(command: clap::Command) -> clap::Command {
    command.mut_args(|argument| argument.hide_env_values(true)).mut_subcommands(without_values)
}

fn set_program(command: &clap::Command) {
    let version = command.get_version().unwrap_or(env!("CARGO_PKG_VERSION"));
    let (number, commit) = version.split_once(" (").unwrap_or((version, "unknown"));
    *PROGRAM.lock().unwrap_or_else(PoisonError::into_inner) = Some(Program {
        name: command.get_name().into(),
        version: number.into(),
        commit: commit.trim_end_matches(')').into(),
    });
}

/// Prints the error, if any. An error with [`Exit::Done`] is the broken pipe of [`crate::out`] and is not printed.
fn end<S: Into<ExitCode>>(outcome: Result<S>) -> ExitCode {
    match outcome {
        Ok(status) => status.into(),
        Err(error) => {
            if error.exit != Exit::Done {
                diagnostics::say_error(&error);
            }
            error.exit.into()
        }
    }
}

/// Prints help and version to stdout with status 0, and any other outcome as a usage error to stderr with status 2.
fn end_of_parsing(mut error: clap::Error) -> ExitCode {
    let status = match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Exit::Done,
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => Exit::Usage,
        _ => {
            let values: Vec<_> =
                error.context().map(|(kind, value)| (kind, value.clone())).collect();
            for (kind, value) in values {
                if let ContextValue::String(value) = value {
                    error.insert(kind, ContextValue::String(text::quote(&value)));
                }
            }
            let words = error.render().to_string();
            let words = words.strip_prefix("error: ").unwrap_or(&words).trim_end();
            diagnostics::write(&text::lines(words));
            return Exit::Usage.into();
        }
    };
    match error.print() {
        Err(cause) if cause.kind() != std::io::ErrorKind::BrokenPipe => Exit::Io.into(),
        _ => status.into(),
    }
}

/// Number of calls of [`catch_panics`] that have not returned.
static CAUGHT: AtomicUsize = AtomicUsize::new(0);

/// Returns the result of `call`, or the message of its panic. For libraries that panic on damaged files. Other threads
/// must not depend on one another meanwhile, because a panic then ends only its own thread.
pub fn catch_panics<T>(call: impl FnOnce() -> T) -> std::result::Result<T, String> {
    CAUGHT.fetch_add(1, Ordering::Relaxed);
    let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(call));
    CAUGHT.fetch_sub(1, Ordering::Relaxed);
    found.map_err(|cause| {
        let text = cause.downcast_ref::<&str>().map(|text| (*text).to_string());
        text.or_else(|| cause.downcast_ref::<String>().cloned()).unwrap_or_default()
    })
}

/// Makes a panic in any thread print one line and exit with status 70 at once, because other threads may be waiting for
/// the one that panicked. Files stay intact, since they are renamed only once complete. If RUST_BACKTRACE is set, the
/// backtrace follows.
fn end_on_panic() {
    std::panic::set_hook(Box::new(|info| {
        let what = info.payload_as_str().unwrap_or("unknown cause");
        if CAUGHT.load(Ordering::Relaxed) > 0 {
            return;
        }
        terminal::restore();
        let place = info.location().map(|at| format!(" at {}:{}", at.file(), at.line()));
        let place = place.unwrap_or_default();
        diagnostics::say(format_args!("internal error: {what}{place} (please report)"));
        let trace = std::backtrace::Backtrace::capture();
        if trace.status() == std::backtrace::BacktraceStatus::Captured {
            let _ = writeln!(std::io::stderr(), "{trace}");
        }
        signal_hook::low_level::exit(Exit::Bug as i32);
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_is_split_into_number_and_commit() {
        set_program(&clap::Command::new("ckpt").version("1.2.3 (abcdef123456)"));
        assert_eq!(
            program(),
            Program { name: "ckpt".into(), version: "1.2.3".into(), commit: "abcdef123456".into() }
        );
        *PROGRAM.lock().unwrap() = None;
    }
}
