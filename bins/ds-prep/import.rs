//! `ds-prep import`: converts files of any supported layout into contiguous files.

use super::{finish, in_pool};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use data::fields::field::{Axes, Layout, Reading};
use data::fields::import::{Crop, Format, Made, Plan, import, targets};
use data::fields::index::Index;
use data::fields::list::FileRecord;
use data::fields::parameter::Parameter;
use rayon::prelude::*;
use tensor::Dtype;
use unix::cli::Output;
use unix::out::Out;
use unix::progress::Progress;
use unix::signal::Signals;
use unix::{Exit, Result, inputs, note};

#[derive(clap::Args)]
pub struct Import {
    /// HDF5, .npy, .npz, .csv, .zarr or .safetensors files; `-` reads their names from stdin
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Output folder
    #[arg(short = 'o', long = "output", value_name = "FOLDER")]
    to: PathBuf,
    /// Layout of the files, if it is ambiguous: tensor, groups, variables, steady or incompressible
    #[arg(long)]
    layout: Option<Layout>,
    /// Dimensions of the arrays, one letter each: n (trajectory), t, x, y, z, c (channel), e.g. ntxyc
    #[arg(long)]
    axes: Option<Axes>,
    /// Dataset that contains the field, instead of `tensor`
    #[arg(long, value_name = "NAME")]
    dataset: Option<String>,
    /// Read missing Zarr chunks as the fill value instead of refusing the file
    #[arg(long)]
    fill_missing: bool,
    /// Parameters that the files do not state, with any names, e.g. nu=0.01 or nu=0.5,viscosity=2
    #[arg(long, value_name = "NAME=VALUE")]
    parameter: Option<Parameter>,
    /// Let --parameter replace values that the files state differently, which is otherwise an error
    #[arg(long = "override", requires = "parameter")]
    override_parameter: bool,
    /// Names of the channels, inputs first
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    channels: Vec<String>,
    /// Import only the first NUMBER files
    #[arg(long, value_name = "NUMBER")]
    limit: Option<usize>,
    /// Import only the first NUMBER trajectories of each file
    #[arg(long, value_name = "NUMBER")]
    samples: Option<usize>,
    /// Keep every NUMBER-th frame
    #[arg(long, value_name = "NUMBER")]
    stride: Option<usize>,
    /// Ranges of indices to keep along axes, excluding END, e.g. x=0:512,t=10:110
    #[arg(long, value_delimiter = ',', value_name = "AXIS=FIRST:END")]
    crop: Vec<Crop>,
    /// Grid to resample to, e.g. 256 or 64x64: block means if the new size divides the old, otherwise linear
    /// interpolation, which wraps around along periodic axes
    #[arg(long, value_parser = grid)]
    grid: Option<Grid>,
    /// Periodic space axes, e.g. x,y, or none; default: those in the attribute `periodic` of the file, or implied by
    /// its PDEBench name
    #[arg(long, value_name = "AXES", value_parser = periodic)]
    periodic: Option<String>,
    /// Layout to write; default: tensor, unless the files are steady or incompressible
    #[arg(long, value_name = "LAYOUT")]
    to_layout: Option<Layout>,
    /// Output format: hdf5 or safetensors
    #[arg(long, default_value_t)]
    format: Format,
    /// Type of the stored numbers: f32, f16 (up to 65504) or bf16 (safetensors only)
    #[arg(long, value_parser = dtype, default_value = "f32")]
    dtype: Dtype,
    /// Largest number of trajectories per output file; larger files are divided into shards. Default for safetensors:
    /// as many as fit into 1 GiB
    #[arg(long, value_name = "NUMBER")]
    shard: Option<usize>,
    /// Number of threads, at most 1024; default: one per processor
    #[arg(long, value_parser = unix::cli::threads)]
    threads: Option<usize>,
    #[command(flatten)]
    output: Output,
}

#[derive(Clone)]
struct Grid(Vec<usize>);

/// Parses `256` or `64x64`.
fn grid(text: &str) -> Result<Grid, String> {
    let sizes: Result<Vec<usize>, _> = text.split('x').map(str::parse).collect();
    sizes.map(Grid).map_err(|_| format!("`{text}` is not a grid such as 256 or 64x64"))
}

/// Parses letters of axes; `none` is the empty list.
fn periodic(text: &str) -> Result<String, String> {
    let known = text.split(',').all(|axis| matches!(axis, "x" | "y" | "z"));
    match text {
        "none" => Ok(String::new()),
        _ if known => Ok(text.into()),
        _ => Err(format!("`{text}` is neither a list of axes like x,y nor none")),
    }
}

/// Parses the dtype of stored fields.
fn dtype(text: &str) -> Result<Dtype, String> {
    match text {
        "f32" => Ok(Dtype::F32),
        "f16" => Ok(Dtype::F16),
        "bf16" => Ok(Dtype::Bf16),
        "f64" => Err("fields are read as f32; f64 would not be more precise".into()),
        _ => Err(format!("unknown type `{text}`; choose f32, f16 or bf16")),
    }
}

pub fn run(args: Import) -> Result<Exit> {
    let mut files = inputs::files(&args.files)?;
    files.truncate(args.limit.unwrap_or(files.len()));
    let Import {
        layout,
        axes,
        dataset,
        fill_missing,
        parameter,
        override_parameter,
        channels,
        samples,
        stride,
        crop,
        periodic,
        ..
    } = args;
    let plan = Plan {
        reading: Reading { layout, axes, dataset, fill_missing },
        parameter,
        override_parameter,
        channels,
        samples,
        stride,
        crop,
        periodic,
        grid: args.grid.map(|Grid(sizes)| sizes),
        layout: args.to_layout,
        dtype: Some(args.dtype),
    };
    let targets = targets(&plan, &files, &args.to, args.format, args.shard)?;
    let signals = Signals::install()?;
    let total: usize = targets.iter().map(|target| target.samples.len()).sum();
    let progress = Mutex::new(Progress::new("trajectories", total as u64));
    let advance = |steps: usize| {
        progress.lock().unwrap_or_else(PoisonError::into_inner).advance(steps as u64);
    };
    unix::publish::create_folder(&args.to)?;
    // Files are finished in any order, but listed in the order of the command line.
    let mut records: Vec<Option<FileRecord>> = targets.iter().map(|_| None).collect();
    let one = |(target, record): (&data::fields::import::Target, &mut Option<FileRecord>)| {
        let done = |more: usize| {
            signals.check_stop(|| {
                let name = target.path.display();
                format!("{name} is incomplete; the same command resumes it")
            })?;
            advance(more);
            Ok(())
        };
        if import(&plan, target, done)? == Made::Kept {
            note!("{}: already exists", target.path.display());
            advance(target.samples.len());
        }
        *record = Some(FileRecord::of(&target.path)?);
        Ok(())
    };
    let done = in_pool(args.threads, || {
        targets.par_iter().zip(&mut records).try_for_each(one)?;
        let shards: Vec<PathBuf> = targets.iter().map(|target| target.path.clone()).collect();
        match args.format {
            Format::Safetensors => Index::extended(&args.to, &shards)?.save(&args.to),
            Format::Hdf5 => Ok(()),
        }
    });
    let mut out = Out::stdout(args.output);
    records.iter().flatten().try_for_each(|record| out.row(record))?;
    finish(out).and(done.map(|()| Exit::Done))
}
