//! Prediction of targets for new inputs of records.

use super::trained::TrainedRegression;
use crate::evaluation::PredictRequest;
use crate::predictions::{FieldPredictor, Predict, describe, require_extension};
use clap::FromArgMatches;
use data::fields::field::Axes;
use data::fields::write::Header;
use data::inputs::Verifier;
use data::records::{InputArray, RecordSet, ValueShape};
use data::split::SplitName;
use dist::Collective;
use learn::evaluate::Prediction;
use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};
use unix::{Context, Error, Exit, Result};

/// Maximum number of records per block, and maximum size of their inputs and targets in bytes.
const RECORDS: usize = 256;
const RECORDS_BYTES: usize = 4 << 20;

/// The options of `evaluate predict` for models of records.
#[derive(clap::Args, Clone, Debug)]
pub struct RecordOptions {
    /// Split manifest of records, whose inputs are predicted instead of those of --inputs
    #[arg(long, value_name = "MANIFEST", conflicts_with = "inputs")]
    data: Option<PathBuf>,
    /// Split of the manifest
    #[arg(long, value_name = "NAME", default_value_t = SplitName::Test, requires = "data")]
    split: SplitName,
    /// Dimensions of the inputs of a record model, as in ds-prep import, e.g. nxyc
    #[arg(long, value_name = "AXES", value_parser = Axes::parse, conflicts_with = "data")]
    axes: Option<Axes>,
}

/// The source of the input records.
enum Inputs {
    /// A user-supplied array.
    Array(InputArray),
    /// The records of a split.
    Set(RecordSet),
}

impl Inputs {
    /// Shape of an input.
    fn side(&self) -> &ValueShape {
        match self {
            Self::Array(array) => array.side(),
            Self::Set(set) => &set.sides()[0],
        }
    }

    /// Number of records.
    fn records(&self) -> usize {
        match self {
            Self::Array(array) => array.records(),
            Self::Set(set) => set.len(),
        }
    }

    fn read(&self, i: usize, out: &mut [f32]) -> Result<()> {
        match self {
            Self::Array(array) => array.read(i, out)?,
            Self::Set(set) => out.copy_from_slice(set.input(i)),
        }
        Ok(())
    }

    /// Coordinates of the points along each axis; empty if the input file has none.
    fn coordinates(&self) -> Result<Vec<Vec<f64>>> {
        match self {
            Self::Array(array) => array.coordinates(),
            Self::Set(set) => Ok(vec![Vec::new(); set.sides()[0].grid.len()]),
        }
    }
}

/// Opens the prediction of the targets of all records of an array or a split. The grid of the inputs may differ from
/// that of the training data, unless the parameters of the model depend on the grid.
///
/// Errors: 2 for an unknown output format; 65 when the model cannot read the inputs; 66; those of
/// [`FieldPredictor::open`].
pub(super) fn open(
    model: TrainedRegression,
    request: &PredictRequest,
) -> Result<Box<dyn Prediction>> {
    request.opener.require_known(request.parts, &[])?;
    require_extension(request.to)?;
    let options = RecordOptions::from_arg_matches(request.options).map_err(Error::bug)?;
    let (name, hash, inputs, spooled) = match &options.data {
        Some(manifest) => {
            let set = RecordSet::open(manifest, options.split)?;
            Verifier::start(set.input_files(), None)?.finish(|| Ok(()))?;
            let name = PathBuf::from(format!("{} ({})", manifest.display(), options.split));
            (name, set.manifest_hash().to_string(), Inputs::Set(set), None)
        }
        None => {
            let inputs = request.inputs.ok_or_else(|| {
                Error::usage("--inputs FILE: name an array of inputs, or --data MANIFEST")
            })?;
            let from_stdin = inputs == Path::new("-");
            let spooled = from_stdin.then(|| spool(request.ranks)).transpose()?;
            let path = spooled.as_ref().map_or(inputs, |file| file.path());
            let array = InputArray::open(path, &options.axes)
                .map_err(|error| if from_stdin { error.context("--inputs -") } else { error })?;
            (inputs.to_path_buf(), array.hash()?, Inputs::Array(array), spooled)
        }
    };
    let ([trained_on, _], found) = (model.sides(), inputs.side());
    let other = || {
        format!(
            "{}: the records have {found}, but the model was trained on {trained_on}",
            name.display()
        )
    };
    let axes = |side: &ValueShape| side.grid.len();
    if (axes(found), found.channels) != (axes(&trained_on), trained_on.channels) {
        return Err(Error::data(format!("{}; --axes says what the dimensions are", other())));
    }
    let resized = (*found != trained_on).then(|| model.on_grid(&found.grid)).transpose();
    let resized = resized.map_err(|error| Error::data(format!("{}: {error}", other())))?;
    let model = resized.unwrap_or(model);
    let [input, target] = model.sides();
    let coordinates = match input.grid == target.grid {
        true => inputs.coordinates()?,
        false => vec![Vec::new(); target.grid.len()],
    };
    let mut header = Header::records(inputs.records(), &target.grid, target.channels, coordinates);
    describe(&mut header, [model.model(None)], &name, hash);
    let block = (RECORDS_BYTES / (4 * (input.len() + target.len()))).clamp(1, RECORDS);
    let predict: Predict = Box::new(move |which: Range<usize>| {
        // The temporary file is removed once this closure is dropped.
        let _spooled = &spooled;
        let mut values = vec![0.0; which.len() * input.len()];
        for (i, values) in which.zip(values.chunks_exact_mut(input.len())) {
            inputs.read(i, values).context(|| name.display().to_string())?;
        }
        model.solve(&values, &[])
    });
    FieldPredictor::open(request, header, ("records", block), predict)
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
