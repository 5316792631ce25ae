//! `hpo import`.

use std::path::PathBuf;

use study::Study;
use study::import::import as add;
use unix::cli::Output;
use unix::out::Out;
use unix::{Exit, Result};

/// The arguments of `hpo import`.
#[derive(clap::Args)]
pub struct ImportArgs {
    /// Folder of the study
    study: PathBuf,
    /// Journal of Optuna's JournalFileBackend, or JSON or CSV written by `hpo export`
    file: PathBuf,
    /// Round whose sampler learns from the trials [default: the first]
    #[arg(long, value_name = "NAME")]
    round: Option<String>,
    /// Name of the study, if an Optuna journal contains several
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    #[command(flatten)]
    output: Output,
}

/// Imports trials of another study for the sampler of a round.
pub fn import(args: &ImportArgs) -> Result<Exit> {
    let study = Study::open(&args.study)?;
    let round = args.round.as_ref().map_or(Ok(0), |name| study.round_named(name))?;
    let done = add(&study, round, &args.file, args.name.as_deref())?;
    let text = format!(
        "{} trials imported, {} already known, {} skipped",
        done.imported, done.known, done.left_out
    );
    Out::stdout(args.output).item(&done, text).map(|()| Exit::Done)
}
