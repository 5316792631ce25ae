//! The commands of `timekeep` that report on runs and submit them.

use std::cell::OnceCell;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::json;
use study::Study;
use study::summary::is_trial;
use unix::cli::Output;
use unix::out::Out;
use unix::run_dir::RunDir;
use unix::time::{format_duration, parse_duration};
use unix::timekeep::interval;
use unix::timekeep::pipeline::step::STEP_VARIABLE;
use unix::timekeep::runs::{self, RunState};
use unix::timekeep::submit::{self, LEFT};
use unix::{Error, Exit, Result, diagnostics, inputs, note, slurm, warn};

/// Reason why timekeep starts no job for a trial.
const TRIAL: &str = "a trial of a study: `hpo worker` starts it";

/// The arguments of `timekeep interval`.
#[derive(clap::Args)]
pub struct IntervalArgs {
    /// Run directory, whose log contains the cost of checkpoints and updates
    #[arg(required_unless_present = "cost")]
    run: Option<PathBuf>,
    /// Time for which a checkpoint blocks training, instead of the one in the log of the run
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    cost: Option<Duration>,
    /// Mean time between failures of one node, e.g. 200d
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    mtbf: Duration,
    /// Number of nodes of the job
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    nodes: u32,
    #[command(flatten)]
    output: Output,
}

/// Arguments of `submit`.
#[derive(clap::Args)]
pub struct SubmitArgs {
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
    #[arg(required_unless_present = "forget", trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
}

/// Prints one line per run and returns the exit status of the first failure. Queries SLURM at most once, and only if a
/// job may be pending.
pub fn status(given: &[PathBuf], output: Output) -> Result<u8> {
    let mut out = Out::stdout(output);
    let queue = OnceCell::new();
    let exit = inputs::each(given, &[Exit::Done], |path| {
        if Study::is_at(path) {
            return study(path, &mut out);
        }
        let mut run = runs::look(path)?;
        if run.may_wait() {
            run.look_into(queue.get_or_init(|| {
                slurm::queue().unwrap_or_else(|why| {
                    note!("cannot read the queue: {why}");
                    Vec::new()
                })
            }));
        }
        if out.is_json() { out.row(&run) } else { out.row(&run.row()) }
    })?;
    out.finish()?;
    Ok(exit as u8)
}

/// Prints one line for a study, whose trials are runs.
fn study(path: &Path, out: &mut Out) -> Result<()> {
    let found = Study::open(path)?.summary()?;
    if out.is_json() {
        let mut record = json!(found);
        record["run"] = json!(path);
        return out.row(&record);
    }
    let six_digits = |best: f64| format!("{best:.5e}").parse().unwrap_or(best);
    let best = found.best.map(six_digits).zip(found.trial);
    let best = best.map_or(String::new(), |(best, trial)| format!(": best {best}, trial {trial}"));
    let (ended, all) = (found.ended, found.trials);
    out.row(&json!({
        "run": path,
        "task": "study",
        "state": found.state,
        "progress": format!("{ended}/{all} {:.0}%", 100.0 * ended as f64 / all as f64),
        "note": format!("{}{best}", found.study),
    }))
}

/// Returns the reason for cron to skip a folder: of hpo, only a submitted study that has not ended needs jobs.
fn reason_to_leave(path: &Path) -> Result<Option<&'static str>> {
    if is_trial(path) {
        return Ok(Some(TRIAL));
    }
    if !Study::is_at(path) {
        return Ok(None);
    }
    let is_finished = Study::open(path)?.summary()?.state == RunState::Finished;
    let is_submitted = RunDir::open(path)?.submission().exists();
    let why = (!is_submitted).then_some(
        "a study that was not submitted with `timekeep submit`: resubmit the jobs of its workers yourself",
    );
    Ok(if is_finished { Some("finished") } else { why })
}

/// Resubmits stopped runs; continues if a submission fails and returns the exit status of the first failure.
pub fn cron(given: &[PathBuf], output: Output) -> Result<u8> {
    let queue = submit::queue()?;
    let mut out = Out::stdout(output);
    // A closed stdout ends the program.
    let exit = inputs::each(given, &[Exit::Done], |path| match reason_to_leave(path)? {
        Some(why) => out.row(&submit::left(path, why)),
        None => out.row(&submit::resubmit(path, &queue)?),
    })?;
    out.finish()?;
    Ok(exit as u8)
}

/// Submits one run and prints its job ID; with `--forget`, makes `cron` ignore the run until it is submitted again.
pub fn submit(args: &SubmitArgs) -> Result<u8> {
    let SubmitArgs { site, forget, step, output, run, command } = args;
    let mut out = Out::stdout(*output);
    if *forget {
        let done = submit::forget(run)?;
        out.item(&done, format!("{}: {}", done.run, done.why))?;
        return Ok(0);
    }
    if is_trial(run) {
        return Err(Error::usage(format!("{}: it is {TRIAL}", run.display())));
    }
    let done = submit::submit(run, command, site.as_deref(), step.as_deref())?;
    if done.done == LEFT {
        diagnostics::say(format_args!("{}: {}; nothing was submitted", done.run, done.why));
    }
    match &done.job {
        Some(job) => out.item(&done, job)?,
        None if out.is_json() => out.item(&done, "")?,
        None => {}
    }
    Ok(0)
}

/// Prints the optimal checkpoint interval.
pub fn interval(args: &IntervalArgs) -> Result<u8> {
    let mut measured = match &args.run {
        Some(run) => interval::measured(run)?,
        None => interval::CheckpointTimes::default(),
    };
    measured.cost = args.cost.map(|cost| cost.as_secs_f64()).or(measured.cost);
    let best = interval::best(&measured, args.mtbf, args.nodes)?;
    if best.lost_share > 0.5 {
        warn!(
            "the job fails every {} and a checkpoint takes {}: most of the time is lost at any interval",
            time(best.mtbf)?,
            time(best.cost)?
        );
    }
    let updates = best.updates.map_or(String::new(), |n| format!(", checkpoint.every: {n}"));
    let text = format!(
        "every       {}{updates}\ncosts       {:.2} % of the time\n\
         checkpoint  {:.3} s\nfailure     every {} of the job\nYoung       {}\nDaly        {}",
        time(best.seconds)?,
        100.0 * best.lost_share,
        best.cost,
        time(best.mtbf)?,
        time(best.young)?,
        time(best.daly)?
    );
    Out::stdout(args.output).item(&best, text)?;
    Ok(0)
}

/// Formats a time as `0.14 s`, or in two formats as `92 s (00:01:32)`.
fn time(seconds: f64) -> Result<String> {
    if seconds < 10.0 {
        return Ok(format!("{seconds:.2} s"));
    }
    let whole = Duration::try_from_secs_f64(seconds.round())
        .map_err(|cause| Error::usage(format!("{seconds} s: {cause}")))?;
    Ok(format!("{} s ({})", whole.as_secs(), format_duration(whole)))
}
