//! `evaluate score` for models of texts, and `evaluate predict`.

use crate::predict::Predict;
use crate::score::{Measured, Score, again, publish_json, refuse_earlier};
use data::inputs::Verifier;
use data::split::SplitName;
use data::text::{Columns, NewTexts, TokenSet};
use learn::trained::Parts;
use report::document::Document;
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use tasks::text::{
    LabelScores, Logits, SpanScores, TextPredictor, TextScores, TrainedText, calibrated, classes,
    mistakes, open_sets,
};
use unix::cli::Given;
use unix::out::Out;
use unix::progress::Progress;
use unix::publish::{create_folder, publish_bytes};
use unix::signal::Signals;
use unix::work::Work;
use unix::{Context, Error, Exit, Result, warn};

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

/// Scores a model and the baselines on a split of tokens and writes all files; returns what is printed.
pub fn measure(args: &Score, signals: Signals, work: &mut Work) -> Result<Measured> {
    let folder = &args.data.data;
    let sets = open_sets(folder, args.data.split)?;
    let opener = args.model.opener()?;
    let parts = Parts::read(args.model.run(), opener.weights)?;
    let mut verifier =
        Verifier::start(sets.iter().flat_map(TokenSet::input_files).collect(), None)?;
    let [set, train, validation] = &sets;
    if !parts.origin.was_trained_on(train.hash()) {
        warn!(
            "the model was trained on other tokens than those in {}; the texts of the {} split may be among them",
            folder.display(),
            set.name()
        );
    }
    let all = set.len() as u64;
    let mut progress = Progress::new("texts", all);
    work.progress(0, Some(all))?;
    let mut proceed = |done: usize| {
        progress.set(done as u64);
        work.progress(done as u64, Some(all))?;
        signals.check_stop(again)
    };
    let wait = |_| signals.check_stop(again);
    let model = TrainedText::restore(&parts, &opener, set.info(), folder)?;
    let found = model.outputs_of(set, &mut proceed)?;
    let scores_validation = set.name() == SplitName::Validation;
    let known = match scores_validation {
        true => found.clone(),
        false => model.outputs_of(validation, wait)?,
    };
    if scores_validation || parts.config["data"]["train_on"] == "train+validation" {
        warn!(
            "thresholds and the temperature are fitted on the validation split, which is {}: what depends on them is too \
             optimistic",
            if scores_validation { "scored here" } else { "part of the training data" }
        );
    }
    let protocol = model.protocol(set);
    let classes = || of_classes(&sets, [&found.classes, &known.classes], &protocol);
    let spans =
        || SpanScores::of((set, found.answers.clone()), (validation, &known.answers), train);
    let Scored { rows, json, page, lines } = match (model.has_classes(), model.finds_answers()) {
        (true, true) => joint(classes()?, &spans(), &protocol)?,
        (false, true) => of_spans(&spans(), &protocol)?,
        (_, false) => classes()?,
    };
    drop(progress);
    verifier.finish(|| signals.check_stop(again))?;
    let leaked = json.pointer("/leaks/leaked").or(json.pointer("/classes/leaks/leaked"));
    if let Some(leaked) = leaked.filter(|leaked| **leaked != 0) {
        warn!(
            "{leaked} of {all} texts of the {} split resemble one of the other splits; the result without them is in {}",
            set.name(),
            results(&args.to).display()
        );
    }
    create_folder(&args.to)?;
    for (name, page) in page {
        publish_bytes(&args.to.join(name), page.html().as_bytes())?;
    }
    publish_bytes(&args.to.join("predictions.jsonl"), lines.as_bytes())?;
    for path in args.summary.iter().chain([&results(&args.to)]) {
        publish_json(path, &json)?;
    }
    Ok(Measured { rows, failed: None })
}

