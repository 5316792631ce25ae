//! `timekeep run` and `timekeep left`: the time limits of a command and of a job.

use clap::Args;
use std::ffi::OsString;
use std::time::Duration;
use unix::budget::Budget;
use unix::cli::Output;
use unix::out::Out;
use unix::time::{format_duration, parse_limit};
use unix::timekeep::guard::Schedule;
use unix::timekeep::pipeline::step::{Attempt, STEP_VARIABLE};
use unix::timekeep::{self, CommandPlan, ExitPolicy};
use unix::{Exit, Result, note};

/// Arguments of `run`.
#[derive(Args)]
pub struct RunArgs {
    /// Time limit from now, e.g. 24:00:00, 1-12:00:00 or 90m; an earlier end of the job takes precedence
    #[arg(long, value_name = "TIME", default_value = "none", value_parser = limit)]
    limit: Limit,
    #[command(flatten)]
    schedule: Schedule,
    #[command(flatten)]
    then: ExitPolicy,
    #[command(flatten)]
    output: Output,
    /// Step of a pipeline: do nothing if it is up to date, else record how the command ends. If timekeep is
    /// killed, the command is ended at once
    #[arg(long, value_name = "FILE:NAME", env = STEP_VARIABLE)]
    step: Option<String>,
    /// The command and its arguments [default: those of the step]; with --step, a prefix and the command of the
    /// step
    #[arg(required_unless_present = "step", trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

/// A newtype, because clap would interpret a bare `Option` as an optional argument.
#[derive(Clone, Copy)]
struct Limit(Option<Duration>);

fn limit(text: &str) -> Result<Limit> {
    parse_limit(text).map(Limit)
}

/// Runs a command and ends it before the time limit.
pub fn run(args: RunArgs) -> Result<u8> {
    let RunArgs { limit: Limit(limit), schedule, then, output, step, mut command } = args;
    let mut attempt = None;
    if let Some(step) = &step {
        let Some((begun, words)) = Attempt::begin(step, command)? else { return Ok(0) };
        (attempt, command) = (Some(begun), words);
    }
    let ends_with_us = attempt.is_some();
    let plan = CommandPlan { limit, schedule, command, then, ends_with_us };
    timekeep::run(&plan, |ended| {
        attempt.map_or(Ok(()), |attempt| attempt.end(ended))?;
        if output.json { Out::stdout(output).item(ended, "") } else { Ok(()) }
    })
}

/// Prints the time left.
pub fn left(output: Output) -> Result<u8> {
    let budget = Budget::from_environment(None);
    for line in &budget.notes {
        note!("{line}");
    }
    let left = budget.left();
    let source = budget.end().map(|end| end.source);
    let text = match (left, source) {
        (Some(left), Some(source)) => {
            format!("{} s left ({}), says {source}", left.as_secs(), format_duration(left))
        }
        _ => budget.to_string(),
    };
    let record = serde_json::json!({ "left": left.map(|left| left.as_secs()), "source": source });
    Out::stdout(output).item(&record, text)?;
    Ok(if left.is_none() && budget.is_unknown { Exit::Again } else { Exit::Done } as u8)
}
