//! The subcommands that remove, rename or create checkpoints.

use std::path::{Path, PathBuf};

use clap::Args;
use learn::checkpoint::{self, KeepRules};
use learn::score::Direction;
use serde_json::{Value, json};
use unix::cli::Output;
use unix::out::Out;
use unix::{Exit, Result, note};

#[derive(Args)]
#[command(group = clap::ArgGroup::new("rules").required(true).multiple(true))]
pub struct Prune {
    /// Run directory, or its ckpt folder
    run: PathBuf,
    /// Keep this many of the newest; the newest is always kept
    #[arg(long, value_name = "N", group = "rules")]
    keep_last: Option<usize>,
    /// Keep this many with the best values of the metric
    #[arg(long, value_name = "N", group = "rules")]
    keep_best: Option<usize>,
    /// Keep those at multiples of this many updates
    #[arg(long, value_name = "N", group = "rules")]
    keep_every: Option<u64>,
    /// Rank by this metric, smallest first, instead of the metric that the run monitors
    #[arg(long, value_name = "NAME")]
    metric: Option<String>,
    /// Only show what would be removed
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    output: Output,
}

#[derive(Args)]
pub struct Adopt {
    /// Run directory, or its ckpt folder
    run: PathBuf,
    #[command(flatten)]
    output: Output,
}

#[derive(Args)]
pub struct Average {
    /// Two or more checkpoints of the same model
    #[arg(required = true, num_args = 2..)]
    checkpoints: Vec<PathBuf>,
    /// Checkpoint to write; must not exist
    #[arg(short = 'o', long = "output", value_name = "OUT")]
    output_folder: PathBuf,
    /// Weights of the checkpoints, W,W,…; normalised to sum to 1
    #[arg(long, value_name = "WEIGHTS", value_delimiter = ',')]
    weights: Vec<f64>,
    #[command(flatten)]
    output: Output,
}

#[derive(Args)]
pub struct Reshard {
    /// Checkpoint, or a run directory, whose newest checkpoint is used
    checkpoint: PathBuf,
    /// Number of files of the optimizer state
    #[arg(long, value_name = "N")]
    shards: usize,
    /// Checkpoint to write; must not exist
    #[arg(short = 'o', long = "output", value_name = "OUT")]
    output_folder: PathBuf,
    #[command(flatten)]
    output: Output,
}

pub fn prune(args: Prune) -> Result<Exit> {
    let best = args.keep_best.unwrap_or(0);
    let (metric, direction) = match args.metric {
        Some(metric) => (metric, Direction::Minimize),
        None if best > 0 => checkpoint::monitor_of(&args.run)?,
        None => Default::default(),
    };
    let (last, every) = (args.keep_last.unwrap_or(1), args.keep_every.unwrap_or(0));
    let rules = KeepRules { last, best, every, metric, direction, anchor: 0 };
    let pruned = checkpoint::prune(&args.run, &rules, args.dry_run)?;
    Out::stdout(args.output).rows(&pruned)?;
    note!("{}", checkpoint::summary(&pruned, args.dry_run));
    Ok(Exit::Done)
}

pub fn adopt(args: Adopt) -> Result<Exit> {
    Out::stdout(args.output).rows(checkpoint::adopt(&args.run)?)
}

pub fn average(args: Average) -> Result<Exit> {
    checkpoint::average(&args.checkpoints, &args.weights, &args.output_folder)?;
    let (path, count) = (args.output_folder, args.checkpoints.len());
    let record = json!({"path": path, "checkpoints": count});
    written(args.output, record, &path, &format!("the mean of {count} checkpoints"))
}

pub fn reshard(args: Reshard) -> Result<Exit> {
    let from = checkpoint::one_in(&args.checkpoint)?;
    checkpoint::reshard(&from, args.shards, &args.output_folder)?;
    let path = args.output_folder;
    let record = json!({"path": path, "checkpoint": from, "shards": args.shards});
    written(args.output, record, &path, &format!("{} in {} files", from.display(), args.shards))
}

/// Reports a file or checkpoint that was written.
pub fn written(output: Output, record: Value, path: &Path, what: &str) -> Result<Exit> {
    let text = format!("{}: {what}", path.display());
    Out::stdout(output).item(&record, text).map(|()| Exit::Done)
}
