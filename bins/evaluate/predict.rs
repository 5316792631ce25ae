//! Predictions of trained models.

use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::path::{Path, PathBuf};

use crate::records::{NO_EFFECT, PREDICT_OPTIONS};
use crate::score::{Rollouts, ViewArgs, again, refuse_earlier};
use crate::texts;
use data::fields::field::Axes;
use data::fields::write::EXTENSIONS;
use data::inputs::Verifier;
use data::records::{InputArray, RecordSet};
use data::split::SplitName;
use dist::Collective;
use serde_json::json;
use tasks::regression::TrainedRegression;
use tasks::{Destination, ModelArgs, RecordInputs, predict_file, predict_records};
use unix::cli::{Given, Output};
use unix::out::Out;
use unix::progress::Progress;
use unix::signal::Signals;
use unix::{Error, Exit, Result};

/// The arguments of `evaluate predict`.
#[derive(clap::Args)]
pub struct Predict {
    #[command(flatten)]
    pub model: ModelArgs,
    /// Field file with the initial states, the inputs or the fields, or an array of inputs of records (FILE or
    /// FILE:NAME; - reads a NumPy array from stdin), or texts: a .csv, .tsv, .jsonl, .ndjson or
    /// .json file, or a file with a text on each line (- for stdin); see
    /// longhaul-files(5) for formats
    #[arg(long, value_name = "FILE", required_unless_present = "data")]
    pub inputs: Option<PathBuf>,
    /// Split manifest of records, whose inputs are predicted instead of those of --inputs
    #[arg(long, value_name = "MANIFEST", conflicts_with = "inputs")]
    pub data: Option<PathBuf>,
    /// Split of the manifest
    #[arg(long, value_name = "NAME", default_value_t = SplitName::Test, requires = "data")]
    pub split: SplitName,
    /// Dimensions of the inputs of a model of records, as in ds-prep import, e.g. nxyc
    #[arg(long, value_name = "AXES", value_parser = Axes::parse, conflicts_with = "data")]
    pub axes: Option<Axes>,
    /// columns.yaml, as of ds-prep import, which names the columns of texts [default: text, text2, context and id]
    #[arg(long, value_name = "FILE", conflicts_with = "data")]
    pub columns: Option<PathBuf>,
    /// File to write: NAME.hdf5, NAME.safetensors or NAME.npy; for texts NAME.jsonl, or - for stdout
    #[arg(short = 'o', long = "output", value_name = "FILE")]
    pub to: PathBuf,
    /// Overwrite an existing file
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    rollouts: Rollouts,
    #[command(flatten)]
    pub views: ViewArgs,
    #[command(flatten)]
    pub output: Output,
}

/// Writes predictions to a file.
pub fn predict(given: &Given<Predict>) -> Result<Exit> {
    let to = &given.args.to;
    if texts::is_jsonl(to) {
        return texts::predict(given);
    }
    if given.args.columns.is_some() {
        return Err(Error::usage(
            "--columns has no effect on records and fields: only texts have columns; texts are written to FILE.jsonl or -",
        ));
    }
    if !to.extension().is_some_and(|ending| EXTENSIONS.iter().any(|known| ending == *known)) {
        return Err(Error::usage(format!(
            "-o {}: the name must end in .{}, which selects the format",
            to.display(),
            EXTENSIONS.join(", .")
        )));
    }
    let signals = Signals::install()?;
    let ranks = dist::open(|| Exit::Again)?;
    let exit = on_ranks(given, signals, &*ranks).map_err(|error| ranks.abort(error))?;
    ranks.close()?;
    Ok(exit)
}

