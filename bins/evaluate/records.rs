//! `evaluate score` and `evaluate predict` for models of records.

use std::path::Path;

use crate::score::{Predict, Score, again, metrics};
use data::inputs::Verifier;
use data::records::{InputArray, RecordSet, npy_header};
use data::split::SplitName;
use serde_json::{Value, json};
use tasks::pde::evaluate::Partial;
use tasks::regression::{RecordEvaluator, RecordScores, TrainedRegression};
use unix::out::Out;
use unix::progress::Progress;
use unix::publish::{create_folder, publish_bytes};
use unix::signal::Signals;
use unix::work::Work;
use unix::{Error, Exit, Result, note, warn};

/// Records that are predicted at a time.
const BATCH: usize = 256;

/// Scores a model on a split of a manifest of records and writes all files; returns the rows of the table.
pub fn measure(args: &Score, signals: Signals, work: &mut Work) -> Result<Vec<Value>> {
    let data = &args.data;
    if args.members.get() > 1 || args.views.views.get() > 1 || args.search.search().is_some() {
        return Err(Error::usage("--members, --views and --search are for models of fields"));
    }
    let model = args.model.opener()?.open(args.model.run())?;
    let Some(model) = model.regression().filter(|model| model.reads_records()) else {
        let manifest = data.data.display();
        return Err(Error::usage(format!("{manifest} has records, but the model reads fields")));
    };
    let [set, train] = [data.split, SplitName::Train].map(|name| RecordSet::open(&data.data, name));
    let (set, train) = (set?, train?);
    let mut verifier = Verifier::start(set.input_files(), None)?;
    let evaluator = RecordEvaluator::new(model, &set, &train)?;
    if !evaluator.was_trained_on(&set) {
        warn!(
            "the model was trained on a different split than {}; the test data may overlap its training data",
            data.data.display()
        );
    }
    let partial = Partial::new(args.to.join("partial.json"), &evaluator.protocol())?;
    let earlier: RecordScores = partial.load();
    if !earlier.is_empty() {
        note!("resuming after {} records", earlier.len());
    }
    let all = set.len() as u64;
    let mut progress = Progress::new("records", all);
    work.progress(0, Some(all))?;
    signals.check_stop(again)?;
    let scores = evaluator.score(earlier, |scores| {
        partial.save(scores)?;
        work.stored();
        unix::fail::point("save.after_shard").map_err(|cause| Error::io(&args.to, cause))?;
        progress.set(scores.len() as u64);
        work.progress(scores.len() as u64, Some(all))?;
        signals.check_stop(again)
    })?;
    drop(progress);
    let picture = evaluator.picture(&scores)?;
    verifier.finish(|| signals.check_stop(again))?;
    create_folder(&args.to.join("pictures"))?;
    if let Some(png) = picture {
        publish_bytes(&args.to.join("pictures/records.png"), &png)?;
    }
    publish_bytes(&args.to.join("metrics.csv"), scores.csv().as_bytes())?;
    let json = evaluator.metrics_json(&scores);
    for path in args.summary.iter().chain([&metrics(&args.to)]) {
        let text = serde_json::to_string_pretty(&json).map_err(Error::bug)?;
        publish_bytes(path, format!("{text}\n").as_bytes())?;
    }
    partial.remove();
    Ok(scores.rows())
}

/// Predicts the targets of an array of inputs, and writes them as a NumPy array.
pub fn predict(args: &Predict, model: &TrainedRegression, signals: Signals) -> Result<Exit> {
    if args.to.extension().is_none_or(|ending| ending != "npy") {
        return Err(Error::usage(format!(
            "{}: predictions of a model of records are a NumPy array; choose a name that ends in .npy",
            args.to.display()
        )));
    }
    let inputs = InputArray::open(&args.inputs, &args.axes)?;
    let [input, target] = model.sides();
    if *inputs.side() != input {
        return Err(Error::data(format!(
            "{}: records with {}, but the model was trained on {input}; --axes says what the dimensions are",
            args.inputs.display(),
            inputs.side()
        )));
    }
    let mut progress = Progress::new("records", inputs.records() as u64);
    let shape = [&[inputs.records()], &target.grid[..], &[target.channels]].concat();
    write_npy(&args.to, &shape, |out| {
        for first in (0..inputs.records()).step_by(BATCH) {
            let count = BATCH.min(inputs.records() - first);
            let mut values = vec![0.0; count * input.len()];
            for (i, values) in (first..).zip(values.chunks_exact_mut(input.len())) {
                inputs.read(i, values)?;
            }
            out.extend(model.solve(&values, &[])?);
            progress.set((first + count) as u64);
            signals.check_stop(|| format!("{} was not written", args.to.display()))?;
        }
        Ok(())
    })?;
    drop(progress);
    let file = args.to.display().to_string();
    let text = format!("{file}: {} records", inputs.records());
    let record = json!({"file": file, "records": inputs.records()});
    Out::stdout(args.output).item(&record, text).map(|()| Exit::Done)
}

/// Writes an f32 array, whose values `fill` appends, in the NumPy format.
fn write_npy(
    path: &Path,
    shape: &[usize],
    fill: impl FnOnce(&mut Vec<f32>) -> Result<()>,
) -> Result<()> {
    let mut values = Vec::with_capacity(shape.iter().product());
    fill(&mut values)?;
    let mut bytes = npy_header(shape);
    bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    publish_bytes(path, &bytes)
}
