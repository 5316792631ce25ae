//! Checkpoints: the subcommands that only read them; `change.rs` has those that modify or create them, `exchange.rs`
//! those for other programs.

mod change;
mod exchange;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use learn::checkpoint::{self, Manifest, Report, Statistics};
use serde_json::{Map, Value, json};
use unix::cli::Output;
use unix::out::Out;
use unix::text::summary;
use unix::{Error, Exit, Result, inputs, note};

/// List, verify, compare, remove, average, export and import checkpoints
///
/// A checkpoint is a folder such as RUN/ckpt/step-00001200, with a manifest and safetensors files. ckpt lists the
/// checkpoints of a run, shows and verifies their content and compares two of them. It removes those that no rule
/// keeps, averages several, and exchanges weights with other programs. longhaul-files(5) lists the files of a
/// checkpoint.
#[derive(Parser)]
#[command(name = "ckpt", version = env!("LONGHAUL_VERSION"), after_long_help = MANUAL)]
struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// List the checkpoints of a run, the newest last; reads manifests and file sizes only
    Ls {
        /// Run directory, or its ckpt folder
        run: PathBuf,
        #[command(flatten)]
        output: Output,
    },
    /// Show the manifest of a checkpoint and statistics of its tensors
    Show {
        /// Checkpoint, or a run directory, whose newest checkpoint is used
        checkpoint: PathBuf,
        /// Only the tensor of this name
        #[arg(long, value_name = "NAME", conflicts_with = "pattern")]
        tensor: Option<String>,
        /// Only tensors whose names match this pattern with * and ?
        #[arg(long, value_name = "PATTERN")]
        pattern: Option<String>,
        #[command(flatten)]
        output: Output,
    },
    /// Read checkpoints completely and compare them with their checksums
    Verify {
        /// Checkpoints, or run directories, whose checkpoints are all verified; `-` reads names from stdin
        #[arg(required = true)]
        checkpoints: Vec<PathBuf>,
        #[command(flatten)]
        output: Output,
    },
    /// Show how two checkpoints differ; exit 0 if they differ only in when, where and how fast they were made,
    /// otherwise 1
    Diff {
        /// Checkpoint, or a run directory, whose newest checkpoint is used
        a: PathBuf,
        /// The other checkpoint
        b: PathBuf,
        #[command(flatten)]
        output: Output,
    },
    /// Remove the checkpoints of a run that no rule keeps
    ///
    /// The newest is verified first. It is always kept, as is the target of the link best. Exits 75 while another
    /// process is working on the run.
    Prune(change::Prune),
    /// Recover complete checkpoints that were not renamed before the machine died
    Adopt(change::Adopt),
    /// Write the weighted mean of several checkpoints as a checkpoint
    ///
    /// Averages the weights, and their moving averages if all checkpoints have one. The result is for evaluate,
    /// latent-cache and export; training cannot resume from it.
    Average(change::Average),
    /// Write a checkpoint with its optimizer state in another number of files
    ///
    /// Training does not need this: it resumes from any number of files with any number of ranks.
    Reshard(change::Reshard),
    /// Write the weights of a checkpoint for other programs
    ///
    /// Formats: safetensors, a file with the tensors of any model; hf, a folder with config.json, model.safetensors and
    /// tokenizer that transformers loads (tasks of texts), in which the updates of LoRA are added to the weights; peft, a
    /// folder with the LoRA adapter alone.
    Export(exchange::Export),
    /// Write a checkpoint with the weights of another program
    ///
    /// A pickle in the file is read as data and never executed. It may contain tensors in plain containers; anything
    /// else is refused by name.
    Import(exchange::ImportArgs),
    /// Print the configuration that starts training from an encoder of transformers
    ///
    /// The sections model.encoder and init for train-stage, from config.json and the weights of BERT, RoBERTa, XLM-R or
    /// DistilBERT in a folder. The head starts with random values, unless --head is given.
    Config(exchange::ConfigArgs),
}

const MANUAL: &str = "\
EXIT STATUS
  0   Done. For verify: all checkpoints are good. For diff: they differ only in when, where (host, attempt,
      number of ranks, version) and how fast they were made.
  1   For diff: the checkpoints differ.
  2   The command line is wrong.
  65  A checkpoint or file of weights is damaged, of a newer format, or of another model.
  66  There is no checkpoint, or it cannot be read.
  73  The output already exists, or cannot be created.
  74  Reading or writing failed midway.
  75  Another process is working on the run; repeat prune or adopt after it has ended.