fn on_ranks(given: &Given<Predict>, signals: Signals, ranks: &dyn Collective) -> Result<Exit> {
    let args = &given.args;
    if ranks.rank() == 0 {
        refuse_earlier([&args.to], args.force)?;
    }
    let model = args.model.opener_of(ranks)?.open(args.model.run())?;
    let to = Destination { path: &args.to, replace: args.force, ranks };
    let records = model.regression().filter(|model| model.reads_records());
    if records.is_some() {
        given.require_only(&PREDICT_OPTIONS, NO_EFFECT)?;
    }
    let what = if records.is_some() { "records" } else { "trajectories" };
    let (mut progress, mut count) = (Progress::new(what, 0), 0);
    let done = |done, all| {
        count = all;
        if all != 0 && done == 0 {
            progress = Progress::new(what, all as u64);
        }
        progress.set(done as u64);
        signals.check_stop(again)
    };
    match (records, &args.inputs) {
        (Some(model), _) => of_records(args, model, &to, done)?,
        (None, _) if args.axes.is_some() => {
            let text = "--axes: only for models of records; ds-prep import reorders fields";
            return Err(Error::usage(text));
        }
        (None, Some(inputs)) if inputs.as_os_str() != "-" => {
            let request = args.views.add_to(args.rollouts.request());
            predict_file(&*model, inputs, &to, &request, done)?;
        }
        (None, _) => {
            let text = "this model reads fields: name their file with --inputs FILE";
            return Err(Error::usage(text));
        }
    }
    drop(progress);
    if ranks.rank() > 0 {
        return Ok(Exit::Done);
    }
    let file = args.to.display().to_string();
    let text = format!("{file}: {count} {what}");
    Out::stdout(args.output).item(&json!({"file": file, what: count}), text).map(|()| Exit::Done)
}

fn of_records(
    args: &Predict,
    model: &TrainedRegression,
    to: &Destination,
    done: impl FnMut(usize, usize) -> Result<()>,
) -> Result<()> {
    if let Some(manifest) = &args.data {
        let set = RecordSet::open(manifest, args.split)?;
        let name = PathBuf::from(format!("{} ({})", manifest.display(), args.split));
        let mut verifier = Verifier::start(set.input_files(), None)?;
        let hash = set.manifest_hash().to_string();
        predict_records(model, &RecordInputs::Set(set), (&name, hash), to, done)?;
        return verifier.finish(|| Ok(()));
    }
    let inputs = args.inputs.as_deref().unwrap_or(Path::new("-"));
    let spooled = (inputs.as_os_str() == "-").then(|| spool(to.ranks)).transpose()?;
    let path = spooled.as_ref().map_or(inputs, |file| file.path());
    let array = InputArray::open(path, &args.axes)
        .map_err(|error| if spooled.is_some() { error.context("--inputs -") } else { error })?;
    let hash = array.hash()?;
    predict_records(model, &RecordInputs::Array(array), (inputs, hash), to, done)
}

/// Copies stdin to a temporary file, since arrays are mapped into memory.
fn spool(ranks: &dyn Collective) -> Result<tempfile::NamedTempFile> {
    if ranks.size() > 1 {
        return Err(Error::usage("--inputs -: only one process can read stdin; name a file"));
    }
    let mut stdin = io::stdin().lock();
    if stdin.is_terminal() {
        let text = "--inputs -: stdin is a terminal; redirect a file of numpy.save (.npy) to it";
        return Err(Error::usage(text));
    }
    let mut begin = Vec::new();
    let magic = b"\x93NUMPY";
    let limited = stdin.by_ref().take(magic.len() as u64).read_to_end(&mut begin);
    limited.map_err(|cause| Error::new(Exit::Io, format!("--inputs -: {cause}")))?;
    if begin != magic {
        let found = if begin.is_empty() { "stdin is empty" } else { "stdin is no NumPy file" };
        let text = format!("--inputs -: {found}; redirect a file of numpy.save (.npy) to it");
        return Err(Error::data(text));
    }
    let failed = |cause| Error::io(&std::env::temp_dir(), cause);
    let made = tempfile::Builder::new().prefix("longhaul-").suffix(".npy").tempfile();
    let mut file = made.map_err(failed)?;
    let out: &mut File = file.as_file_mut();
    io::copy(&mut magic.chain(stdin), out).map_err(failed)?;
    Ok(file)
}
