//! The subcommands that exchange weights with other programs.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use learn::checkpoint;
use learn::foreign::NameMap;
use learn::trained::Weights;
use serde_json::json;
use tasks::exchange::{self, ExportRequest, Exported, Pretrained};
use unix::cli::Output;
use unix::config::to_yaml;
use unix::out::Out;
use unix::space::human_bytes;
use unix::{Error, Exit, Result};

use crate::change::written;

#[derive(Args)]
pub struct Export {
    /// Checkpoint, or a run directory, whose newest checkpoint is used
    checkpoint: PathBuf,
    /// File to write, or folder for the formats hf and peft; must not exist
    #[arg(short = 'o', long = "output", value_name = "PATH")]
    output_path: PathBuf,
    /// Format of the output
    #[arg(long, value_enum, default_value_t = Format::Safetensors)]
    format: Format,
    /// Part to export: model or ema; of format safetensors also buffers, or the name of another file of the checkpoint
    #[arg(long, value_name = "PART", default_value = "model")]
    what: String,
    /// For hf and peft: the tokens, with tokenizer and labels, if they are not where they were in training
    #[arg(long, value_name = "FOLDER")]
    tokens: Option<PathBuf>,
    /// For hf, encoders: leave out the head, e.g. if transformers has no such head
    #[arg(long)]
    encoder_only: bool,
    #[command(flatten)]
    output: Output,
}

/// The formats of `export`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// A file of tensors
    Safetensors,
    /// A folder for Hugging Face transformers
    Hf,
    /// A folder for PEFT
    Peft,
}

#[derive(Args)]
pub struct ConfigArgs {
    /// Folder with config.json, and model.safetensors or pytorch_model.bin, or an index of several such files
    folder: PathBuf,
    /// Encoders: use the head in the folder, too; the tokens must have its labels, in the same order
    #[arg(long)]
    head: bool,
    /// Folder with a LoRA adapter of PEFT for this model
    #[arg(long, value_name = "FOLDER")]
    adapter: Option<PathBuf>,
    #[command(flatten)]
    output: Output,
}

#[derive(Args)]
pub struct ImportArgs {
    /// A .safetensors file, or a state_dict that PyTorch (1.6 or newer) saved
    file: PathBuf,
    /// Checkpoint to write; must not exist
    #[arg(short = 'o', long = "output", value_name = "OUT")]
    output_folder: PathBuf,
    /// Checkpoint or run of the same model, which supplies names, shapes, buffers and configuration
    #[arg(long, value_name = "CHECKPOINT")]
    like: PathBuf,
    /// Rename tensors, FROM=TO; a * in FROM matches any characters, and a * in TO stands for the same ones
    #[arg(long, value_name = "FROM=TO")]
    map: Vec<String>,
    /// Ignore tensors whose names in the file match this pattern with * and ?
    #[arg(long, value_name = "PATTERN")]
    ignore: Vec<String>,
    #[command(flatten)]
    output: Output,
}

#[derive(Args)]
pub struct QuantizeArgs {
    /// Folder with config.json, weights and tokenizer
    folder: PathBuf,
    /// Folder to write; must not exist
    #[arg(short = 'o', long = "output", value_name = "OUT")]
    output_folder: PathBuf,
    /// Round all weights to bf16 first, which halves what stays dense in a model of f32
    #[arg(long)]
    bf16: bool,
    #[command(flatten)]
    output: Output,
}

pub fn export(args: Export) -> Result<Exit> {
    let from = checkpoint::one_in(&args.checkpoint)?;
    let path = args.output_path;
    let refused = match args.format {
        Format::Hf => None,
        _ if args.encoder_only => Some("--encoder-only needs --format hf"),
        Format::Safetensors if args.tokens.is_some() => Some("--tokens needs --format hf or peft"),
        Format::Safetensors | Format::Peft => None,
    };
    if let Some(text) = refused {
        return Err(Error::usage(text));
    }
    let folder = |format| {
        let weights = match args.what.as_str() {
            "model" => Weights::Raw,
            "ema" => Weights::Ema,
            other => {
                return Err(Error::usage(format!(
                    "--what {other}: hf and peft export model or ema"
                )));
            }
        };
        let (checkpoint, tokens) = (from.clone(), args.tokens.clone());
        exchange::export(&ExportRequest { checkpoint, weights, tokens, format }, &path)
    };
    let Exported { bytes, compared } = match args.format {
        Format::Safetensors => {
            let bytes = checkpoint::export(&from, &args.what, &path)?;
            Exported { bytes, compared: None }
        }
        Format::Hf if args.encoder_only => folder(exchange::Format::Encoder)?,
        Format::Hf => folder(exchange::Format::Model)?,
        Format::Peft => folder(exchange::Format::Adapter)?,
    };
    let mut record = json!({"path": path, "checkpoint": from, "what": args.what, "bytes": bytes});
    let mut text = format!("{} of {}", args.what, from.display());
    if let Some(found) = compared {
        record["compared"] = json!(found);
        text += &match found.largest_difference {
            0.0 => {
                format!("; the logits of {} tokens are those of the trained model", found.tokens)
            }
            most => format!(
                "; the logits of {} tokens differ by at most {most:.1e} from those of the trained model (largest logit {:.1})",
                found.tokens, found.largest_logit
            ),
        };
    }
    written(args.output, record, &path, &text)
}

pub fn config(args: ConfigArgs) -> Result<Exit> {
    let ConfigArgs { folder, head, adapter, output } = args;
    let config = exchange::configuration(&Pretrained { folder, head, adapter })?;
    Out::stdout(output).item(&config, to_yaml(&config)?.trim_end()).map(|()| Exit::Done)
}

pub fn import(args: ImportArgs) -> Result<Exit> {
    let names = NameMap { map: args.map, ignore: args.ignore, ..NameMap::default() };
    let known = |task: &str| tasks::TASKS.iter().find(|own| own.spec.name == task)?.foreign;
    let tensors = checkpoint::import(&args.file, &args.like, &names, known, &args.output_folder)?;
    let path = args.output_folder;
    let record = json!({"path": path, "file": args.file, "tensors": tensors});
    written(args.output, record, &path, &format!("{tensors} tensors of {}", args.file.display()))
}

pub fn quantize(args: QuantizeArgs) -> Result<Exit> {
    let found = tasks::quantise(&args.folder, &args.output_folder, args.bf16)?;
    let path = args.output_folder;
    let text = format!(
        "{} matrices of {} in 4 bits, {} tensors dense, {} instead of {}",
        found.quantised,
        args.folder.display(),
        found.dense,
        human_bytes(found.bytes),
        human_bytes(found.bytes_before)
    );
    let mut record = json!(found);
    record["path"] = json!(path);
    written(args.output, record, &path, &text)
}
