//! `evaluate score` for models of records.

use crate::score::{Measured, Score, again, metrics, not_finite, publish_json};
use data::inputs::Verifier;
use data::records::RecordSet;
use data::split::SplitName;
use tasks::pde::evaluate::Partial;
use tasks::regression::{RecordEvaluator, RecordScores};
use unix::progress::Progress;
use unix::publish::{create_folder, publish_bytes};
use unix::signal::Signals;
use unix::work::Work;
use unix::{Error, Result, note, warn};

/// Options of `evaluate score` and of `evaluate predict` that apply to models of records.
pub const SCORE_OPTIONS: [&str; 10] =
    ["data", "split", "output", "summary", "force", "with", "weights", "device", "threads", "json"];
pub const PREDICT_OPTIONS: [&str; 11] = [
    "inputs", "data", "split", "axes", "output", "force", "with", "weights", "device", "threads",
    "json",
];
/// Why the others are refused.
pub const NO_EFFECT: &str = "no effect on records, which have no frames, parameters or equation";

/// Scores a model on a split of a manifest of records and writes all files; returns what is printed.
pub fn measure(args: &Score, signals: Signals, work: &mut Work) -> Result<Measured> {
    let data = &args.data;
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
    let protocol = evaluator.protocol(&data.data);
    let partial = Partial::new(args.to.join("partial.json"), &protocol)?;
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
    publish_json(&args.to.join("times.json"), &scores.times())?;
    let json = scores.metrics_json(&protocol);
    for path in args.summary.iter().chain([&metrics(&args.to)]) {
        publish_json(path, &json)?;
    }
    partial.remove();
    let failed = not_finite(scores.not_finite(), scores.len(), "records");
    Ok(Measured { rows: scores.rows(), failed })
}
