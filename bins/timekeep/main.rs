//! `timekeep`: the command line, the manual and the time-limit commands; `runs.rs` has the commands for runs.

mod runs;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum};
use unix::budget::Budget;
use unix::cli::Output;
use unix::out::Out;
use unix::time::{format_duration, parse_duration, parse_limit};
use unix::timekeep::guard::{self, Schedule, VERB};
use unix::timekeep::{self, CommandPlan, Signal, Then, parse_warn_signal};
use unix::{Exit, Result, note};

/// Keep the time of jobs: how long is left, warn, wait, start again
///
/// A batch job ends at a known time, and a run needs many jobs. timekeep tells how long is left, warns a
/// command early enough to save its work, waits until it is really gone, and has SLURM start the job again
/// when the command says that it is not done. It tells how runs stand, submits those that stopped, and
/// how often a checkpoint pays. longhaul-slurm(7) has the whole story.
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
    /// Run a command, warn it before the limit, wait for it, end it if it stays; in a batch job, have the
    /// job started again when it ends with 75
    Run {
        /// Limit from now, e.g. 24:00:00, 1-12:00:00 or 90m; an earlier end of the job counts first
        #[arg(long, value_name = "TIME", default_value = "none", value_parser = limit)]
        limit: Limit,
        /// Warn the command this long before the limit
        #[arg(long, value_name = "TIME", default_value = "5m", value_parser = parse_duration)]
        #[arg(env = "LONGHAUL_MARGIN")]
        margin: Duration,
        /// Signal of the warning: USR1, USR2, TERM, INT or HUP
        #[arg(long, value_name = "SIGNAL", default_value = "USR1", value_parser = parse_warn_signal)]
        warn_signal: Signal,
        /// Send TERM this long after the limit, and KILL as long after that
        #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse_duration)]
        grace: Duration,
        /// When the command ends with 75 in the script of a batch job
        #[arg(long, value_name = "WHEN", default_value = "auto")]
        requeue: Requeue,
        /// When the command fails in the script of a batch job, or was started again too often
        #[arg(long, value_name = "WHAT", default_value = "end", env = "LONGHAUL_ON_FAILURE")]
        on_failure: OnFailure,
        /// Do not start a job again that SLURM has started again this often
        #[arg(long, value_name = "COUNT", default_value_t = 1000, env = "LONGHAUL_MAX_RESTARTS")]
        max_restarts: u32,
        #[command(flatten)]
        output: Output,
        /// The command and its arguments
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<OsString>,
    },
    /// Tell how runs stand, a line each
    Status {
        /// Run directories; `-` reads their names from stdin
        #[arg(required = true)]
        runs: Vec<PathBuf>,
        #[command(flatten)]
        output: Output,
    },
    /// Tell how far apart checkpoints should be, for what they cost and how often nodes fail
    Interval(runs::IntervalArgs),
    /// Submit a run to SLURM, and write down how, for cron
    Submit {
        /// Variables for the command and the job, NAME=VALUE a line; nothing in it is expanded or run, and a
        /// misspelt name of sbatch or longhaul is a fault
        #[arg(long, value_name = "FILE")]
        site: Option<PathBuf>,
        /// Submit nothing: cron is to leave the run alone until it is submitted again
        #[arg(long, conflicts_with_all = ["site", "command"])]
        forget: bool,
        #[command(flatten)]
        output: Output,
        /// Run directory, made if absent
        run: PathBuf,
        /// The command that submits, e.g. sbatch and its words; no shell sees it
        #[arg(
            required_unless_present = "forget",
            trailing_var_arg = true,
            allow_hyphen_values = true
        )]
        command: Vec<String>,
    },
    /// Submit again what stopped; leave alone what runs, waits, is finished, has failed or was cancelled
    Cron {
        /// Run directories that timekeep submit has seen; `-` reads their names from stdin
        #[arg(required = true)]
        runs: Vec<PathBuf>,
        #[command(flatten)]
        output: Output,
    },
    /// Keep the limit of a command whose timekeep was killed
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
}

#[derive(Clone, Copy, ValueEnum)]
enum Requeue {
    /// SLURM is asked to start the job again, and timekeep stays until it is ended
    Auto,
    /// The status is handed on, and that is all
    Never,
}

#[derive(Clone, Copy, ValueEnum)]
enum OnFailure {
    /// The job ends with the status of the command
    End,
    /// The job is kept in the queue until it is released; jobs that depend on it keep waiting
    Hold,
}

/// clap interprets a bare `Option` as an optional argument, hence the newtype.
#[derive(Clone, Copy)]
struct Limit(Option<Duration>);

fn limit(text: &str) -> Result<Limit> {
    parse_limit(text).map(Limit)
}

const MANUAL: &str = "\
STARTING AGAIN
  In the script of a batch job, and nowhere else, timekeep acts on the status of the command:
    0    The job is done.
    75   `scontrol requeue`: SLURM starts the same job again, and its dependents keep waiting.
    143, 137  The same: TERM ended a program without a handler, or somebody, or the kernel for want of
         memory, killed it. The exception is a command that timekeep itself had to kill after the limit.
    254  Of srun itself: it could not start a step. timekeep runs srun again, three times in all. If it still
         fails, the job is requeued and held. If the controller does not answer, or timekeep receives TERM,
         INT, HUP or USR1 meanwhile, srun is not run again and the job is requeued.
    any other  The job ends; with --on-failure hold it is requeued and held instead.
  A held job stays in the queue until `scontrol release` or `scancel`.
  While the controller does not answer, timekeep repeats the request, also past the time limit, until SLURM
  ends it. After a successful request it stays until then, so that no later line of the script runs. A job
  that its user cancels is not requeued. In a container there is no scontrol: run timekeep outside of it.
  A command that ends with 75 by itself within 10 s, as when another job has the run, starts again after
  30 s, and after twice as long each time, up to 10 minutes.
  Programs that get no further must end with another status: train-stage(1) ends with 1 after several
  attempts without a new update, evaluate(1) and latent-cache(1) after three that stored nothing.
  --max-restarts ends any other.

