//! Predictions of fields and records: all ranks write to one file, which is resumed after an interruption.

use crate::evaluation::PredictRequest;
use crate::pde::evaluate::Rollouts;
use crate::pde::evaluate::options::PredictOptions;
use clap::FromArgMatches;
use data::fields::field::Field;
use data::fields::write::{EXTENSIONS, FieldWriter, Header, PartialFile, PartialFileState};
use dist::Collective;
use learn::evaluate::{Model, Prediction, Predictor, refuse_existing};
use learn::train::broadcast;
use serde_json::Value;
use std::ops::Range;
use std::path::{Path, PathBuf};
use unix::publish::hash_file;
use unix::{Context, Error, Exit, Result};

/// Number of trajectories per block.
const BATCH: usize = 16;

/// Predicts a range of samples and returns their values in the layout of the file.
pub(crate) type Predict = Box<dyn Fn(Range<usize>) -> Result<Vec<f32>>>;

/// Writes predictions to a field file.
pub(crate) struct FieldPredictor {
    path: PathBuf,
    replace: bool,
    header: Header,
    noun: &'static str,
    /// Number of samples per block.
    block: usize,
    predict: Predict,
    /// The unfinished file, on rank 0.
    partial: Option<PartialFile>,
    /// Writer to the unfinished file, on the other ranks.
    writer: Option<FieldWriter>,
    /// Index of the first sample of the next block, on rank 0.
    next: usize,
}

impl FieldPredictor {
    /// Resumes or creates the output file of `request`; its extension selects the format. A collective call.
    ///
    /// Errors: 73 when the file exists without `replace` or cannot be created; 75 when another process writes it.
    pub fn open(
        request: &PredictRequest,
        mut header: Header,
        (noun, block): (&'static str, usize),
        predict: Predict,
    ) -> Result<Box<dyn Prediction>> {
        let (path, ranks): (_, &dyn Collective) = (request.to.to_path_buf(), request.ranks);
        let leads = ranks.rank() == 0;
        if leads && !request.replace {
            refuse_existing([&path])?;
        }
        if request.opener.mode.amp {
            header.attributes.push(("amp".into(), true.into()));
        }
        let partial = leads.then(|| PartialFile::open(&path, &header)).transpose()?;
        let shared: Option<PartialFileState> =
            broadcast(ranks, partial.as_ref().map(PartialFile::share))?;
        let shared = shared.ok_or_else(|| Error::bug("rank 0 opened no file"))?;
        let next = shared.done();
        let writer = (!leads).then(|| shared.writer(&path, &header)).transpose()?;
        let replace = request.replace;
        let own = Self { path, replace, header, noun, block, predict, partial, writer, next };
        Ok(Box::new(own))
    }
}

/// Refuses (2) a file name whose extension is not that of a field format.
pub(crate) fn require_extension(to: &Path) -> Result<()> {
    match to.extension().is_some_and(|ending| EXTENSIONS.iter().any(|known| ending == *known)) {
        true => Ok(()),
        false => Err(Error::usage(format!(
            "-o {}: the name must end in .{}, which selects the format",
            to.display(),
            EXTENSIONS.join(", .")
        ))),
    }
}

/// Opens the prediction of all trajectories of the input file.
///
/// Errors: 2 without an input file or for an unknown output format; 65 when the model cannot read the inputs; 66; those
/// of [`FieldPredictor::open`].
pub(crate) fn of_fields(
    model: Box<dyn Rollouts>,
    request: &PredictRequest,
) -> Result<Box<dyn Prediction>> {
    request.opener.require_known(request.parts, &[])?;
    require_extension(request.to)?;
    let Some(inputs) = request.inputs.filter(|inputs| *inputs != Path::new("-")) else {
        let text = "this model reads fields: name their file with --inputs FILE";
        return Err(Error::usage(text));
    };
    let wanted = PredictOptions::from_arg_matches(request.options).map_err(Error::bug)?.request();
    let field = Field::open(inputs)?;
    field.require_fit_but_times()?;
    let mut header = model.output(&field, &wanted).context(|| inputs.display().to_string())?;
    let parameter = field.parameter().into_iter().flat_map(|parameter| parameter.iter());
    header.attributes.extend(parameter.map(|(name, value)| (name.into(), Value::from(value))));
    let models = model.models().into_iter().map(|(task, origin, parameters)| Model {
        task,
        origin,
        parameters,
        data: None,
    });
    describe(&mut header, models, inputs, hash_file(inputs)?);
    if wanted.views > 1 {
        header.attributes.push(("views".into(), wanted.views.into()));
    }
    let predict: Predict = Box::new(move |which| model.predict(&field, which, &wanted));
    FieldPredictor::open(request, header, ("trajectories", BATCH), predict)
}

/// Adds the input file and the models to the attributes, by which an interrupted file is also recognised.
pub(crate) fn describe(
    header: &mut Header,
    models: impl IntoIterator<Item = Model>,
    inputs: &Path,
    hash: String,
) {
    let mut add = |name: String, text: String| header.attributes.push((name, Value::from(text)));
    add("predicted_from".into(), inputs.display().to_string());
    add("predicted_from_blake3".into(), hash);
    for Model { task, origin, .. } in models {
        add(task.into(), origin.to_string());
        add(format!("{task}_blake3"), origin.blake3);
    }
}

/// Checks that a prediction is finite. Errors: 1 for NaN or infinity.
fn require_finite(sample: usize, values: &[f32], header: &Header) -> Result<()> {
    let Some(at) = values.iter().position(|value| !value.is_finite()) else { return Ok(()) };
    let frame = at / header.shape.frame_len();
    let (which, remedy) = match frame {
        0 => (String::new(), ""),
        frame => (format!(" from frame {frame} on"), "; predict fewer --steps"),
    };
    let text = format!("the prediction for sample {sample} (from 0) is not finite{which}{remedy}");
    Err(Error::new(Exit::Failure, text))
}

impl Predictor for FieldPredictor {
    type Input = Range<usize>;
    type Output = ();

