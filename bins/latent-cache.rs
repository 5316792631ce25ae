//! `latent-cache`: encodes a data set once with a trained codec, and stores the latents on disk.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use data::fields::latents::{LatentLayout, LatentStore, write_latents};
use data::fields::split::SplitName;
use data::fields::split_set::{TrajectorySet, Verify};
use data::inputs::Verifier;
use serde_json::json;
use tasks::ModelArgs;
use tasks::pde::TrainedCodec;
use tasks::pde::latents::record_codec;
use unix::cli::Output;
use unix::out::Out;
use unix::progress::Progress;
use unix::signal::Signals;
use unix::work::{self, Task, Work};
use unix::{Error, Exit, Result};

/// Encode a data set once with a trained codec
///
/// Writes the latents of each split to memory-mapped shards, which are valid only for the codec, the normalisation
/// and the data that they were made from. The same command resumes: complete shards are kept, damaged and stale
/// ones are replaced. longhaul-files(5) lists the files.
#[derive(Parser)]
#[command(name = "latent-cache", version = env!("LONGHAUL_VERSION"), after_long_help = MANUAL)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Make the shards that are missing, damaged or stale
    Make(Make),
    /// Compare every shard with its recorded hash
    Verify {
        /// Folders of latents, one for each split
        #[arg(required = true, value_name = "DIR")]
        folders: Vec<PathBuf>,
        #[command(flatten)]
        output: Output,
    },
}

#[derive(clap::Args)]
struct Make {
    #[command(flatten)]
    model: ModelArgs,
    /// Split manifest of ds-prep split
    #[arg(long, value_name = "MANIFEST")]
    data: PathBuf,
    /// Splits to encode
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "train,validation")]
    split: Vec<SplitName>,
    /// Trajectories per shard
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    shard: u32,
    /// Output folder, with a subfolder for each split
    #[arg(short = 'o', long = "output", value_name = "DIR")]
    to: PathBuf,
    #[command(flatten)]
    output: Output,
}

const MANUAL: &str = "\
EXIT STATUS
  0   All shards are complete.
  1   Three consecutive attempts were stopped or killed before they finished a shard. The next attempt
      counts from 0 again.
  65  The codec is damaged, a data file differs from what the split manifest recorded, or verify found a
      damaged shard. Data files are verified before each shard is written.
  66  The data or the codec is missing.
  73  The folder cannot be written.
  75  Stopped by a signal; run the same command again.

EXAMPLES
  A data set and a codec for it:
    $ ds-prep gen burgers --parameter 0.01 --samples 10 --grid 128 --frames 11 --seed 1 -o data
    $ ds-prep split data/*.hdf5 --seed 1 -o split.json
    $ ds-prep stats split.json
    $ train-stage codec --example > codec.yaml
    $ train-stage codec -c codec.yaml -s training.updates=100 --run codec
  Make the latents, then verify them:
    $ latent-cache make codec --data split.json -o latents
    $ latent-cache verify latents/train latents/validation

SEE ALSO
  longhaul-files(5), train-stage(1), ds-prep(1), timekeep(1), longhaul(7)
";

fn main() -> ExitCode {
    data::fields::field::run_helper_if_requested().unwrap_or_else(|| {
        unix::cli::main::<Args>(|args| match args.command {
            Command::Make(make_args) => make(&make_args),
            Command::Verify { folders, output } => verify(&folders, output),
        })
    })
}

/// Advice if every attempt was interrupted before it finished a shard.
const ADVICE: &str = "no shard was finished: give its job a longer time limit (sbatch --time), or choose \
                      smaller shards (--shard), then run it again";

fn make(args: &Make) -> Result<Exit> {
    let signals = Signals::install()?;
    let task = Task { folder: &args.to, task: "latents", advice: ADVICE };
    work::run(task, signals, |work| encode(args, signals, work))
}

fn encode(args: &Make, signals: Signals, work: &mut Work) -> Result<Exit> {
    let opener = args.model.opener()?;
    let codec = &TrainedCodec::open(args.model.run(), &opener)?;
    let mut out = Out::stdout(args.output);
    let mut before = 0;
    let open = |name: &SplitName| TrajectorySet::open(&args.data, *name, Verify::Sizes);
    let sets = args.split.iter().map(open).collect::<Result<Vec<_>>>()?;
    let inputs = sets.iter().flat_map(TrajectorySet::input_files).collect();
    let mut verifier = Verifier::start(inputs, None)?;
    let check_stop = || signals.check_stop(|| "run the same command again to resume".into());
    for set in &sets {
        codec.require_fields_of(set.shape(), set.inputs())?;
        let layout = LatentLayout {
            frames: set.shape().frames,
            tokens: codec.tokens(),
            rows: codec.token_grid()[0],
            dim: codec.dim(),
            shard_samples: args.shard as usize,
        };
        let folder = args.to.join(set.name().to_string());
        let mut progress = Progress::new("trajectories", set.len() as u64);
        let (shard_of, mut shard) = (|first: usize| first / args.shard as usize, None);
        let made = write_latents(&folder, &codec.key(set), layout, set, 1, |batch| {
            check_stop()?;
            progress.set(batch.first as u64 + 1);
            let next = Some(shard_of(batch.first));
            if shard.is_some() && shard != next {
                work.stored();
            }
            shard = next;
            work.progress(before + batch.first as u64 + 1, None)?;
            let done = batch.first + 1;
            if done.is_multiple_of(layout.shard_samples) || done == set.len() {
                // The shard is published next, so its inputs must match the manifest by now.
                verifier.finish(check_stop)?;
            }
            Ok(codec.encode(batch.values)?.read::<f32>().to_vec())
        })?;
        record_codec(&folder, args.model.run())?;
        before += set.len() as u64;
        if made.made > 0 {
            work.stored();
        }
        work.progress(before, None)?;
        out.row(&json!({
            "folder": folder,
            "trajectories": set.len(),
            "frames": layout.frames,
            "tokens": layout.tokens,
            "features": layout.dim,
            "shards_kept": made.kept,
            "shards_made": made.made,
        }))?;
    }
    verifier.finish(check_stop)?;
    out.finish()
}

fn verify(folders: &[PathBuf], output: Output) -> Result<Exit> {
    let mut out = Out::stdout(output);
    let mut problems = Vec::new();
    for folder in folders {
        let checked = LatentStore::open(folder, None).and_then(|store| store.verify());
        let state = if checked.is_ok() { "good" } else { "damaged" };
        out.row(&json!({ "folder": folder, "state": state }))?;
        problems.extend(checked.err());
    }
    out.finish()?;
    Error::all(&problems).map(|()| Exit::Done)
}
