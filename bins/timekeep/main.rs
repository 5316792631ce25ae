//! `timekeep`: the command line, the manual and the time-limit commands; `runs.rs` has the commands for runs.

mod pipeline;
mod runs;
mod watch;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use unix::budget::Budget;
use unix::cli::Output;
use unix::out::Out;
use unix::time::{format_duration, parse_limit};
use unix::timekeep::guard::{self, Schedule, VERB};
use unix::timekeep::pipeline::step::{Attempt, STEP_VARIABLE};
use unix::timekeep::{self, CommandPlan, Signal, Then, parse_warn_signal};
use unix::{Exit, Result, note};

/// Manage the time limits of jobs: time left, warning, requeueing, status of runs
///
/// A batch job ends at a known time, and a run may need many jobs. timekeep prints the time left, warns a command early
/// enough to save its work, waits until it has exited, and has SLURM requeue the job if the command did not finish. It
/// reports the state of runs, submits those that stopped, and computes the best checkpoint interval.
/// longhaul-slurm(7) is an introduction, and says which exit statuses requeue a job, which runs cron submits, and how
/// signals are passed on.
#[derive(Parser)]
#[command(name = "timekeep", version = env!("LONGHAUL_VERSION"), after_long_help = MANUAL)]
struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Print the seconds left until the time limit, and its source
    Left {
        #[command(flatten)]
        output: Output,
    },
    /// Run a command, warn it before the time limit, and end it if it does not exit; in a batch job, requeue the job
    /// if it exits with 75
    Run {
        /// Time limit from now, e.g. 24:00:00, 1-12:00:00 or 90m; an earlier end of the job takes precedence
        #[arg(long, value_name = "TIME", default_value = "none", value_parser = limit)]
        limit: Limit,
        #[command(flatten)]
        schedule: Schedule,
        #[command(flatten)]
        then: Then,
        #[command(flatten)]
        output: Output,
        /// Step of a pipeline: do nothing if it is up to date, else record how the command ends. If timekeep is
        /// killed, the command is ended at once
        #[arg(long, value_name = "FILE:NAME", env = STEP_VARIABLE)]
        step: Option<String>,
        /// The command and its arguments [default: those of the step]; with --step, a prefix and the command of the
        /// step
        #[arg(
            required_unless_present = "step",
            trailing_var_arg = true,
            allow_hyphen_values = true
        )]
        command: Vec<OsString>,
    },
    /// Show the steps of a pipeline, one per line: state, hours so far and command
    ///
    /// A step is done if its command has succeeded and neither the command, the files that it names, nor a step before
    /// it has changed since. longhaul-slurm(7) describes the file.
    Pipeline(pipeline::PipelineArgs),
    /// Show the state of runs and studies, one per line
    ///
    /// A study of hpo is one line, with the number of trials that have ended. Its trials are runs: name their folders,
    /// STUDY/trials/*, to see them.
    Status {
        /// Run directories and studies; `-` reads their names from stdin
        #[arg(required = true)]
        runs: Vec<PathBuf>,
        #[command(flatten)]
        output: Output,
    },
    /// Watch runs: a page on the terminal with progress, time left, cost, validations, warnings and curves
    ///
    /// Reads only the files of the runs, so it can run on a login node; it asks SLURM nothing. The time left follows
    /// from the pace of the last updates. The price of an hour is cost.rate_per_hour, else LONGHAUL_RATE_PER_HOUR of the
    /// environment or of the site file that the run was submitted with. The key q, Ctrl-C or TERM ends it. If stdout is
    /// not a terminal, the page is printed once.
    Watch(watch::WatchArgs),
    /// Compute the best checkpoint interval from the cost of a checkpoint and the failure rate of nodes
    Interval(runs::IntervalArgs),
    /// Submit a run to SLURM, and record the command for cron
    Submit {
        /// Site file with variables for the command and the job, one NAME=VALUE per line. Nothing in it is expanded or
        /// executed; a misspelt variable of sbatch or longhaul is an error
        #[arg(long, value_name = "FILE")]
        site: Option<PathBuf>,
        /// Submit nothing; cron ignores the run until it is submitted again
        #[arg(long, conflicts_with_all = ["site", "command"])]
        forget: bool,
        /// Step of a pipeline that the job runs: submit nothing if it is up to date
        #[arg(long, value_name = "FILE:NAME", env = STEP_VARIABLE)]
        step: Option<String>,
        #[command(flatten)]
        output: Output,
        /// Run directory, created if missing
        run: PathBuf,
        /// Command that submits the job, e.g. sbatch and its arguments; runs without a shell
        #[arg(
            required_unless_present = "forget",
            trailing_var_arg = true,
            allow_hyphen_values = true
        )]
        command: Vec<String>,
    },
    /// Resubmit runs that stopped, except those that are finished, have failed or were cancelled
    ///
    /// Trials of a study of hpo are left alone: its workers resume them.
    Cron {
        /// Run directories that were submitted with timekeep submit; `-` reads their names from stdin
        #[arg(required = true)]
        runs: Vec<PathBuf>,
        #[command(flatten)]
        output: Output,
    },
    /// Enforce the limit of a command whose timekeep was killed
    #[command(name = VERB, hide = true)]
    Guard(GuardArgs),
}

