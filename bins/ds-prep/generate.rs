//! `ds-prep gen`: solves an equation, or writes synthetic texts.

use super::in_pool;
use std::path::PathBuf;

use data::fields::generate::{Equation, Generation};
use data::fields::list::FileRecord;
use unix::cli::Output;
use unix::out::Out;
use unix::progress::Progress;
use unix::signal::Signals;
use unix::{Error, Exit, Result};

#[derive(clap::Args)]
pub struct Gen {
    /// Equation, see longhaul-files(5)
    equation: Equation,
    /// Values of the parameter of the equation, e.g. 0.001,0.01,0.1
    #[arg(long, required = true, value_delimiter = ',', value_name = "VALUE")]
    #[arg(allow_negative_numbers = true)]
    parameter: Vec<f64>,
    /// Value of another constant of the equation; may be given more than once
    #[arg(long, value_name = "NAME=VALUE", value_parser = constant)]
    constant: Vec<(String, f64)>,
    /// Trajectories per file
    #[arg(long, value_name = "NUMBER")]
    samples: usize,
    /// Seed of the initial states
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Cells along each axis; default: see longhaul-files(5)
    #[arg(long)]
    grid: Option<usize>,
    /// Frames, including the initial state
    #[arg(long)]
    frames: Option<usize>,
    /// Time of the last frame
    #[arg(long, value_name = "TIME")]
    end: Option<f64>,
    /// Index of the first trajectory, to generate further trajectories with the same seed
    #[arg(long, default_value_t = 0, value_name = "NUMBER")]
    first: u64,
    /// Number of threads, at most 1024; default: one per processor. Results do not depend on it
    #[arg(long, value_parser = unix::cli::threads)]
    threads: Option<usize>,
    /// Output folder; must not contain the files yet
    #[arg(short = 'o', long = "output", value_name = "FOLDER")]
    to: PathBuf,
    #[command(flatten)]
    output: Output,
}

fn constant(text: &str) -> Result<(String, f64), String> {
    let parts = text.split_once('=').and_then(|(name, value)| Some((name, value.parse().ok()?)));
    let (name, value) = parts.ok_or("expected NAME=NUMBER, e.g. Rho=2")?;
    Ok((name.into(), value))
}

pub fn run(args: &Gen) -> Result<Exit> {
    let mut files: Vec<(PathBuf, Generation)> = Vec::new();
    for &parameter in &args.parameter {
        let usual = Generation::new(args.equation, parameter, args.samples);
        let file = Generation {
            constants: args.constant.clone(),
            first: args.first,
            seed: args.seed,
            grid: args.grid.unwrap_or(usual.grid),
            frames: args.frames.unwrap_or(usual.frames),
            end: args.end.unwrap_or(usual.end),
            ..usual
        };
        file.validate()?;
        let path = args.to.join(file.file_name());
        if path.exists() {
            let cause = "it already exists; move it or choose another folder";
            return Err(Error::create(&path, cause));
        }
        if files.iter().any(|(other, _)| *other == path) {
            return Err(Error::usage(format!("--parameter lists {parameter} twice")));
        }
        files.push((path, file));
    }
    let signals = Signals::install()?;
    let total = args.samples.saturating_mul(files.len());
    let advance = Progress::shared("trajectories", total as u64);
    let mut out = Out::stdout(args.output);
    unix::publish::create_folder(&args.to)?;
    for (path, file) in &files {
        let done = || {
            signals.check_stop(|| format!("{} was not made", path.display()))?;
            advance(1);
            Ok(())
        };
        in_pool(args.threads, || file.write(path, done))?;
        out.row(&FileRecord::of(path)?)?;
    }
    out.finish()
}
