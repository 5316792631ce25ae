//! Subcommands for texts: stores of texts, their manifests, and tokens.

use std::path::{Path, PathBuf};

use data::split::{Source, SplitName};
use data::store::RecordStore;
use data::text::{
    Columns, TextSet, TextStore, TokenSet, TokenizeReport, Tokenizer, import, tokenize,
};
use serde_json::{Value, json};
use unix::cli::Output;
use unix::out::Out;
use unix::progress::Progress;
use unix::signal::Signals;
use unix::{Error, Exit, Result, note};

/// Copies rows of CSV and JSONL files into a store.
pub fn make(columns: &Path, files: &[PathBuf], to: &Path, mut out: Out) -> Result<Exit> {
    let columns = Columns::load(columns)?;
    let signals = Signals::install()?;
    let (mut progress, mut done) = (Progress::new("rows", 0), 0);
    let store = import(&columns, files, to, |more| {
        done += more as u64;
        progress.set(done);
        signals
            .check_stop(|| format!("{} is incomplete; the same command resumes it", to.display()))
    });
    drop(progress);
    out.row(&row(&store?))?;
    out.finish()
}

/// Returns a table row that describes a store.
pub fn row(store: &TextStore) -> Value {
    let kind = store.kind();
    json!({
        "store": store.path(),
        "records": store.len(),
        "labels": kind.labels.join(", "),
        "multi_label": kind.multi_label,
        "pairs": kind.pairs,
        "answers": kind.answers,
    })
}

/// Returns a complete description of a store.
pub fn describe(store: &Path) -> Result<Value> {
    let store = TextStore::open(store)?;
    let (mut row, description) = (row(&store), store.description());
    row["columns"] = json!(description.columns);
    row["dropped"] = description.dropped.into();
    row["files"] = json!(description.files);
    let mut counts = vec![0; store.kind().labels.len()];
    for i in 0..store.len() {
        for name in store.kind().names_of(store.label(i)) {
            if let Some(class) = store.kind().labels.iter().position(|label| label == name) {
                counts[class] += 1;
            }
        }
    }
    row["counts"] = store.kind().labels.iter().map(String::as_str).zip(counts).collect();
    Ok(row)
}

/// Returns a record of a store.
pub fn of_record(store: &TextStore, i: usize) -> Result<Value> {
    if i >= store.len() {
        let (store, count) = (store.path().display(), store.len());
        return Err(Error::usage(format!(
            "{store}: no record {i}; it has {count} records, numbered from 0"
        )));
    }
    let [text, text2] = store.texts(i);
    Ok(json!({
        "file": store.origin(i).0,
        "line": store.line(i),
        "id": store.id(i),
        "group": store.group_name(i),
        "label": store.kind().names_of(store.label(i)).join(", "),
        "text": text,
        "text2": text2,
        "context": store.context(i),
        "answer": store.answer(i),
        "criterion": store.criterion(i),
    }))
}

#[derive(clap::Args)]
pub struct Tokenize {
    /// Split manifest of texts
    manifest: PathBuf,
    /// Folder with tokenizer.json, or vocab.txt, or vocab.json and merges.txt
    #[arg(long, value_name = "FOLDER")]
    tokenizer: PathBuf,
    /// Maximum number of tokens of a text, including special tokens. Longer texts are truncated; longer contexts are
    /// split into windows of this length
    #[arg(long, default_value_t = 256, value_name = "NUMBER")]
    max_length: usize,
    /// Tokens that neighbouring windows of a long context share; longer answers may not fit completely into any window
    /// [default: a quarter of --max-length]
    #[arg(long, value_name = "NUMBER")]
    stride: Option<usize>,
    /// Output folder
    #[arg(short = 'o', long = "output", value_name = "FOLDER")]
    to: PathBuf,
    #[command(flatten)]
    output: Output,
}

pub fn encode(args: &Tokenize) -> Result<Exit> {
    let Tokenize { manifest, tokenizer, max_length, stride, to, output } = args;
    let tokenizer = Tokenizer::open(tokenizer, *max_length)?;
    let signals = Signals::install()?;
    let (mut progress, mut done) = (Progress::new("records", 0), 0);
    let sets = tokenize(manifest, &tokenizer, *max_length, *stride, to, |more| {
        done += more as u64;
        progress.set(done);
        signals
            .check_stop(|| format!("{} is incomplete; the same command resumes it", to.display()))
    });
    drop(progress);
    let sets = sets?;
    let truncated: usize = sets.iter().map(TokenSet::truncated).sum();
    if truncated > 0 {
        note!("{truncated} records have more than {max_length} tokens and were truncated");
    }
    Out::stdout(*output).rows(sets.iter().map(TokenizeReport::of))
}

#[derive(clap::Args)]
pub struct Vocabulary {
    /// Split manifest of texts
    manifest: PathBuf,
    /// Largest number of entries
    #[arg(long, default_value_t = 4000, value_name = "NUMBER")]
    size: usize,
    /// Output folder, for vocab.txt and tokenizer.json
    #[arg(short = 'o', long = "output", value_name = "FOLDER")]
    to: PathBuf,
    #[command(flatten)]
    output: Output,
}

pub fn vocabulary(args: &Vocabulary) -> Result<Exit> {
    let set = TextSet::open(&args.manifest, SplitName::Train)?;
    let entries = data::text::vocabulary(&set, args.size, &args.to)?;
    let row = json!({"vocabulary": args.to.join("vocab.txt"), "entries": entries});
    Out::stdout(args.output).rows([row])
}

/// Returns the table rows of a folder of tokens, one for each split.
pub fn rows(tokens: &Path) -> Result<Vec<TokenizeReport>> {
    let exists = |name: &SplitName| tokens.join(name.to_string()).exists();
    let sets = SplitName::ALL.into_iter().filter(exists).map(|name| TokenSet::open(tokens, name));
    sets.map(|set| Ok(TokenizeReport::of(&set?))).collect()
}