EXAMPLES
  List the checkpoints:
    $ ckpt ls runs/codec
  Show the newest, with statistics of the weights of its decoder:
    $ ckpt show runs/codec --pattern 'decoder.*.weight'
  Verify a checkpoint:
    $ ckpt verify runs/codec/ckpt/best
  Verify all checkpoints of all runs, as JSON:
    $ ckpt verify runs/* --json
  How far the last updates changed the weights:
    $ ckpt diff runs/codec/ckpt/best runs/codec --json || test $? = 1
  The mean of two checkpoints, the second with twice the weight:
    $ ckpt average runs/codec/ckpt/best runs/codec/ckpt/latest --weights 1,2 -o mean
  The optimizer state in four files:
    $ ckpt reshard runs/codec --shards 4 -o resharded
  Export the weights; import them, removing a prefix that another program added to the names:
    $ ckpt export runs/codec -o codec.safetensors
    $ ckpt import codec.safetensors --like runs/codec --map 'module.*=*' -o imported
  Fine-tune an encoder of transformers, here in the folder pretrained, and export the result as a folder that
  transformers loads:
    $ ckpt config pretrained > encoder.yaml
    $ ds-prep tokenize split.json --tokenizer pretrained --max-length 64 -o tokens
    $ train-stage classify -c classify.yaml -c encoder.yaml --run runs/tuned
    $ ckpt export runs/tuned --format hf -o model
  The same with LoRA: training changes only small matrices and the head, which PEFT loads on top of the pretrained model:
    $ LORA='model.lora={r: 4, targets: [query, value]}'
    $ train-stage classify -c classify.yaml -c encoder.yaml -s \"$LORA\" --run runs/lora
    $ ckpt export runs/lora --format peft -o adapter
  Recover complete checkpoints after a machine died:
    $ ckpt adopt runs/codec
  Show what prune would remove, then remove it:
    $ ckpt prune runs/codec --keep-last 1 --keep-best 1 --dry-run
    $ ckpt prune runs/codec --keep-last 1 --keep-best 1

SEE ALSO
  longhaul-files(5), train-stage(1), evaluate(1), longhaul(7), longhaul-recovery(7)
";

fn main() -> ExitCode {
    unix::cli::main::<Args>(body)
}

fn body(args: Args) -> Result<Exit> {
    match args.verb {
        Verb::Ls { run, output } => ls(&run, output),
        Verb::Show { checkpoint, tensor, pattern, output } => {
            let wanted = |name: &str| match (&tensor, &pattern) {
                (Some(tensor), _) => tensor == name,
                (_, Some(pattern)) => unix::text::matches(pattern, name),
                _ => true,
            };
            show(&checkpoint, wanted, output)
        }
        Verb::Verify { checkpoints, output } => verify(&inputs::files(&checkpoints)?, output),
        Verb::Diff { a, b, output } => diff(&a, &b, output),
        Verb::Prune(args) => change::prune(args),
        Verb::Adopt(args) => change::adopt(args),
        Verb::Average(args) => change::average(args),
        Verb::Reshard(args) => change::reshard(args),
        Verb::Export(args) => exchange::export(args),
        Verb::Import(args) => exchange::import(args),
        Verb::Config(args) => exchange::config(args),
    }
}

fn ls(run: &Path, output: Output) -> Result<Exit> {
    let mut out = Out::stdout(output);
    for listed in checkpoint::listing(run)? {
        if output.json { out.row(&listed)? } else { out.row(&listed.row())? }
    }
    out.finish()
}

fn show(path: &Path, wanted: impl Fn(&str) -> bool, output: Output) -> Result<Exit> {
    let path = checkpoint::one_in(path)?;
    let manifest = checkpoint::manifest_of(&path)?;
    let mut out = Out::stdout(output);
    out.item(&head(&path, &manifest), lines(&head(&path, &manifest)))?;
    let mut shown = 0;
    for file in &manifest.files {
        let tell = |found: Statistics| {
            shown += 1;
            out.row(&found)
        };
        checkpoint::statistics(&path, file, &wanted, tell)?;
    }
    out.finish()?;
    if shown == 0 && manifest.files.iter().any(|file| !file.tensors.is_empty()) {
        return Err(Error::usage(format!("{}: no tensor matches the name", path.display())));
    }
    Ok(Exit::Done)
}

/// The manifest without its tensor tables, which follow as rows.
fn head(path: &Path, manifest: &Manifest) -> Map<String, Value> {
    let mut head = Map::from_iter([("path".to_string(), json!(path))]);
    if let Ok(Value::Object(fields)) = serde_json::to_value(manifest) {
        head.extend(fields);
    }
    let file = |f: &checkpoint::FileEntry| json!({"bytes": f.bytes, "blake3": f.blake3});
    let files = manifest.files.iter().map(|f| (f.name.clone(), file(f)));
    head.insert("files".into(), Value::Object(files.collect()));
    head
}

/// One line per field, nested ones with their path; omits the configuration, which has its own file.
fn lines(head: &Map<String, Value>) -> String {
    let mut lines = Vec::new();
    for (name, value) in head.iter().filter(|(name, _)| *name != "config") {
        match value {
            Value::Object(fields) => {
                lines.extend(
                    fields.iter().map(|(field, value)| line(&format!("{name}.{field}"), value)),
                );
            }
            value => lines.push(line(name, value)),
        }
    }
    lines.join("\n") + "\n"
}

fn line(name: &str, value: &Value) -> String {
    format!("{name}: {}", summary(value))
}

fn verify(paths: &[PathBuf], output: Output) -> Result<Exit> {
    let mut out = Out::stdout(output);
    let (mut checked, mut damaged, mut missing) = (0, 0, None);
    for path in paths {
        let found = checkpoint::all_in(path).and_then(|all| match all.is_empty() {
            true => Err(Error::open(path, "it contains no checkpoint")),
            false => Ok(all),
        });
        for checkpoint in found.unwrap_or_else(|error| {
            note!("{error}");
            missing = Some(error.exit);
            Vec::new()
        }) {
            let report = checkpoint::verify(&checkpoint)?;
            checked += 1;
            damaged += usize::from(!report.damage.is_empty());
            tell(&mut out, &report)?;
        }
    }
    out.finish()?;
    if damaged > 0 {
        note!("{damaged} of {checked} checkpoints are damaged");
        return Ok(Exit::Data);
    }
    Ok(missing.unwrap_or(Exit::Done))
}

/// Prints the report as a JSON line, or one row per problem.
fn tell(out: &mut Out, report: &Report) -> Result<()> {
    if out.is_json() {
        return out.row(report);
    }
    let name = report.path.display().to_string();
    if report.damage.is_empty() {
        let state = format!("good: {} tensors in {} files", report.tensors, report.files);
        return out.row(&json!({"checkpoint": name, "file": null, "tensor": null, "state": state}));
    }
    report.damage.iter().try_for_each(|damage| {
        let (file, tensor) = (&damage.file, &damage.tensor);
        out.row(
            &json!({"checkpoint": name, "file": file, "tensor": tensor, "state": damage.problem}),
        )
    })
}

/// Describes the change of a field; for long lists of equal length, the number of differing elements and the first one.
fn change(a: &Value, b: &Value) -> String {
    if let (Value::Array(a), Value::Array(b)) = (a, b)
        && a.len() == b.len()
        && a.len() > 8
    {
        let mut differ = a.iter().zip(b).enumerate().filter(|(_, (a, b))| a != b);
        if let Some((at, (was, is))) = differ.next() {
            let count = 1 + differ.count();
            let (was, is) = (summary(was), summary(is));
            return format!("{count} of {} elements differ, first [{at}]: {was} -> {is}", a.len());
        }
    }
    format!("{} -> {}", summary(a), summary(b))
}

/// Prints one line per differing field, then one row per tensor.
fn diff(a: &Path, b: &Path, output: Output) -> Result<Exit> {
    let found = checkpoint::diff(&checkpoint::one_in(a)?, &checkpoint::one_in(b)?)?;
    let mut out = Out::stdout(output);
    for field in &found.fields {
        let not_counted = if field.circumstance { " (not counted)" } else { "" };
        let text = format!("{}: {}{not_counted}", field.field, change(&field.a, &field.b));
        out.item(field, text)?;
    }
    found.tensors.iter().try_for_each(|tensor| out.row(tensor))?;
    out.finish()?;
    Ok(if found.is_empty() { Exit::Done } else { Exit::Failure })
}
