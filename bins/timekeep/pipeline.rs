//! `timekeep pipeline`: shows the steps of a pipeline, for users and for `pipeline.sh`.

use std::path::PathBuf;

use serde_json::json;
use unix::cli::Output;
use unix::out::Out;
use unix::timekeep::pipeline::{Pipeline, quoted, summary};
use unix::{Result, text};

/// The arguments of `timekeep pipeline`.
#[derive(clap::Args)]
pub struct PipelineArgs {
    /// Pipeline file
    file: PathBuf,
    /// Write FOLDER/summary.json and print its path and the state of the pipeline
    #[arg(long)]
    summary: bool,
    /// Print one shell command per step: step FOLDER NAME STATE HOURS AFTER SBATCH COMMAND...
    #[arg(long, conflicts_with_all = ["summary", "json"])]
    shell: bool,
    #[command(flatten)]
    output: Output,
}

/// Shows the steps, or writes the summary.
pub fn pipeline(args: &PipelineArgs) -> Result<u8> {
    let pipeline = Pipeline::load(&args.file)?;
    let mut out = Out::stdout(args.output);
    if args.summary {
        let (path, summary) = summary::write(&pipeline)?;
        let state = text::summary(&json!(summary.state));
        let failed = summary.failed.as_ref().map_or(String::new(), |name| format!(" at {name}"));
        out.item(&summary, format!("{}: {state}{failed}", path.display()))?;
        return Ok(0);
    }
    let folder = pipeline.folder.to_string_lossy();
    for (step, standing) in pipeline.steps.iter().zip(pipeline.step_statuses()?) {
        let command = quoted(step.words.iter().map(String::as_str))?;
        let after: Vec<&str> =
            step.after.iter().map(|at| pipeline.steps[*at].name.as_str()).collect();
        let state = json!(standing.state);
        if args.shell {
            let hours = standing.hours.map_or(String::new(), |hours| hours.to_string());
            let sbatch = step.sbatch.join(" ");
            let state = state.as_str().unwrap_or_default();
            let fixed = quoted([&*folder, &step.name, state, &hours, &after.join(" "), &sbatch])?;
            out.raw(format!("step {fixed} {command}\n").as_bytes())?;
            continue;
        }
        let hours = standing.hours.map(|hours| (1000.0 * hours).round() / 1000.0);
        out.row(&json!({"step": step.name, "state": state, "hours": hours, "command": command}))?;
    }
    out.finish()?;
    Ok(0)
}
