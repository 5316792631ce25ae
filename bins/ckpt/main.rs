//! The command line of `ckpt`. Its subcommands are in `look.rs` (reading checkpoints), `change.rs` (modifying and
//! creating checkpoints) and `exchange.rs` (import and export for other programs).

mod change;
mod exchange;
mod look;
mod manual;

use clap::{Parser, Subcommand};
use manual::MANUAL;
use std::path::PathBuf;
use std::process::ExitCode;
use unix::cli::Output;
use unix::{Exit, Result, inputs};

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
    command: Command,
}

#[derive(Subcommand)]
enum Command {
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
    /// The newest is verified first. It is always kept, as is the target of the link `best`. Exits with 75 while
    /// another process is working on the run.
    Prune(change::Prune),
    /// Recover complete checkpoints that were not renamed before the machine died
    Adopt(change::Adopt),
    /// Write the weighted mean of several checkpoints as a checkpoint
    ///
    /// Averages the weights, and their moving averages if all checkpoints have one. The result is for evaluate,
    /// latent-cache and export; training cannot resume from it.
    Average(change::Average),
    /// Write a checkpoint with its optimizer state in a different number of files
    ///
    /// Training does not need this: it resumes from any number of files with any number of ranks.
    Reshard(change::Reshard),
    /// Write the weights of a checkpoint for other programs
    ///
    /// Formats: safetensors, a file with the tensors of any model; hf, a folder with config.json, model.safetensors (in
    /// several files with an index above 5 GB) and tokenizer for transformers (tasks of texts and conversations), with
    /// LoRA adapters merged into the weights; peft, a folder with the LoRA adapter alone.
    ///
    /// Decoders are read back before the folder gets its name: the logits of a sample must be those of the model as it
    /// was trained, equal without a merged adapter, else within what rounding explains. The largest difference is
    /// printed; if it is too large, nothing is written.
    Export(exchange::Export),
    /// Write a checkpoint with the weights of another program
    ///
    /// A pickle in the file is read as data and never executed. It may contain tensors in plain containers; anything
    /// else is refused by name.
    ///
    /// For models of train-stage cycle-vae, checkpoints of the original PyTorch program are recognised by their names
    /// and need no --map; what its trainer saves besides the model is ignored. The model that --like names must have
    /// the same options, see EXAMPLES.
    Import(exchange::ImportArgs),
    /// Print a configuration that starts training from a Hugging Face transformers encoder or decoder
    ///
    /// The sections model and init for train-stage, from config.json and the weights in a folder: model.encoder of BERT,
    /// RoBERTa, XLM-R or DistilBERT, whose head starts with random values, unless --head is given; model.decoder of
    /// Qwen3, Qwen2 or Llama; model.decoder and model.vision of Qwen3-VL. model_type in config.json says which. Weights and
    /// tokenizer must fit config.json.
    Config(exchange::ConfigArgs),
    /// Quantize the model in a folder of transformers to 4 bits
    ///
    /// Weights of the linear layers in numbered blocks become NF4 with double quantization, as bitsandbytes stores them;
    /// embeddings, norms, pooler, mergers of images and heads, such as lm_head, stay as they are. transformers loads the
    /// folder, and ckpt config reads it for fine-tuning with LoRA.
    Quantize(exchange::QuantizeArgs),
}

fn main() -> ExitCode {
    unix::cli::main::<Args>(body)
}

fn body(args: Args) -> Result<Exit> {
    match args.command {
        Command::Ls { run, output } => look::ls(&run, output),
        Command::Show { checkpoint, tensor, pattern, output } => {
            let wanted = |name: &str| match (&tensor, &pattern) {
                (Some(tensor), _) => tensor == name,
                (_, Some(pattern)) => unix::text::matches(pattern, name),
                _ => true,
            };
            look::show(&checkpoint, wanted, output)
        }
        Command::Verify { checkpoints, output } => {
            look::verify(&inputs::files(&checkpoints)?, output)
        }
        Command::Diff { a, b, output } => look::diff(&a, &b, output),
        Command::Prune(args) => change::prune(args),
        Command::Adopt(args) => change::adopt(args),
        Command::Average(args) => change::average(args),
        Command::Reshard(args) => change::reshard(args),
        Command::Export(args) => exchange::export(args),
        Command::Import(args) => exchange::import(args),
        Command::Config(args) => exchange::config(args),
        Command::Quantize(args) => exchange::quantize(args),
    }
}