RUNS AND THEIR JOBS
  timekeep submit writes the command down when it has given a job: one that fails, or that is not needed,
  changes nothing. timekeep cron gives it again for a run that stopped, or was killed without a word, and
  leaves alone
    what runs or is in the queue, and what is finished: runs, latents and evaluations tell so by themselves
    what has failed, also at its start: timekeep status says why
    what is not a run directory, for `timekeep cron runs/*`
    a run whose last three jobs made no update
    a run whose last job was cancelled, when SLURM still knows
  scontrol knows for some minutes what was cancelled, sacct for long, where there is accounting; to be sure,
  say `timekeep submit --forget RUN`. timekeep cron, and timekeep status, which asks SLURM as well when a job
  may be waiting, name a job that is held in the queue. timekeep submit, given again, submits all of these but the first.
  A job that waits for one that will not succeed, or for another one than the command now says
  (--dependency=), is cancelled and submitted anew.

SIGNALS
  TERM, INT, HUP, USR1, USR2 and CONT are passed on to the command and all of its process group.
  To srun and mpirun (mpiexec, orterun), which kill their tasks when they get TERM, the warning is sent in
  place of TERM, INT and HUP; and USR1 and USR2 only ten seconds after the start, when the tasks listen.

  Should timekeep run itself be killed, a second process of it keeps the limit of the command: the warning,
  TERM and KILL come at the same times. The command is not ended before.

FILES
  RUN/status.json, RUN/lease  Read by timekeep status: a run whose status says running, while nobody has
                              given a sign of life for long, is lost.
  RUN/submit.json   The command that gave the jobs, its folder, its site file, what sbatch and longhaul read
                    of its environment, and the jobs; cron needs it.
  RUN/submit.lease  Who submits the run at present; one at a time does, on whichever host.

EXIT STATUS
  timekeep run ends with the status of the command.
  128+n  The command was ended by signal n.
  254    srun could not start a step; timekeep sets SLURM_EXIT_ERROR so that it says so.
  127    The command was not found.
  126    The command cannot be run.
  2      The command line is wrong.
  66     A run directory is missing.
  75     SLURM does not answer: submit and cron have submitted nothing; to left the end is unknown.
  1      timekeep submit, cron: a submission failed.

ENVIRONMENT
  SLURM_JOB_END_TIME  End of the job; where it is missing in a job, squeue is asked once, and scontrol
                      where that fails.
  LONGHAUL_END_TIME   End that an outer timekeep set, in seconds since 1970; set for the command.
  SLURM_RESTART_COUNT  What --max-restarts counts.
  LONGHAUL_MARGIN, LONGHAUL_ON_FAILURE, LONGHAUL_MAX_RESTARTS  In place of the options of timekeep run.

EXAMPLES
  How long is left:
    $ timekeep left
  For a script:
    $ test \"$(timekeep left | cut -d ' ' -f 1)\" != 0
  A day at most, USR1 ten minutes before its end:
    $ timekeep run --limit 24:00:00 --margin 10m -- sh -c 'echo training'
  How it ended, for a program:
    $ timekeep run --limit 1h --json -- true
  A checkpoint that costs 20 s, on 16 nodes that fail once in 200 days:
    $ timekeep interval --cost 20s --mtbf 200d --nodes 16
  Submitted (`echo 12` stands for `sbatch --parsable train.sbatch ...`), and how it stands:
    $ timekeep submit runs/codec -- echo 12
    $ timekeep status runs/codec
  No other job for it:
    $ timekeep submit --forget runs/codec

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
        Verb::Interval(args) => runs::interval(&args),
        Verb::Submit { forget: true, output, run, .. } => runs::forget(&run, output),
        Verb::Submit { site, output, run, command, .. } => {
            runs::submit(&run, &command, site.as_deref(), output)
        }
        Verb::Guard(GuardArgs { group, margin, grace, warn_signal }) => {
            let [margin, grace] = [margin, grace].map(Duration::from_secs);
            guard::run(group, Schedule { margin, grace, warn_signal }).map(|()| 0)
        }
        Verb::Cron { runs, output } => runs::cron(&runs, output),
        Verb::Run {
            limit: Limit(limit),
            margin,
            warn_signal,
            grace,
            requeue,
            on_failure,
            max_restarts,
            output,
            command,
        } => {
            let requeue = match requeue {
                Requeue::Auto => timekeep::Requeue::Auto,
                Requeue::Never => timekeep::Requeue::Never,
            };
            let on_failure = match on_failure {
                OnFailure::End => timekeep::OnFailure::End,
                OnFailure::Hold => timekeep::OnFailure::Hold,
            };
            let then = Then { requeue, on_failure, max_restarts };
            let schedule = Schedule { margin, grace, warn_signal };
            let plan = CommandPlan { limit, schedule, command, then };
            timekeep::run(&plan, |ended| match output.json {
                true => Out::stdout(output).item(ended, ""),
                false => Ok(()),
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
