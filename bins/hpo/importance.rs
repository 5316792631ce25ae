//! `hpo importance`.

use std::path::PathBuf;

use serde_json::json;
use study::Study;
use unix::cli::Output;
use unix::out::Out;
use unix::{Error, Exit, Result};

/// The arguments of `hpo importance`.
#[derive(clap::Args)]
pub struct ImportanceArgs {
    /// Folder of the study
    study: PathBuf,
    /// Round [default: the last one with a complete trial]
    #[arg(long, value_name = "NAME")]
    round: Option<String>,
    #[command(flatten)]
    output: Output,
}

/// Prints the importance of each parameter in descending order.
pub fn importance(args: &ImportanceArgs) -> Result<Exit> {
    let study = Study::open(&args.study)?;
    let round = match &args.round {
        Some(name) => study.round_named(name)?,
        None => study.last_complete(),
    };
    let found = study.importances(round)?.ok_or_else(|| {
        let name = &study.rounds()[round].name;
        let text = format!("round {name} has fewer than two complete trials");
        Error::new(Exit::NoInput, text)
    })?;
    let is_json = args.output.json;
    let shown = |share: f64| if is_json { json!(share) } else { json!(format!("{share:.4}")) };
    Out::stdout(args.output).rows(found.into_iter().map(|own| {
        json!({
            "parameter": own.parameter, "importance": shown(own.importance), "trials": own.trials,
        })
    }))
}
