//! Data sets: generate or import, split, compute statistics, check, audit, list and plot them.

mod generate;
mod import;
mod look;
mod manual;
mod records;
mod texts;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use data::fields::check::{Report, check_files, check_split};
use data::fields::field::Field;
use data::fields::list::{FileRecord, describe, frames};
use data::fields::split::{By, GroupBy, Split, SplitName};
use data::fields::split_set::{TrajectorySet, Verify};
use data::fields::stats::Stats;
use data::records::stats::of_record;
use data::records::{RecordSplit, Records};
use data::split::{Request, Share, Source, divide};
use data::text::{TextSplit, TextStore, TokenSet};
use manual::MANUAL;
use serde_json::{Value, json};
use unix::cli::{Given, Output};
use unix::out::Out;
use unix::{Error, Exit, Result, inputs, note};

/// Generate, import, split and check data sets
///
/// ds-prep prepares data sets for training from PDE solvers, PDEBench's HDF5 files or other arrays: files of
/// trajectories, a split manifest that assigns trajectories to training, validation and test, and the statistics of
/// the training split. Run `ds-prep check` before training. longhaul-files(5) describes the layouts of these files, the
/// equations, what audit finds, and the limits of what is read.
#[derive(Parser)]
#[command(name = "ds-prep", version = env!("LONGHAUL_VERSION"), after_long_help = MANUAL)]
struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Solve an equation for random initial states, one file per parameter value; or write synthetic texts
    Gen(Given<generate::Gen>),
    /// Convert files of any layout to contiguous files, optionally cropped or resampled; or make records of arrays
    Import(Box<Given<import::Import>>),
    /// Split trajectories or records into training, validation and test
    Split(Given<Divide>),
    /// Encode the texts of a manifest with the tokenizer of a model
    Tokenize(texts::Tokenize),
    /// Write a tokenizer of the words of the training split of a manifest
    Vocabulary(texts::Vocabulary),
    /// Compute the statistics of the training split of a manifest
    Stats {
        /// Split manifest
        manifest: PathBuf,
        /// Output file, `-` for stdout; default: stats.json in the manifest's folder
        #[arg(short = 'o', long = "output", value_name = "FILE")]
        to: Option<PathBuf>,
        #[command(flatten)]
        output: Output,
    },
    /// Report every problem in files or stores of records, or in manifests (*.json) and what they list
    Check {
        /// HDF5 files, stores of records or manifests; `-` reads their names from stdin
        #[arg(required = true)]
        files: Vec<PathBuf>,
        /// Largest |u| that is not reported as a problem; default: 1e10 for files of trajectories, none for records,
        /// whose units are unknown
        #[arg(long)]
        limit: Option<f32>,
        #[command(flatten)]
        output: Output,
    },
    /// Find leaks between splits by content: exact copies and near-duplicates
    Audit(Given<look::Audit>),
    /// Plot a trajectory
    Plot(look::Plot),
    /// List files or stores of records, or the splits of manifests (*.json)
    Ls {
        /// HDF5 files, stores of records or manifests; `-` reads their names from stdin
        #[arg(required = true)]
        files: Vec<PathBuf>,
        #[command(flatten)]
        output: Output,
    },
    /// Show the metadata of a file or store, or one of its trajectories frame by frame, or one record by channel
    Show {
        /// File, or store of records
        file: PathBuf,
        /// Index of the trajectory or record, from 0
        #[arg(long, value_name = "NUMBER")]
        sample: Option<usize>,
        #[command(flatten)]
        output: Output,
    },
}

