//! `latent-cache`: encodes a data set once, fields with a trained codec and texts with an encoder, and stores the latents
//! on disk.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use data::fields::latents::{LatentLayout, LatentStore, write_latents};
use data::fields::split::SplitName;
use data::fields::split_set::{TrajectorySet, Verify};
use data::inputs::Verifier;
use data::text::TokenSet;
use serde_json::json;
use tasks::ModelArgs;
use tasks::pde::TrainedCodec;
use tasks::pde::latents::record_codec;
use tasks::text::embed::{EmbedOptions, EmbedRequest, embed, is_of_texts};
use unix::cli::Output;
use unix::out::Out;
use unix::progress::Progress;
use unix::signal::Signals;
use unix::work::{self, Task, Work};
use unix::{Error, Exit, Result};

/// Encode a data set once: fields with a trained codec, texts with an encoder
///
/// Writes the latents of each split to memory-mapped shards, which are valid only for the codec, the normalisation
/// and the data that they were made from. The same command resumes: complete shards are kept, damaged and stale
/// ones are replaced. longhaul-files(5) lists the files.
///
/// The latents of texts are sentence embeddings: the states of the last layer, pooled to one vector for each text. The
/// encoder is a folder of transformers or sentence-transformers (BERT, RoBERTa, XLM-R or DistilBERT), or a run of task
/// classify, span or joint; it reads the texts with its own tokenizer. The output is a copy of the tokens with the
/// vectors, on which train-stage cycle-vae trains. Under mpirun, ranks share the texts; the vectors do not depend on
/// their number. A folder with the vectors of another encoder, of other settings or of other texts is refused.
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
    /// Split manifest of ds-prep split, or a folder of tokens of ds-prep tokenize. The texts of a manifest are tokenized
    /// with the tokenizer of the encoder, into DIR/tokens
    #[arg(long, value_name = "MANIFEST")]
    data: PathBuf,
    /// Splits to encode [default: train,validation; for texts all]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    split: Vec<SplitName>,
    /// Trajectories or texts per shard [default: 64 trajectories; 1024 texts, or a 128th of a large split]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    shard: Option<u32>,
    /// Output folder, with a subfolder for each split
    #[arg(short = 'o', long = "output", value_name = "DIR")]
    to: PathBuf,
    #[command(flatten)]
    texts: EmbedOptions,
    #[command(flatten)]
    output: Output,
}

/// Trajectories per shard.
const SHARD: usize = 64;

const MANUAL: &str = "\
EXIT STATUS
  0   All shards are complete.
  1   Three consecutive attempts were stopped or killed before they finished a shard. The next attempt
      counts from 0 again.
  65  The codec or encoder is damaged, a data file differs from what the split manifest recorded, or verify found a
      damaged shard. Data files are verified before each shard is written.
  66  The data, the codec or the encoder is missing.
  73  The folder cannot be written, or holds the vectors of another encoder, of other settings or of other texts.
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
  From a table of sentences to a network of texts and vectors: a classifier, here as the encoder; its embeddings of all
  sentences; the network. A folder of transformers is named in place of the run:
    $ ds-prep gen criteria --samples 300 --seed 1 -o posts
    $ ds-prep import posts/annotations.csv --columns posts/columns.yaml -o texts
    $ ds-prep split texts --seed 1 -o sentences.json
    $ ds-prep vocabulary sentences.json -o tokenizer
    $ ds-prep tokenize sentences.json --tokenizer tokenizer --max-length 48 -o tokens
    $ train-stage classify --example > classify.yaml
    $ train-stage classify -c classify.yaml -s training.updates=20 -s schedule=[] --run classifier
    $ latent-cache make classifier --data tokens --pooling mean --normalize --dimensions 16 -o embedded
    $ train-stage cycle-vae --example > cycle-vae.yaml
    $ train-stage cycle-vae -c cycle-vae.yaml -s data.tokens=embedded -s training.updates=20 -s schedule=[] --run network

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
    if is_of_texts(&args.data) {
        return make_embeddings(args);
    }
    if let Some(name) = args.texts.given() {
        return Err(Error::usage(format!(
            "{name}: for texts, but {} is neither a manifest of texts nor a folder of tokens",
            args.data.display()
        )));
    }
    let signals = Signals::install()?;
    let task = Task { folder: &args.to, task: "latents", advice: ADVICE };
    work::run(task, signals, |work| encode(args, signals, work))
}

/// Writes the embeddings of texts.
fn make_embeddings(args: &Make) -> Result<Exit> {
    let signals = Signals::install()?;
    let ranks = dist::open(|| Exit::Again)?;
    let run = |work: Option<&mut Work>| {
        let opener = args.model.opener_of(&*ranks)?;
        let request = EmbedRequest {
            model: args.model.run(),
            opener: &opener,
            data: &args.data,
            splits: (!args.split.is_empty()).then_some(&args.split[..]),
            shard: args.shard.map(|n| n as usize),
            to: &args.to,
            options: &args.texts,
            ranks: &*ranks,
            signals,
        };
        embed(&request, work)
    };
    let task = Task { folder: &args.to, task: "embeddings", advice: ADVICE };
    let rows = match ranks.rank() {
        0 => work::run(task, signals, |work| run(Some(work))),
        _ => run(None),
    };
    let rows = rows.map_err(|error| ranks.abort(error))?;
    let rank = ranks.rank();
    ranks.close()?;
    if rank > 0 {
        return Ok(Exit::Done);
    }
    let mut out = Out::stdout(args.output);
    rows.iter().try_for_each(|row| out.row(row))?;
    out.finish()
}

fn encode(args: &Make, signals: Signals, work: &mut Work) -> Result<Exit> {
    let opener = args.model.opener()?;
    let codec = &TrainedCodec::open(args.model.run(), &opener)?;
    let mut out = Out::stdout(args.output);
    let mut before = 0;
    let open = |name: &SplitName| TrajectorySet::open(&args.data, *name, Verify::Sizes);
    let usual = [SplitName::Train, SplitName::Validation];
    let splits = if args.split.is_empty() { &usual[..] } else { &args.split[..] };
    let shard_samples = args.shard.map_or(SHARD, |n| n as usize);
    let sets = splits.iter().map(open).collect::<Result<Vec<_>>>()?;
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
            shard_samples,
        };
        let folder = args.to.join(set.name().to_string());
        let mut progress = Progress::new("trajectories", set.len() as u64);
        let (shard_of, mut shard) = (|first: usize| first / shard_samples, None);
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

/// Compares the shards in a folder of fields or texts with their hashes. Errors: 65, 66.
fn verify_split(folder: &Path) -> Result<()> {
    match TokenSet::open_split(folder) {
        Some(set) => set?.verify(),
        None => LatentStore::open(folder, None)?.verify(),
    }
}

fn verify(folders: &[PathBuf], output: Output) -> Result<Exit> {
    let mut out = Out::stdout(output);
    let mut problems = Vec::new();
    for folder in folders {
        let checked = verify_split(folder);
        let state = if checked.is_ok() { "good" } else { "damaged" };
        out.row(&json!({ "folder": folder, "state": state }))?;
        problems.extend(checked.err());
    }
    out.finish()?;
    Error::all(&problems).map(|()| Exit::Done)
}
