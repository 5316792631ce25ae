//! Subcommands for texts: stores of texts, their manifests, and tokens.

use std::path::{Path, PathBuf};

use data::split::{Source, SplitName};
use data::store::RecordStore;
use data::text::chat::{ImageLimits, LossOn};
use data::text::{
    Chunks, Columns, TextImport, TextSet, TextStore, TokenSet, TokenizeReport, Tokenizer, Unpaired,
    VectorOptions, VectorStats, import_tokens, import_with, tokenize, tokenize_chat,
};
use serde_json::{Value, json};
use unix::cli::Output;
use unix::out::Out;
use unix::progress::Progress;
use unix::signal::Signals;
use unix::{Error, Exit, Result, note, warn};

/// Options of `ds-prep import` for texts and vectors.
#[derive(clap::Args)]
pub struct TextOptions {
    /// Make a text store from .csv and .jsonl files; FILE names the columns, such as text, label and group, or messages,
    /// see longhaul-files(5)
    #[arg(long, value_name = "FILE")]
    pub columns: Option<PathBuf>,
    #[command(flatten)]
    pub vectors: VectorOptions,
    /// Cut texts into chunks of at most NUMBER characters, at ends of sentences where possible; the chunks of a text
    /// share a group
    #[arg(long, value_name = "NUMBER", requires = "columns")]
    chunk: Option<usize>,
    /// Makes tokens of a folder with tokens/SPLIT/*.npz and latents/SPLIT/*.npy, paired by name; FOLDER has the
    /// tokenizer that they were made with
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["columns", "vectors"])]
    pub tokenizer: Option<PathBuf>,
    /// Characters that neighbouring chunks share, at most
    #[arg(long, value_name = "NUMBER", default_value_t = 0, requires = "chunk")]
    overlap: usize,
}

impl TextOptions {
    /// Whether vectors are imported.
    pub fn has_vectors(&self) -> bool {
        !self.vectors.files.is_empty()
    }

    /// Names of the options that are valid for texts, and for vectors alone.
    pub fn names(&self) -> &'static [&'static str] {
        const ALL: [&str; 9] = [
            "vectors",
            "output",
            "json",
            "columns",
            "limit",
            "vector-ids",
            "unpaired",
            "chunk",
            "overlap",
        ];
        if self.columns.is_some() { &ALL } else { &ALL[..3] }
    }
}

/// Whether `path` is a folder with images.
pub fn is_image_folder(path: &Path) -> bool {
    path.is_dir() && data::text::has_images(path)
}

/// Copies rows of CSV and JSONL files into a store, with vectors if there are any; or vectors alone.
pub fn make(options: &TextOptions, files: &[PathBuf], to: &Path, mut out: Out) -> Result<Exit> {
    let columns = match (&options.columns, files) {
        (Some(columns), _) => Columns::load(columns)?,
        (None, [folder]) if is_image_folder(folder) => data::text::folder_columns(),
        (None, []) => Columns::default(),
        (None, _) => {
            let what = "--columns: must name the columns of the texts; without FILES, --vectors are imported alone";
            return Err(Error::usage(what));
        }
    };
    if options.columns.is_some() && files.is_empty() {
        return Err(Error::usage("FILES: --columns needs files with texts"));
    }
    if options.vectors.unpaired == Unpaired::Drop && options.vectors.ids.is_none() {
        return Err(Error::usage("--unpaired: no effect without --vector-ids"));
    }
    let chunks = options.chunk.map(|length| Chunks::new(length, options.overlap)).transpose()?;
    let plan = TextImport { columns: &columns, files, vectors: &options.vectors, chunks };
    let signals = Signals::install()?;
    let (mut progress, mut done) = (Progress::new("rows", 0), 0);
    let store = import_with(&plan, to, |more| {
        done += more as u64;
        progress.set(done);
        signals
            .check_stop(|| format!("{} is incomplete; the same command resumes it", to.display()))
    });
    drop(progress);
    out.row(&row(&store?))?;
    out.finish()
}

