//! `evaluate score` and `evaluate predict` for classifiers of texts.

use crate::predict::Predict;
use crate::score::{Score, again, publish_json, refuse_earlier};
use data::inputs::Verifier;
use data::text::TokenSet;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use tasks::text::{
    Logits, NewText, TextPredictor, TextScores, TrainedClassifier, calibrated, classes, mistakes,
    open_sets, protocol,
};
use unix::cli::Given;
use unix::out::Out;
use unix::progress::Progress;
use unix::publish::{create_folder, publish_bytes};
use unix::signal::Signals;
use unix::work::Work;
use unix::{Error, Exit, Result, small, warn};

/// Options that apply to texts.
pub const SCORE_OPTIONS: [&str; 9] =
    ["data", "split", "output", "summary", "force", "weights", "device", "threads", "json"];
/// Why the others are refused.
pub const NO_EFFECT: &str = "no effect on texts, which have no frames, parameters or equation";

/// Texts with this similarity or more are counted as leaked, as in ds-prep audit.
const SIMILAR: f64 = 0.8;

/// The file of results.
pub fn results(folder: &Path) -> PathBuf {
    folder.join("evaluation_results.json")
}

/// Scores a classifier and the baselines on a split of tokens and writes all files; returns the rows of the table.
pub fn measure(args: &Score, signals: Signals, work: &mut Work) -> Result<Vec<Value>> {
    let folder = &args.data.data;
    let [set, train, validation] = open_sets(folder, args.data.split)?;
    let model =
        TrainedClassifier::open(args.model.run(), &args.model.opener()?, set.info(), folder)?;
    let files = [&set, &train, &validation].into_iter().flat_map(TokenSet::input_files);
    let mut verifier = Verifier::start(files.collect(), None)?;
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
    let logits = model.logits(&set.tokens(), |done| {
        progress.set(done as u64);
        work.progress(done as u64, Some(all))?;
        signals.check_stop(again)
    })?;
    drop(progress);
    let chosen = model.logits(&validation.tokens(), |_| signals.check_stop(again))?;
    verifier.finish(|| signals.check_stop(again))?;
    let scores = TextScores::of(&set, [&train, &validation], &logits);
    let (rows, mut json) = scores.results(&protocol(&set, &model))?;
    let [truth, known] = [&set, &validation].map(classes);
    let [own, fitted] =
        [(&logits, &truth), (&chosen, &known)].map(|(logits, truth)| Logits { logits, truth });
    json["calibrated"] = calibrated(fitted, own, &set.info().labels);
    let others: Vec<&TokenSet> =
        [&train, &validation].into_iter().filter(|other| other.name() != set.name()).collect();
    let leaks = scores.without_leaks(&set, &others, SIMILAR);
    if leaks["leaked"] != 0 {
        warn!(
            "{} of {all} texts of the {} split resemble one of the other splits; the result without them is in {}",
            leaks["leaked"],
            set.name(),
            results(&args.to).display()
        );
    }
    json["leaks"] = leaks;
    create_folder(&args.to)?;
    let page = mistakes(&set, scores.probabilities())?;
    publish_bytes(&args.to.join("mistakes.html"), page.html().as_bytes())?;
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

/// Options of `evaluate predict` that apply to texts.
const PREDICT_OPTIONS: [&str; 8] =
    ["inputs", "output", "force", "with", "weights", "device", "threads", "json"];
/// Texts that are read, predicted and written at once.
const CHUNK: usize = 512;
/// Largest line of the input, in bytes.
const MAX_LINE: u64 = 16 << 20;

/// Whether predictions are written as JSON lines, which only models of texts have.
pub fn is_jsonl(to: &Path) -> bool {
    to.as_os_str() == "-" || to.extension().is_some_and(|ending| ending == "jsonl")
}

/// Predicts the labels of texts in a file or from stdin, one per line.
pub fn predict(given: &Given<Predict>) -> Result<Exit> {
    let args = &given.args;
    given.require_only(&PREDICT_OPTIONS, NO_EFFECT)?;
    let Some(inputs) = &args.inputs else {
        return Err(Error::usage("--inputs: name a file with a text on each line, or - for stdin"));
    };
    let to_stdout = args.to.as_os_str() == "-";
    if !to_stdout {
        refuse_earlier([&args.to], args.force)?;
    }
    let signals = Signals::install()?;
    let reader: Box<dyn Read> = match inputs.as_os_str() == "-" {
        true => Box::new(std::io::stdin()),
        false => Box::new(small::open(inputs)?),
    };
    let mut lines = Lines { path: inputs, reader: BufReader::new(reader), number: 0 };
    let model = TextPredictor::open(args.model.run(), &args.model.opener()?)?;
    let mut out = Out::stdout(args.output);
    let (mut text, mut count) = (Vec::new(), 0);
    loop {
        let texts = lines.next(CHUNK)?;
        if texts.is_empty() {
            break;
        }
        count += texts.len();
        for row in model.predict(&texts)? {
            let mut line = serde_json::to_vec(&row).map_err(Error::bug)?;
            line.push(b'\n');
            match to_stdout {
                true => out.raw(&line)?,
                false => text.extend(line),
            }
        }
        signals.check_stop(|| "run the same command again".into())?;
    }
    if to_stdout {
        return out.finish();
    }
    publish_bytes(&args.to, &text)?;
    let file = args.to.display().to_string();
    let message = format!("{file}: {count} texts");
    out.item(&json!({"file": file, "texts": count}), message).map(|()| Exit::Done)
}

/// Reads texts, one per line.
struct Lines<'a> {
    path: &'a Path,
    reader: BufReader<Box<dyn Read>>,
    number: u64,
}

impl Lines<'_> {
    /// The next texts, at most `most`; empty lines are skipped. Errors: 65 with the line; 74.
    fn next(&mut self, most: usize) -> Result<Vec<NewText>> {
        let (mut found, mut line) = (Vec::new(), Vec::new());
        while found.len() < most {
            line.clear();
            let mut limited = (&mut self.reader).take(MAX_LINE + 1);
            let read = limited.read_until(b'\n', &mut line);
            if read.map_err(|cause| Error::io(self.path, cause))? == 0 {
                break;
            }
            self.number += 1;
            let wrong = |what: &str| {
                Error::data(format!("{}: line {}: {what}", self.path.display(), self.number))
            };
            if line.len() as u64 > MAX_LINE {
                return Err(wrong("more than 16 MiB, the limit"));
            }
            let text = std::str::from_utf8(&line).map_err(|_| wrong("not valid UTF-8"))?.trim();
            if !text.is_empty() {
                found.push(NewText::parse(text));
            }
        }
        Ok(found)
    }
}
