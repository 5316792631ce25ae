//! The options of programs that use a trained model.

use learn::trained::Weights;
use std::path::PathBuf;
use tasks::{Opener, TrainedModel};
use tensor::Wanted;
use unix::Result;

/// Which model, and where it computes.
#[derive(clap::Args)]
pub struct ModelArgs {
    /// Run directory, of which the best checkpoint is used, or a checkpoint
    run: PathBuf,
    /// Path of a model that RUN needs, in place of the path recorded in its checkpoint: --with codec=runs/codec
    #[arg(long, value_name = "NAME=RUN", value_parser = named)]
    with: Vec<(String, PathBuf)>,
    /// Weights of the checkpoint: ema, their moving average if there is one, or raw
    #[arg(long, value_name = "WHICH", default_value_t)]
    weights: Weights,
    /// Where to compute: auto (a GPU where there is one, else the CPU), cpu, cuda, cuda:N, emu
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    device: Wanted,
    /// Number of threads, at most 1024; one for each processor by default
    #[arg(long, value_parser = unix::cli::threads, value_name = "N")]
    threads: Option<usize>,
}

impl ModelArgs {
    /// Starts the threads and opens the model.
    pub fn open(&self) -> Result<Box<dyn TrainedModel>> {
        tensor::parallel::start_threads(self.threads)?;
        let (weights, device) = (self.weights, self.device.open()?.0);
        Opener { weights, device, with: self.with.clone() }.open(&self.run)
    }

    /// The run directory or checkpoint.
    #[allow(dead_code)] // not every program needs it
    pub fn run(&self) -> &PathBuf {
        &self.run
    }
}

fn named(text: &str) -> Result<(String, PathBuf), String> {
    let (name, path) = text.split_once('=').ok_or("expected NAME=RUN, e.g. codec=runs/codec")?;
    Ok((name.into(), path.into()))
}
