//! `ds-prep import`: converts files of any supported layout to contiguous files, or makes records from them.

use super::{in_pool, records, texts};
use std::path::PathBuf;

use data::fields::import::{Format, ImportOptions, ImportOutcome, import, targets};
use data::fields::list::FileSummary;
use data::text::Unpaired;
use rayon::prelude::*;
use unix::cli::{Given, Output};
use unix::out::Out;
use unix::progress::Progress;
use unix::signal::Signals;
use unix::{Error, Exit, Result, inputs, note};

#[derive(clap::Args)]
pub struct Import {
    /// HDF5, .npy, .npz, .csv, .zarr or .safetensors files, .jsonl files of texts, or a folder of images with .md files of the
    /// same names; `-` reads their names from stdin
    #[arg(required_unless_present = "vectors")]
    files: Vec<PathBuf>,
    /// Output folder
    #[arg(short = 'o', long = "output", value_name = "FOLDER")]
    to: PathBuf,
    /// Import only the first NUMBER files
    #[arg(long, value_name = "NUMBER")]
    limit: Option<usize>,
    #[command(flatten)]
    texts: texts::TextOptions,
    #[command(flatten)]
    plan: ImportOptions,
    #[command(flatten)]
    records: data::records::RecordPlan,
    /// Output format
    #[arg(long, default_value_t)]
    format: Format,
    /// Largest number of trajectories per output file; larger files are divided. Default for safetensors: as many
    /// as fit into 1 GiB
    #[arg(long, value_name = "NUMBER")]
    shard: Option<usize>,
    /// Number of threads, at most 1024; default: one per processor
    #[arg(long, value_parser = unix::cli::threads)]
    threads: Option<usize>,
    #[command(flatten)]
    output: Output,
}

/// Options valid for all records, for records made from trajectories, and for records made from arrays.
const RECORD_OPTIONS: [&str; 8] =
    ["output", "limit", "axes", "dataset", "fill-missing", "noise", "noise-seed", "json"];
const FRAME_OPTIONS: [&str; 3] = ["shift", "history", "layout"];
const ARRAY_OPTIONS: [&str; 3] = ["target", "target-axes", "group"];

pub fn run(given: Given<Import>) -> Result<Exit> {
    let of_texts = &given.args.texts;
    let makes_records = given.args.records.makes_records();
    if of_texts.tokenizer.is_some() && !makes_records {
        let why = "no effect on tokens, which are copied as they are";
        given.require_only(&["tokenizer", "unpaired", "output", "json"], why)?;
        let files = inputs::files(&given.args.files)?;
        return texts::make_tokens(
            of_texts,
            &files,
            &given.args.to,
            Out::stdout(given.args.output),
        );
    }
    let is_image_folder =
        given.args.files.len() == 1 && texts::is_image_folder(&given.args.files[0]);
    if of_texts.columns.is_some() || is_image_folder || of_texts.has_vectors() && !makes_records {
        let why = match of_texts.columns {
            Some(_) => "no effect on texts, which --columns imports",
            None if is_image_folder => "no effect on a folder of images",
            None => "no effect on vectors alone; --columns imports texts with them",
        };
        given.require_only(of_texts.names(), why)?;
        let mut files = match given.args.files.is_empty() {
            true => Vec::new(),
            false => inputs::files(&given.args.files)?,
        };
        files.truncate(given.args.limit.unwrap_or(files.len()));
        return texts::make(of_texts, &files, &given.args.to, Out::stdout(given.args.output));
    }
    if makes_records {
        let own =
            if given.args.records.shift.is_some() { &FRAME_OPTIONS[..] } else { &ARRAY_OPTIONS };
        let why = "no effect on records, which are copied as they are; import the files without --target and \
                   --shift first, then make records of the result";
        given.require_only(&[&RECORD_OPTIONS[..], own].concat(), why)?;
    }
    if of_texts.vectors.unpaired != Unpaired::Refuse {
        return Err(Error::usage("--unpaired: for texts with vectors and for tokens only"));
    }
    let args = given.args;
    let mut files = inputs::files(&args.files)?;
    files.truncate(args.limit.unwrap_or(files.len()));
    if makes_records {
        let plan = data::records::RecordPlan { reading: args.plan.reading, ..args.records };
        return records::make(&plan, &files, &args.to, Out::stdout(args.output));
    }
    let targets = targets(&args.plan, &files, &args.to, args.format, args.shard)?;
    let signals = Signals::install()?;
    let total: usize = targets.iter().map(|target| target.samples.len()).sum();
    let advance = Progress::shared("trajectories", total as u64);
    unix::publish::create_folder(&args.to)?;
    // Files finish in any order, but are listed in the order of the command line.
    let mut records: Vec<Option<FileSummary>> = targets.iter().map(|_| None).collect();
    let one = |(target, record): (&data::fields::import::Target, &mut Option<FileSummary>)| {
        let done = |more: usize| {
            signals.check_stop(|| {
                let name = target.path.display();
                format!("{name} is incomplete; the same command resumes it")
            })?;
            advance(more as u64);
            Ok(())
        };
        if import(&args.plan, target, done)? == ImportOutcome::Kept {
            note!("{}: already exists", target.path.display());
            advance(target.samples.len() as u64);
        }
        *record = Some(FileSummary::of(&target.path)?);
        Ok(())
    };
    let done = in_pool(args.threads, || targets.par_iter().zip(&mut records).try_for_each(one));
    Out::stdout(args.output).rows(records.iter().flatten()).and_then(|exit| done.map(|()| exit))
}