/// The results of an evaluation.
struct Scored {
    /// The rows of the table.
    rows: Vec<Value>,
    /// The content of evaluation_results.json.
    json: Value,
    /// Pages with mistakes by their file names.
    page: Vec<(&'static str, Document)>,
    /// The content of predictions.jsonl.
    lines: String,
}

/// Of the logits of a classifier on the first of the sets, and on the validation split.
fn of_classes(
    [set, train, validation]: &[TokenSet; 3],
    [logits, chosen]: [&[f32]; 2],
    protocol: &Value,
) -> Result<Scored> {
    if set.info().multi_label {
        let scores = LabelScores::of([set, train, validation], [logits, chosen]);
        let (rows, json) = scores.results(protocol)?;
        let page = vec![("mistakes.html", scores.mistakes())];
        return Ok(Scored { rows, json, page, lines: lines(scores.predictions())? });
    }
    let scores = TextScores::of(set, [train, validation], logits);
    let (rows, mut json) = scores.results(protocol)?;
    let [truth, known] = [set, validation].map(classes);
    let [own, fitted] =
        [(logits, &truth), (chosen, &known)].map(|(logits, truth)| Logits { logits, truth });
    json["calibrated"] = calibrated(fitted, own, &set.info().labels);
    let others: Vec<&TokenSet> =
        [train, validation].into_iter().filter(|other| other.name() != set.name()).collect();
    json["leaks"] = scores.without_leaks(set, &others, SIMILAR);
    let page = vec![("mistakes.html", mistakes(set, scores.probabilities())?)];
    Ok(Scored { rows, json, page, lines: lines(scores.predictions(set))? })
}

fn of_spans(scores: &SpanScores, protocol: &Value) -> Result<Scored> {
    let (rows, json) = scores.results(protocol)?;
    let page = vec![("mistakes.html", scores.mistakes())];
    Ok(Scored { rows, json, page, lines: lines(scores.predictions())? })
}

/// Of the classes and the answers of a model of task joint.
fn joint(classes: Scored, spans: &SpanScores, protocol: &Value) -> Result<Scored> {
    let answers = of_spans(spans, protocol)?;
    let metric = |name: &str| classes.json[name].as_f64();
    let f1 = metric("f1_binary").or(metric("f1_macro"));
    let score = f1.map(|f1| (f1 + spans.exact_match()) / 2.0);
    let mut rows = classes.rows;
    rows.extend(answers.rows);
    let names = ["classes.html", "answers.html"];
    let pages = names.into_iter().zip(classes.page.into_iter().chain(answers.page));
    Ok(Scored {
        rows,
        json: json!({
            "format": "longhaul-joint", "version": 1, "protocol": protocol, "joint_score": score,
            "classes": without_header(classes.json), "answers": without_header(answers.json),
        }),
        page: pages.map(|(name, (_, page))| (name, page)).collect(),
        lines: classes
            .lines
            .lines()
            .zip(answers.lines.lines())
            .map(merged)
            .collect::<Result<_>>()?,
    })
}

fn without_header(mut json: Value) -> Value {
    if let Value::Object(all) = &mut json {
        for key in ["format", "version", "protocol"] {
            all.remove(key);
        }
    }
    json
}

/// The class and the answer of a record on one line.
fn merged((class, answer): (&str, &str)) -> Result<String> {
    let parse = |line| serde_json::from_str::<Map<String, Value>>(line).map_err(Error::bug);
    let mut all = parse(class)?;
    all.extend(parse(answer)?);
    Ok(serde_json::to_string(&all).map_err(Error::bug)? + "\n")
}

fn lines(records: impl Iterator<Item = Value>) -> Result<String> {
    records.map(|record| Ok(serde_json::to_string(&record).map_err(Error::bug)? + "\n")).collect()
}

/// Options of `evaluate predict` that apply to texts.
const PREDICT_OPTIONS: [&str; 9] =
    ["inputs", "columns", "output", "force", "with", "weights", "device", "threads", "json"];
/// Texts that are read, predicted and written at once.
const CHUNK: usize = 512;

/// Whether predictions are written as JSON lines, which only models of texts have.
pub fn is_jsonl(to: &Path) -> bool {
    to.as_os_str() == "-" || to.extension().is_some_and(|ending| ending == "jsonl")
}

/// Predicts the labels of texts, or the answers in contexts, in a table or in lines; each gives one line of the output.
pub fn predict(given: &Given<Predict>) -> Result<Exit> {
    let args = &given.args;
    given.require_only(&PREDICT_OPTIONS, NO_EFFECT)?;
    let Some(inputs) = &args.inputs else {
        return Err(Error::usage(
            "--inputs: name a .csv, .tsv, .jsonl or .json file, or one with a text on each line, or - for stdin",
        ));
    };
    crate::require_one_rank("evaluate predict for texts")?;
    let to_stdout = args.to.as_os_str() == "-";
    if !to_stdout {
        refuse_earlier([&args.to], args.force)?;
    }
    let signals = Signals::install()?;
    let model = TextPredictor::open(args.model.run(), &args.model.opener()?)?;
    let columns = args.columns.as_deref().map(Columns::load).transpose()?;
    let mut rows = NewTexts::open(inputs, model.needs(), columns.as_ref())?;
    let mut out = Out::stdout(args.output);
    let (mut text, mut count) = (Vec::new(), 0);
    loop {
        let mut texts = Vec::new();
        while texts.len() < CHUNK
            && let Some(text) = rows.read()?
        {
            texts.push(text);
        }
        if texts.is_empty() {
            break;
        }
        count += texts.len();
        for row in model.predict(&texts).context(|| inputs.display().to_string())? {
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
