//! `evaluate score` for classifiers of texts.

use crate::score::{Score, again, publish_json};
use data::inputs::Verifier;
use serde_json::Value;
use std::path::{Path, PathBuf};
use tasks::text::{TextScores, TrainedClassifier, open_sets, protocol};
use unix::progress::Progress;
use unix::publish::{create_folder, publish_bytes};
use unix::signal::Signals;
use unix::work::Work;
use unix::{Error, Result, warn};

/// Options that apply to texts.
pub const SCORE_OPTIONS: [&str; 9] =
    ["data", "split", "output", "summary", "force", "weights", "device", "threads", "json"];
/// Why the others are refused.
pub const NO_EFFECT: &str = "no effect on texts, which have no frames, parameters or equation";

/// The file of results.
pub fn results(folder: &Path) -> PathBuf {
    folder.join("evaluation_results.json")
}

/// Scores a classifier and the baselines on a split of tokens and writes all files; returns the rows of the table.
pub fn measure(args: &Score, signals: Signals, work: &mut Work) -> Result<Vec<Value>> {
    let folder = &args.data.data;
    let [set, train] = open_sets(folder, args.data.split)?;
    let model =
        TrainedClassifier::open(args.model.run(), &args.model.opener()?, set.info(), folder)?;
    let mut files = set.input_files();
    files.extend(train.input_files());
    let mut verifier = Verifier::start(files, None)?;
    if !model.origin().was_trained_on(train.hash()) {
        warn!(
            "the model was trained on other tokens than those in {}; the texts of the {} split may be among them",
            folder.display(),
            set.name()
        );
    }
    let all = set.len() as u64;
    let mut progress = Progress::new("texts", all);
    work.progress(0, Some(all))?;
    let logits = model.logits(&set, |done| {
        progress.set(done as u64);
        work.progress(done as u64, Some(all))?;
        signals.check_stop(again)
    })?;
    drop(progress);
    verifier.finish(|| signals.check_stop(again))?;
    let scores = TextScores::of(&set, &train, &logits);
    let (rows, json) = scores.results(&protocol(&set, &model))?;
    create_folder(&args.to)?;
    let mut lines = String::new();
    for record in scores.predictions(&set) {
        lines += &serde_json::to_string(&record).map_err(Error::bug)?;
        lines.push('\n');
    }
    publish_bytes(&args.to.join("predictions.jsonl"), lines.as_bytes())?;
    for path in args.summary.iter().chain([&results(&args.to)]) {
        publish_json(path, &json)?;
    }
    Ok(rows)
}