#[derive(clap::Args)]
struct Divide {
    /// HDF5 files, or stores of records; `-` reads their names from stdin
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Share of the training split: a percentage, or a number of trajectories per parameter value
    #[arg(long, default_value = "80%", value_name = "SHARE")]
    train: Share,
    /// Share of the validation split
    #[arg(long, default_value = "10%", value_name = "SHARE")]
    validation: Share,
    /// Share of the test split
    #[arg(long, default_value = "10%", value_name = "SHARE")]
    test: Share,
    /// Stores of records for validation, all of them; the share of validation in the others is then for training
    #[arg(long, value_delimiter = ',', value_name = "STORE", conflicts_with = "validation")]
    validation_from: Vec<PathBuf>,
    /// Stores of records for the test, all of them
    #[arg(long, value_delimiter = ',', value_name = "STORE", conflicts_with = "test")]
    test_from: Vec<PathBuf>,
    /// Unit to split by
    #[arg(long, default_value = "trajectory", value_name = "UNIT")]
    by: By,
    /// Trajectories that always share a split
    #[arg(long, default_value_t, value_name = "KEY")]
    group_by: GroupBy,
    /// Of texts: groups with texts that have a smaller distance, as in audit, share a split as well
    #[arg(long, value_name = "DISTANCE", value_parser = look::distance)]
    near: Option<f64>,
    /// Seed of the random split
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Manifest to write; `-` for stdout, with paths relative to the working directory
    #[arg(short = 'o', long = "output", default_value = "split.json", value_name = "FILE")]
    to: PathBuf,
    #[command(flatten)]
    output: Output,
}

fn main() -> ExitCode {
    data::fields::field::run_helper_if_requested().unwrap_or_else(|| unix::cli::main::<Args>(run))
}

fn run(args: Args) -> Result<Exit> {
    match args.verb {
        Verb::Gen(gen_args) => generate::run(&gen_args),
        Verb::Import(import_args) => import::run(*import_args),
        Verb::Split(divide_args) => split(&divide_args),
        Verb::Vocabulary(vocabulary_args) => texts::vocabulary(&vocabulary_args),
        Verb::Tokenize(tokenize_args) => texts::encode(&tokenize_args),
        Verb::Audit(audit_args) => look::audit(&audit_args),
        Verb::Plot(plot_args) => look::plot(&plot_args),
        Verb::Stats { manifest, to, output } => stats(&manifest, to, Out::stdout(output)),
        Verb::Check { files, limit, output } => check(&files, limit, Out::stdout(output)),
        Verb::Ls { files, output } => list(&files, Out::stdout(output)),
        Verb::Show { file, sample, output } => show(&file, sample, Out::stdout(output)),
    }
}

fn split(given: &Given<Divide>) -> Result<Exit> {
    let args = &given.args;
    let files = inputs::files(&args.files)?;
    let shares = [args.train, args.validation, args.test];
    if files.iter().any(|path| records::are_at(path)) {
        given.require_only(
            &[
                "train",
                "validation",
                "test",
                "validation-from",
                "test-from",
                "by",
                "near",
                "seed",
                "output",
                "json",
            ],
            "no effect on records, whose groups are those of ds-prep import --group",
        )?;
        let division = records::Division {
            by: args.by,
            shares,
            validation_from: &args.validation_from,
            test_from: &args.test_from,
            seed: args.seed,
            near: args.near,
        };
        return records::split(&division, &files, &args.to, Out::stdout(args.output));
    }
    if let Some(store) = args.validation_from.iter().chain(&args.test_from).next() {
        let what = "is for stores of records only, but the files to split are none";
        return Err(Error::usage(format!("{}: {what}", store.display())));
    }
    let Divide { by, seed, near, .. } = *args;
    let request = Request { by, group_by: Some(args.group_by), shares, fixed: &[], seed, near };
    let split: Split = divide(&request, &files, &args.to)?;
    records::save(&split, &args.to, Out::stdout(args.output), || {
        records::tell_missed(&split, &args.to);
        Ok(())
    })
}

fn stats(manifest: &Path, to: Option<PathBuf>, mut out: Out) -> Result<Exit> {
    let to = to.unwrap_or_else(|| manifest.with_file_name("stats.json"));
    if records::are_at(manifest) {
        return records::stats(manifest, &to, out);
    }
    let set = TrajectorySet::open(manifest, SplitName::Train, Verify::Hashes)?;
    let stats = Stats::of(&set)?;
    if to.as_os_str() == "-" {
        return out.raw(stats.text()?.as_bytes()).map(|()| Exit::Done);
    }
    stats.save(&to)?;
    out.rows(stats.records())
}