/// Copies a folder of tokens and vectors, one file for each record.
pub fn make_tokens(options: &TextOptions, files: &[PathBuf], to: &Path, out: Out) -> Result<Exit> {
    let ([from], Some(tokenizer)) = (files, &options.tokenizer) else {
        return Err(Error::usage("--tokenizer: imports one folder, with tokens and latents"));
    };
    let tokenizer = Tokenizer::open(tokenizer, usize::MAX)?;
    let signals = Signals::install()?;
    let (mut progress, mut done) = (Progress::new("files", 0), 0);
    let sets = import_tokens(from, &tokenizer, options.vectors.unpaired, to, |more| {
        done += more as u64;
        progress.set(done);
        signals
            .check_stop(|| format!("{} is incomplete; the same command resumes it", to.display()))
    });
    drop(progress);
    out.rows(sets?.iter().map(TokenizeReport::of))
}

/// Returns a table row that describes a store.
pub fn row(store: &TextStore) -> Value {
    let kind = store.kind();
    let mut row = json!({
        "store": store.path(),
        "records": store.len(),
        "labels": kind.labels.join(", "),
        "multi_label": kind.multi_label,
        "pairs": kind.pairs,
        "answers": kind.answers,
    });
    if kind.vector > 0 {
        row["vector"] = kind.vector.into();
    }
    row
}

/// Returns a complete description of a store.
pub fn describe(store: &Path) -> Result<Value> {
    let store = TextStore::open(store)?;
    let (mut row, description) = (row(&store), store.description());
    row["columns"] = json!(description.columns);
    row["dropped"] = description.dropped.into();
    row["files"] = json!(description.files);
    if description.vector > 0 {
        row["vectors"] = json!(description.vectors);
    }
    if let Some(chunks) = description.chunks {
        row["chunks"] = json!(chunks);
    }
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
    let mut record = json!({
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
    });
    if let Some(vector) = store.vector(i) {
        record["vector"] = json!(vector);
    }
    Ok(record)
}

/// Computes the statistics of the vectors in the training split of a manifest.
pub fn stats(manifest: &Path, to: &Path, mut out: Out) -> Result<Exit> {
    let set = TextSet::open(manifest, SplitName::Train)?;
    if set.content().vector == 0 {
        let what =
            "texts without vectors have no statistics; ds-prep show counts the labels of a store";
        return Err(Error::usage(format!("{}: {what}", manifest.display())));
    }
    set.stores().iter().try_for_each(RecordStore::verify)?;
    let stats = VectorStats::of(&set)?;
    if to.as_os_str() == "-" {
        return out.raw(stats.text()?.as_bytes()).map(|()| Exit::Done);
    }
    stats.save(to)?;
    out.rows(stats.rows())
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
    #[command(flatten)]
    images: ImageLimits,
    /// The tokens of conversations that a loss counts [default: assistant]
    #[arg(long, value_enum, value_name = "PART")]
    loss_on: Option<LossOn>,
    /// Output folder
    #[arg(short = 'o', long = "output", value_name = "FOLDER")]
    to: PathBuf,
    #[command(flatten)]
    output: Output,
}

