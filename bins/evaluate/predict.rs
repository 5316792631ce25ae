//! `evaluate predict`: writes the predictions of a trained model for new inputs.

use std::path::{Path, PathBuf};

use learn::trained::Parts;
use serde_json::json;
use tasks::ModelArgs;
use tasks::evaluation::{PredictCommand, PredictRequest, TaskOptions, entry};
use unix::cli::Output;
use unix::out::Out;
use unix::signal::Signals;
use unix::{Exit, Result};

/// The arguments of `evaluate predict`.
#[derive(clap::Args)]
pub struct Predict {
    #[command(flatten)]
    model: ModelArgs,
    /// Input file. For fields: a field file with initial states, inputs or fields. For records: an input array (FILE or
    /// FILE:NAME; - reads a NumPy array from stdin). For texts: a .csv, .tsv, .jsonl, .ndjson or
    /// .json file, or a file with a text on each line (- for stdin). For prompts: a .jsonl file of objects with `prompt` or
    /// `messages`, or a file with a prompt on each line (- for stdin). For vectors of texts: an array, or a file with a JSON
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
    let (count, noun) = run().map_err(|error| ranks.abort(error))?;
    let rank = ranks.rank();
    ranks.close()?;
    if rank > 0 || args.to == Path::new("-") {
        return Ok(Exit::Done);
    }
    let file = args.to.display().to_string();
    let text = format!("{file}: {count} {noun}");
    Out::stdout(args.output).item(&json!({"file": file, noun: count}), text).map(|()| Exit::Done)
}