/// The arguments of the guard, which timekeep starts itself.
#[derive(clap::Args)]
struct GuardArgs {
    group: i32,
    margin: u64,
    grace: u64,
    #[arg(value_parser = parse_warn_signal)]
    warn_signal: Signal,
    end: u64,
}

/// A newtype, because clap would interpret a bare `Option` as an optional argument.
#[derive(Clone, Copy)]
struct Limit(Option<Duration>);

fn limit(text: &str) -> Result<Limit> {
    parse_limit(text).map(Limit)
}

const MANUAL: &str = "\
EXIT STATUS
  timekeep run exits with the status of the command.
  128+n  The command was ended by signal n.
  254    srun could not start a step; timekeep sets SLURM_EXIT_ERROR so that srun reports this.
  127    The command was not found.
  126    The command cannot be executed.
  2      The command line is wrong.
  65     A stamp, a result of a step or another record is damaged.
  66     A run directory, a pipeline or a file that a step names is missing.
  75     SLURM does not answer: submit and cron submitted nothing, and left does not know the end of the job.
  78     A pipeline or a site file is wrong, or --step is given the command of another step.
  1      For submit and cron: a submission failed.

EXAMPLES
  Show the time left:
    $ timekeep left
  Test in a script whether any time is left:
    $ test \"$(timekeep left | cut -d ' ' -f 1)\" != 0
  A limit of one day, with USR1 ten minutes before it:
    $ timekeep run --limit 24:00:00 --margin 10m -- sh -c 'echo training'
  Report how a command ended, as JSON:
    $ timekeep run --limit 1h --json -- true
  A checkpoint that takes 20 s, on 16 nodes that each fail once in 200 days:
    $ timekeep interval --cost 20s --mtbf 200d --nodes 16
  Submit a run (`echo 12` stands for `sbatch --parsable train.sbatch ...`), then show its state:
    $ timekeep submit runs/codec -- echo 12
    $ timekeep status runs/codec
  The same on a page, with the curves of those that have begun, in a terminal until q is pressed:
    $ timekeep watch runs/codec --once
  Submit no more jobs for it:
    $ timekeep submit --forget runs/codec
  A pipeline of two steps: run the first one, then show the state of both:
    $ printf '%s\\n' 'folder: runs/p' 'steps:' '- {name: a, run: date}' '- {name: b, run: date}' >p.yaml
    $ timekeep run --step p.yaml:a
    $ timekeep pipeline p.yaml

SEE ALSO
  longhaul-slurm(7), longhaul(7), train-stage(1), sbatch(1), scontrol(1), timeout(1)
";

fn main() -> ExitCode {
    unix::cli::main_with_status(body)
}

fn body(args: Args) -> Result<u8> {
    match args.verb {
        Verb::Left { output } => left(output),
        Verb::Status { runs, output } => runs::status(&runs, output),
        Verb::Watch(args) => watch::watch(&args),
        Verb::Interval(args) => runs::interval(&args),
        Verb::Submit { forget: true, output, run, .. } => runs::forget(&run, output),
        Verb::Submit { site, step, output, run, command, .. } => {
            runs::submit(&run, &command, site.as_deref(), step.as_deref(), output)
        }
        Verb::Guard(GuardArgs { group, margin, grace, warn_signal, end }) => {
            let [margin, grace] = [margin, grace].map(Duration::from_secs);
            guard::run(group, Schedule { margin, grace, warn_signal }, end).map(|()| 0)
        }
        Verb::Cron { runs, output } => runs::cron(&runs, output),
        Verb::Pipeline(args) => pipeline::pipeline(&args),
        Verb::Run { limit: Limit(limit), schedule, then, output, step, mut command } => {
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
        _ => budget.to_string(),
    };
    let record = serde_json::json!({ "left": left.map(|left| left.as_secs()), "source": source });
    Out::stdout(output).item(&record, text)?;
    Ok(if left.is_none() && budget.is_unknown { Exit::Again } else { Exit::Done } as u8)
}
