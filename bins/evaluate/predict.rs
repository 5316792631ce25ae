//! `evaluate predict`: writes the predictions of a trained model for new inputs.

use std::path::{Path, PathBuf};

use learn::evaluate::Predicted;
use learn::trained::Parts;
use serde_json::json;
use tasks::ModelArgs;
use tasks::evaluation::{PredictCommand, PredictRequest, TaskOptions, entry};
use unix::cli::Output;
use unix::out::Out;
use unix::signal::Signals;
use unix::{Exit, Result, warn};

/// The arguments of `evaluate predict`.
#[derive(clap::Args)]
pub struct Predict {
    #[command(flatten)]
    model: ModelArgs,
    /// Input file. For fields: a field file with initial states, inputs or fields. For records: an input array (FILE or
    /// FILE:NAME; - reads a NumPy array from stdin). For texts: a .csv, .tsv, .jsonl, .ndjson or
    /// .json file, or a file with a text on each line (- for stdin). For prompts: a .jsonl file of objects with `prompt` or
    /// `messages`, a file with a prompt on each line (- for stdin), an image or a folder of images. For vectors of texts: an array, or a file with a JSON
    /// array on each line (- for stdin). See longhaul-files(5) for formats
    #[arg(long, value_name = "FILE")]
    inputs: Option<PathBuf>,
    /// File to write: NAME.hdf5, NAME.safetensors or NAME.npy; for texts NAME.jsonl, or - for stdout
    #[arg(short = 'o', long = "output", value_name = "FILE")]
    to: PathBuf,
    /// Overwrite an existing file
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    options: TaskOptions<PredictCommand>,
    #[command(flatten)]
    output: Output,
}

/// Writes predictions to a file or a pipe.
pub fn predict(args: &Predict) -> Result<Exit> {
    let signals = Signals::install()?;
    let ranks = dist::open(|| Exit::Again)?;
    let run = || {
        let opener = args.model.opener_of(&*ranks)?;
        let parts = Parts::read(args.model.run(), opener.weights)?;
        let entry = entry(&parts)?;
        let request = PredictRequest {
            parts: &parts,
            opener: &opener,
            inputs: args.inputs.as_deref(),
            to: &args.to,
            replace: args.force,
            ranks: &*ranks,
            options: args.options.of(entry)?,
        };
        let mut prediction = (entry.predict.open)(&request)?;
        prediction.run(&*ranks, signals)
    };
    let Predicted { items, failed, noun } = run().map_err(|error| ranks.abort(error))?;
    let rank = ranks.rank();
    ranks.close()?;
    let exit = if failed > 0 { Exit::Data } else { Exit::Done };
    if rank > 0 {
        return Ok(exit);
    }
    let file = args.to.display().to_string();
    if args.to != Path::new("-") {
        let mut record = json!({"file": file, noun: items});
        if failed > 0 {
            record["failed"] = failed.into();
        }
        Out::stdout(args.output).item(&record, format!("{file}: {items} {noun}"))?;
    }
    if failed > 0 {
        warn!(
            "{failed} of {items} {noun} have an `error` in the output instead of a prediction; correct them and predict them again"
        );
    }
    Ok(exit)
}
