//! Files of predictions: written batch by batch, on any number of ranks, and resumed after an interruption.

use crate::pde::evaluate::Request;
use crate::regression::TrainedRegression;
use crate::trained::TrainedModel;
use data::fields::field::Field;
use data::fields::write::{FieldWriter, Header, Partial, Shared};
use data::records::{InputArray, RecordSet, Side};
use dist::Collective;
use learn::train::broadcast;
use serde_json::Value;
use std::ops::Range;
use std::path::Path;
use unix::publish::hash_file;
use unix::{Context, Error, Exit, Result};

/// Trajectories per batch.
const BATCH: usize = 16;
/// Records per batch, at most, and the size of their inputs and targets in bytes.
const RECORDS: usize = 256;
const RECORDS_BYTES: usize = 4 << 20;

/// Where predictions are written.
pub struct Destination<'a> {
    /// The file; its extension selects safetensors or NumPy, otherwise it is HDF5.
    pub path: &'a Path,
    /// Whether an existing file is replaced.
    pub replace: bool,
    /// The ranks, each of which predicts a part. They share the file system of `path`.
    pub ranks: &'a dyn Collective,
}

/// The inputs of records.
pub enum RecordInputs {
    /// An array of the user.
    Array(InputArray),
    /// The records of a split.
    Set(RecordSet),
}

impl RecordInputs {
    /// The shape of an input.
    pub fn side(&self) -> &Side {
        match self {
            Self::Array(array) => array.side(),
            Self::Set(set) => &set.sides()[0],
        }
    }

    /// Number of records.
    pub fn records(&self) -> usize {
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

    /// Points along each axis, if the file of the inputs has them.
    fn coordinates(&self) -> Result<Vec<Vec<f64>>> {
        match self {
            Self::Array(array) => array.coordinates(),
            Self::Set(set) => Ok(vec![Vec::new(); set.sides()[0].grid.len()]),
        }
    }
}

/// Predicts all trajectories of the file `inputs`. An interrupted call is continued after the last trajectories that it
/// stored. `done` is called on rank 0 with the number of trajectories stored so far and the total.
///
/// Errors: those of `done`; 1 when a prediction is not finite; 65 when the model cannot read the inputs; 66; 73 when the output exists and is not to be
/// replaced; 74; 75 when another process is writing it.
pub fn predict_file(
    model: &dyn TrainedModel,
    inputs: &Path,
    to: &Destination,
    request: &Request,
    done: impl FnMut(usize, usize) -> Result<()>,
) -> Result<()> {
    let field = Field::open(inputs)?;
    field.require_fit_but_times()?;
    let mut header = model.output(&field, request).context(|| inputs.display().to_string())?;
    let parameter = field.parameter().into_iter().flat_map(|parameter| parameter.iter());
    header.attributes.extend(parameter.map(|(name, value)| (name.into(), Value::from(value))));
    describe(&mut header, model, inputs, hash_file(inputs)?);
    if request.views > 1 {
        header.attributes.push(("views".into(), request.views.into()));
    }
    write(to, &header, BATCH, |which| model.predict(&field, which, request), done)
}

/// Predicts the targets of all records of `inputs`, which `name` and `hash` identify. Otherwise as [`predict_file`].
///
/// The inputs may be on another grid than those that the model was trained on, unless its parameters depend on the grid.
///
/// Errors: also 65 when the model cannot read their shape.
pub fn predict_records(
    model: &TrainedRegression,
    inputs: &RecordInputs,
    (name, hash): (&Path, String),
    to: &Destination,
    done: impl FnMut(usize, usize) -> Result<()>,
) -> Result<()> {
    let ([trained_on, _], found) = (model.sides(), inputs.side());
    let other = || {
        format!(
            "{}: records with {found}, but the model was trained on {trained_on}",
            name.display()
        )
    };
    let axes = |side: &Side| side.grid.len();
    if (axes(found), found.channels) != (axes(&trained_on), trained_on.channels) {
        return Err(Error::data(format!("{}; --axes says what the dimensions are", other())));
    }
    let resized = (*found != trained_on).then(|| model.on_grid(&found.grid)).transpose();
    let resized = resized.map_err(|error| Error::data(format!("{}: {error}", other())))?;
    let model = resized.as_ref().unwrap_or(model);
    let [input, target] = model.sides();
    let same_grid = input.grid == target.grid;
    let coordinates = match same_grid {
        true => inputs.coordinates()?,
        false => vec![Vec::new(); target.grid.len()],
    };
    let mut header = Header::records(inputs.records(), &target.grid, target.channels, coordinates);
    describe(&mut header, model, name, hash);
    let predict = |which: Range<usize>| {
        let mut values = vec![0.0; which.len() * input.len()];
        for (i, values) in which.zip(values.chunks_exact_mut(input.len())) {
            inputs.read(i, values).context(|| name.display().to_string())?;
        }
        model.solve(&values, &[])
    };
    let batch = RECORDS_BYTES / (4 * (input.len() + target.len()));
    write(to, &header, batch.clamp(1, RECORDS), predict, done)
}

/// Adds the inputs and the models to the attributes, which also identify an interrupted file.
fn describe(header: &mut Header, model: &dyn TrainedModel, inputs: &Path, hash: String) {
    let mut add = |name: String, text: String| header.attributes.push((name, Value::from(text)));
    add("predicted_from".into(), inputs.display().to_string());
    add("predicted_from_blake3".into(), hash);
    for (task, origin, _) in model.models() {
        add(task.into(), origin.to_string());
        add(format!("{task}_blake3"), origin.blake3);
    }
}

/// Errors: 1 for a prediction with NaN or infinity.
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

/// Writes what `predict` returns for each range of `batch` samples.
fn write(
    to: &Destination,
    header: &Header,
    batch: usize,
    mut predict: impl FnMut(Range<usize>) -> Result<Vec<f32>>,
    mut done: impl FnMut(usize, usize) -> Result<()>,
) -> Result<()> {
    let (rank, all) = (to.ranks.rank(), header.shape.trajectories);
    let mut partial = (rank == 0).then(|| Partial::open(to.path, header)).transpose()?;
    let shared: Option<Shared> = broadcast(to.ranks, partial.as_ref().map(Partial::share))?;
    let shared = shared.ok_or_else(|| Error::bug("rank 0 opened no file"))?;
    let mut first = shared.done();
    let own: Option<FieldWriter> = match rank {
        0 => None,
        _ => Some(shared.writer(to.path, header)?),
    };
    if rank == 0 {
        done(first, all)?;
    }
    let length = header.shape.trajectory_len();
    while first < all {
        // The batches of a single rank, one for each.
        let begin = all.min(first + rank * batch);
        let which = begin..all.min(begin + batch);
        let writer = own.as_ref().or(partial.as_ref().map(Partial::writer));
        if let Some(writer) = writer.filter(|_| !which.is_empty()) {
            let found = predict(which.clone())?;
            for (sample, values) in which.zip(found.chunks_exact(length)) {
                require_finite(sample, values, header)?;
                writer.write(sample, values)?;
            }
            writer.sync()?;
        }
        first = all.min(first + to.ranks.size() * batch);
        // Every rank has stored its part.
        to.ranks.gather(&[])?;
        if let Some(partial) = &mut partial {
            partial.advance(first)?;
            unix::fail::point("save.after_shard").map_err(|cause| Error::io(to.path, cause))?;
            done(first, all)?;
        }
    }
    let Some(partial) = partial else { return Ok(()) };
    if to.replace && to.path.exists() {
        std::fs::remove_file(to.path).map_err(|cause| Error::create(to.path, cause))?;
    }
    partial.publish()
}