    fn noun(&self) -> &'static str {
        self.noun
    }

    fn items(&self) -> Option<u64> {
        Some(self.header.shape.trajectories as u64)
    }

    fn done(&self) -> u64 {
        self.next as u64
    }

    fn read(&mut self) -> Result<Option<(Range<usize>, u64)>> {
        let block = self.next..self.header.shape.trajectories.min(self.next + self.block);
        self.next = block.end;
        Ok((!block.is_empty()).then(|| (block.clone(), block.len() as u64)))
    }

    /// Predicts a block and stores it.
    fn predict(&self, block: Range<usize>) -> Result<()> {
        let writer = self.writer.as_ref().or(self.partial.as_ref().map(PartialFile::writer));
        let writer = writer.ok_or_else(|| Error::bug("no file to write to"))?;
        let found = (self.predict)(block.clone())?;
        let length = self.header.shape.trajectory_len();
        for (sample, values) in block.zip(found.chunks_exact(length)) {
            require_finite(sample, values, &self.header)?;
            writer.write(sample, values)?;
        }
        writer.sync()
    }

    /// Records the progress; every rank has already stored its block.
    fn write(&mut self, _: Vec<()>, done: u64) -> Result<()> {
        if let Some(partial) = &mut self.partial {
            partial.advance(done as usize)?;
            unix::fail::point("save.after_shard").map_err(|cause| Error::io(&self.path, cause))?;
        }
        Ok(())
    }

    fn publish(&mut self) -> Result<()> {
        let Some(partial) = self.partial.take() else { return Ok(()) };
        if self.replace && self.path.exists() {
            std::fs::remove_file(&self.path).map_err(|cause| Error::create(&self.path, cause))?;
        }
        partial.publish()
    }
}