pub fn encode(args: &Tokenize) -> Result<Exit> {
    let Tokenize { manifest, tokenizer, max_length, stride, images, loss_on, to, output } = args;
    let is_chat = TextSet::open(manifest, SplitName::Train)?.content().conversations;
    if !is_chat && loss_on.is_some() {
        return Err(Error::usage("--loss-on: no effect on texts, only on conversations"));
    }
    if is_chat && stride.is_some() {
        return Err(Error::usage(
            "--stride: no effect on conversations, only on contexts of answers",
        ));
    }
    if !is_chat && *images != ImageLimits::default() {
        let what =
            "--max-width, --max-image-tokens: no effect on texts, only on images in conversations";
        return Err(Error::usage(what));
    }
    let signals = Signals::install()?;
    let (mut progress, mut done) = (Progress::new("records", 0), 0);
    let more = |more: usize| {
        done += more as u64;
        progress.set(done);
        signals
            .check_stop(|| format!("{} is incomplete; the same command resumes it", to.display()))
    };
    let sets = match is_chat {
        true => {
            let mut chat =
                Tokenizer::open_chat(tokenizer, *max_length, loss_on.unwrap_or_default())?;
            match &mut chat.images {
                Some(own) => own.limit(*images)?,
                None if *images == ImageLimits::default() => {}
                None => {
                    return Err(Error::usage(format!(
                        "--max-width, --max-image-tokens: {} has no image processor",
                        tokenizer.display()
                    )));
                }
            }
            let divided = chat.divided_marks()?;
            if !divided.is_empty() {
                warn!(
                    "{}: the chat template writes {}, which the tokenizer does not have as tokens; take both from the same \
                     model",
                    tokenizer.display(),
                    divided.join(" and ")
                );
            }
            if chat.turn_end()?.is_none() {
                warn!(
                    "the chat template ends no turn of the assistant with a special token of the tokenizer, so a model does not \
                     learn where an answer ends; add {{{{ eos_token }}}} to the template"
                );
            }
            tokenize_chat(manifest, &chat, *max_length, to, more)
        }
        false => {
            let tokenizer = Tokenizer::open(tokenizer, *max_length)?;
            tokenize(manifest, &tokenizer, *max_length, *stride, to, more)
        }
    };
    drop(progress);
    let sets = sets?;
    let changed: usize = sets.iter().map(TokenSet::changed_turns).sum();
    if changed > 0 {
        note!(
            "the chat template renders {changed} turns of assistants in another way once the conversation goes on; they are learnt as \
             in the whole conversation"
        );
    }
    let truncated: usize = sets.iter().map(TokenSet::truncated).sum();
    if truncated > 0 {
        note!("{truncated} records have more than {max_length} tokens and were truncated");
    }
    Out::stdout(*output).rows(sets.iter().map(TokenizeReport::of))
}

#[derive(clap::Args)]
pub struct Vocabulary {
    /// Split manifest of texts or conversations
    manifest: PathBuf,
    /// Largest number of entries
    #[arg(long, default_value_t = 4000, value_name = "NUMBER")]
    size: usize,
    /// Pixels of a side of a patch, four of which are a token of an image [default: 16]
    #[arg(long, value_name = "PIXELS", value_parser = clap::value_parser!(u32).range(1..=1024))]
    patch_size: Option<u32>,
    /// Output folder, for vocab.txt and tokenizer.json; of conversations for tokenizer.json, tokenizer_config.json and
    /// chat_template.jinja, and with images preprocessor_config.json
    #[arg(short = 'o', long = "output", value_name = "FOLDER")]
    to: PathBuf,
    #[command(flatten)]
    output: Output,
}

pub fn vocabulary(args: &Vocabulary) -> Result<Exit> {
    let set = TextSet::open(&args.manifest, SplitName::Train)?;
    let entries = data::text::vocabulary(&set, args.size, args.patch_size, &args.to)?;
    let name = if set.content().conversations { "tokenizer.json" } else { "vocab.txt" };
    let row = json!({"vocabulary": args.to.join(name), "entries": entries});
    Out::stdout(args.output).rows([row])
}

/// Returns the table rows of a folder of tokens, one for each split.
pub fn rows(tokens: &Path) -> Result<Vec<TokenizeReport>> {
    let exists = |name: &SplitName| tokens.join(name.to_string()).exists();
    let sets = SplitName::ALL.into_iter().filter(exists).map(|name| TokenSet::open(tokens, name));
    sets.map(|set| Ok(TokenizeReport::of(&set?))).collect()
}