fn check(files: &[PathBuf], limit: Option<f32>, mut out: Out) -> Result<Exit> {
    let mut all = Report::default();
    let field_limit = limit.unwrap_or(1e10);
    for path in inputs::files(files)? {
        let report = if records::are_at(&path) {
            records::check(&path, limit.unwrap_or(f32::INFINITY))?
        } else if is_manifest(&path) {
            if let Ok((split, _)) = Split::load(&path) {
                records::tell_missed(&split, &path);
            }
            check_split(&path, field_limit)?
        } else {
            check_files(&[path], field_limit)
        };
        report.problems.iter().try_for_each(|one| out.item(one, &one.message))?;
        all.append(report);
    }
    let Report { files, trajectories, records, problems } = all;
    let found = problems.len();
    match records {
        0 => note!("{files} files, {trajectories} trajectories, {found} problems"),
        count => note!("{count} records, {found} problems"),
    }
    Ok(if problems.is_empty() { Exit::Done } else { Exit::Data })
}

/// Lists files; those that cannot be read are reported and do not prevent the others from being listed.
fn list(files: &[PathBuf], mut out: Out) -> Result<Exit> {
    // A closed or full stdout ends the program.
    let fatal = [Exit::Done, Exit::Io];
    let exit = inputs::each(files, &fatal, |path| {
        let rows = if TextSplit::is_manifest(path) {
            TextSplit::load(path)?.0.rows(path)
        } else if RecordSplit::is_manifest(path) {
            RecordSplit::load(path)?.0.rows(path)
        } else if TokenSet::is_at(path) {
            return texts::rows(path)?.iter().try_for_each(|split| out.row(split));
        } else if TextStore::is_store(path) {
            vec![texts::row(&TextStore::open(path)?)]
        } else if Records::is_store(path) {
            vec![records::row(&Records::open(path)?)]
        } else if is_manifest(path) {
            Split::load(path)?.0.rows(path)
        } else {
            return out.row(&FileRecord::of(path)?);
        };
        rows.iter().try_for_each(|row| out.row(row))
    })?;
    out.finish()?;
    Ok(exit)
}

fn show(file: &Path, sample: Option<usize>, out: Out) -> Result<Exit> {
    let is_text = TextStore::is_store(file);
    let is_store = is_text || Records::is_store(file);
    let record = match sample {
        Some(sample) if is_text => texts::of_record(&TextStore::open(file)?, sample)?,
        Some(sample) if is_store => return out.rows(of_record(&Records::open(file)?, sample)?),
        Some(sample) => return out.rows(frames(&Field::open(file)?, sample)?),
        None if is_text => texts::describe(file)?,
        None if is_store => records::describe(file)?,
        None => describe(file)?,
    };
    if out.is_json() { out.rows([record]) } else { out.rows(entries("", &record)) }
}

/// The values of a record, one per row of a table, e.g. `attributes.Nu` and its value.
fn entries(name: &str, value: &Value) -> Vec<Value> {
    let inside = |key: &str| if name.is_empty() { key.into() } else { format!("{name}.{key}") };
    match value {
        Value::Object(fields) => {
            fields.iter().flat_map(|(key, value)| entries(&inside(key), value)).collect()
        }
        Value::Array(items) if items.iter().any(Value::is_object) => {
            let item = |(i, item): (usize, &Value)| entries(&inside(&i.to_string()), item);
            items.iter().enumerate().flat_map(item).collect()
        }
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(Value::to_string).collect();
            vec![json!({"field": name, "value": items.join(", ")})]
        }
        value => vec![json!({"field": name, "value": value})],
    }
}

/// Runs `work` on this many threads; without a number, on one per processor.
fn in_pool(threads: Option<usize>, work: impl FnOnce() -> Result<()> + Send) -> Result<()> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads.unwrap_or(0)).build();
    let cannot = |cause| Error::new(Exit::Failure, format!("cannot start threads: {cause}"));
    pool.map_err(cannot)?.install(work)
}

fn is_manifest(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "json")
}
