//! Throughput of the loader with shuffled samples, compared with a plain loop of positional reads and with h5py reading
//! the same samples, in alternating rounds; all from the page cache.
//!
//! A sample is a window of frames at a random position in a trajectory, as the training stages read them. The loader
//! produces batches as tensors, on its worker threads. The plain loop reads batches into one reused buffer (`pread`),
//! and single samples into a buffer that stays in the CPU cache (`pread_one`); their order is computed in advance. h5py
//! (`--python` names an interpreter that has it) returns each sample as a new array: from the same file, and from
//! partial copies of it, one with h5py's default chunks and one compressed.
//!
//! Prints one line of JSON per format and sample length: GB/s, medians over the rounds. `--minutes N` instead reads
//! epochs for that long and prints the memory of the process every minute.

mod clock;
mod memory;
mod peer;
mod set;
mod ways;

use clap::Parser;
use clock::Clock;
use data::fields::import::Format;
use data::loader::Ahead;
use peer::{Copied, Peer};
use serde_json::json;
use set::Set;
use std::path::PathBuf;
use unix::{Error, Result};
use ways::Samples;

#[derive(Parser)]
struct Args {
    /// Where the files are made, unless they are there; they are left there
    folder: PathBuf,
    /// Size of the data set
    #[arg(long, default_value_t = 2.0)]
    gib: f64,
    /// Frames of a trajectory, 1-D Burgers' unless given
    #[arg(long, default_value_t = 201)]
    frames: usize,
    /// Points of a frame along each axis, then its channels
    #[arg(long, value_delimiter = ',', default_value = "1024,1")]
    frame: Vec<usize>,
    /// Lengths of samples in frames
    #[arg(long, value_delimiter = ',', default_value = "1,2,10,41,201")]
    windows: Vec<usize>,
    #[arg(long, value_delimiter = ',', default_value = "hdf5,safetensors")]
    formats: Vec<Format>,
    /// Samples of a batch
    #[arg(long, default_value_t = 64)]
    batch: u64,
    /// Batches that the loader makes ahead
    #[arg(long, default_value_t = 2)]
    prefetch: usize,
    /// Threads that make them
    #[arg(long, default_value_t = 1)]
    workers: usize,
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// wall, or cpu: the work of the thread that reads, for a machine that others use meanwhile
    #[arg(long, default_value_t = Clock::Wall)]
    clock: Clock,
    /// A Python that has h5py and NumPy
    #[arg(long)]
    python: Option<PathBuf>,
    /// Read epochs for this long and tell what memory is held
    #[arg(long)]
    minutes: Option<u64>,
}

impl Args {
    fn ahead(&self) -> Ahead {
        Ahead { batches: self.prefetch, workers: self.workers }
    }
}

fn main() -> Result<()> {
    let args = Args::parse();
    let mut peer = args.python.as_deref().map(Peer::start).transpose()?;
    for &format in &args.formats {
        let set = Set::open(&args.folder, format, args.gib, args.frames, &args.frame)?;
        if let Some(minutes) = args.minutes {
            memory::watch(&set, args.windows[0], args.batch, args.ahead(), minutes)?;
            continue;
        }
        for &window in &args.windows {
            compare(&args, &set, window, peer.as_mut())?;
        }
    }
    Ok(())
}

/// Prints a line for samples of one length.
fn compare(args: &Args, set: &Set, window: usize, mut peer: Option<&mut Peer>) -> Result<()> {
    let samples = Samples::new(set, window, args.batch, args.clock)?;
    let mut rates: Vec<(&str, Vec<f64>)> =
        ["loader", "pread", "pread_one", "h5py", "h5py_chunked", "h5py_gzip"]
            .map(|way| (way, vec![]))
            .into();
    for round in 0..args.rounds {
        samples.warm()?;
        rates[0].1.push(samples.by_loader(args.ahead())?);
        samples.warm()?;
        rates[1].1.push(samples.by_pread(args.batch)?);
        samples.warm()?;
        rates[2].1.push(samples.by_pread(1)?);
        let Some(peer) = peer.as_deref_mut() else { continue };
        samples.warm()?;
        rates[3].1.push(peer.rate(&samples, None)?);
        // It is slow, so a single round is enough.
        if round == 0 {
            rates[4].1.push(peer.rate(&samples, Some(Copied::Chunked))?);
            rates[5].1.push(peer.rate(&samples, Some(Copied::Gzip))?);
        }
    }
    let mut line = json!({
        "format": set.format.to_string(),
        "frames": window,
        "kb": samples.bytes() as f64 / 1e3,
    });
    let medians: Vec<(&str, Option<f64>)> =
        rates.into_iter().map(|(way, rates)| (way, median(rates))).collect();
    let ours = medians[0].1.ok_or_else(|| Error::usage("--rounds 0"))?;
    for (way, rate) in medians {
        let Some(rate) = rate else { continue };
        line[format!("{way}_gb_s")] = json!((rate * 1e3).round() / 1e3);
        if way != "loader" {
            line[format!("times_{way}")] = json!((ours / rate * 100.0).round() / 100.0);
        }
    }
    println!("{line}");
    Ok(())
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}
