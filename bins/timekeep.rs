//! How long is left, and a command under a time limit.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use unix::budget::Budget;
use unix::cli::Output;
use unix::out::Out;
use unix::time::{format_duration, parse_duration, parse_limit};
use unix::timekeep::{self, Plan, Signal, parse_warn_signal};
use unix::{Result, note};

/// Tell how long is left, or run a command under a time limit
///
/// A batch job ends at a known time. timekeep tells how long that is, warns a command early enough
/// to save its work, waits until it is really gone, and hands its exit status on.
#[derive(Parser)]
#[command(name = "timekeep", version = env!("LONGHAUL_VERSION"), after_long_help = MANUAL)]
struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Print the seconds that are left, and who says so
    Left {
        #[command(flatten)]
        output: Output,
    },
    /// Run a command, warn it before the limit, wait for it, end it if it stays
    Run {
        /// Limit from now, e.g. 24:00:00, 1-12:00:00 or 90m; an earlier end of the job counts first
        #[arg(long, value_name = "TIME", default_value = "none", value_parser = limit)]
        limit: Limit,
        /// Warn the command this long before the limit
        #[arg(long, value_name = "TIME", default_value = "5m", value_parser = parse_duration)]
        margin: Duration,
        /// Signal of the warning: USR1, USR2, TERM, INT or HUP
        #[arg(long, value_name = "SIGNAL", default_value = "USR1", value_parser = parse_warn_signal)]
        warn_signal: Signal,
        /// Send TERM this long after the limit, and KILL as long after that
        #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse_duration)]
        grace: Duration,
        #[command(flatten)]
        output: Output,
        /// The command and its arguments
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<OsString>,
    },
}

/// clap takes a bare `Option` for "may be absent", so the limit has a name.
#[derive(Clone, Copy)]
struct Limit(Option<Duration>);

fn limit(text: &str) -> Result<Limit> {
    parse_limit(text).map(Limit)
}

const MANUAL: &str = "\
SIGNALS
  TERM, INT, HUP, USR1, USR2 and CONT are passed on to the command and all of its process group.
  To srun, which ends its step at once when it gets TERM, the warning is sent in place of TERM,
  INT and HUP.

EXIT STATUS
  timekeep run ends with the status of the command.
  128+n  The command was ended by signal n.
  127    The command was not found.
  126    The command cannot be run.
  2      The command line is wrong.

ENVIRONMENT
  SLURM_JOB_END_TIME  End of the job; where it is missing in a job, squeue is asked once.
  LONGHAUL_END_TIME   End that an outer timekeep set, in seconds since 1970; set for the command.

EXAMPLES
  How long is left:
    $ timekeep left
  For a script:
    $ test \"$(timekeep left | cut -d ' ' -f 1)\" != 0
  A day at most, USR1 ten minutes before its end:
    $ timekeep run --limit 24:00:00 --margin 10m -- sh -c 'echo training'
  How it ended, for a program:
    $ timekeep run --limit 1h --json -- true

SEE ALSO
  longhaul(7), train-stage(1), sbatch(1), timeout(1)
";

fn main() -> ExitCode {
    unix::cli::main_with_status(body)
}

fn body(args: Args) -> Result<u8> {
    match args.verb {
        Verb::Left { output } => left(output),
        Verb::Run { limit: Limit(limit), margin, warn_signal, grace, output, command } => {
            let ended = timekeep::run(&Plan { limit, margin, warn_signal, grace, command })?;
            if output.json {
                Out::stdout(output).item(&ended, "")?;
            }
            Ok(ended.status)
        }
    }
}

fn left(output: Output) -> Result<u8> {
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
        _ => "unlimited".into(),
    };
    let record = serde_json::json!({ "left": left.map(|left| left.as_secs()), "source": source });
    Out::stdout(output).item(&record, text)?;
    Ok(0)
}
