//! The options of programs that use a trained model.

use crate::trained::Opener;
use dist::{Collective, Solo};
use learn::train::amp_note;
use learn::trained::{ComputeMode, Weights};
use std::path::PathBuf;
use tensor::product::bf16;
use tensor::{Device, DeviceChoice};
use unix::{Result, note};

/// A trained model and the device on which it runs.
#[derive(clap::Args)]
pub struct ModelArgs {
    /// Checkpoint, or a run directory, whose best checkpoint is used
    run: PathBuf,
    /// Path of a model that RUN depends on, instead of the path in its checkpoint: --with codec=runs/codec
    #[arg(long, value_name = "NAME=RUN", value_parser = named)]
    with: Vec<(String, PathBuf)>,
    /// Weights of the checkpoint: ema (the moving average, if there is one) or raw
    #[arg(long, value_name = "WHICH", default_value_t)]
    weights: Weights,
    /// Device: auto (a GPU if there is one, else the CPU), cpu, cuda, cuda:N or emu
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    device: DeviceChoice,
    /// Round the operands of the model's matrix products to bf16, as training.amp does; sums are in f32. On a GPU, the
    /// model computes in bf16. Results record it, see longhaul-files(5)
    #[arg(long)]
    amp: bool,
    /// Number of threads, at most 1024; default: one per processor
    #[arg(long, value_parser = unix::cli::threads, value_name = "N")]
    threads: Option<usize>,
}

impl ModelArgs {
    /// Starts the threads and opens the device for the model and the models that it depends on.
    pub fn opener(&self) -> Result<Opener> {
        self.opener_of(&Solo)
    }

    /// Like [`Self::opener`], but for one of several ranks: the ranks of a host share its GPUs and processors.
    pub fn opener_of(&self, ranks: &dyn Collective) -> Result<Opener> {
        let threads = match self.threads {
            None if ranks.size() > 1 => Some(dist::threads(ranks)?),
            threads => threads,
        };
        tensor::parallel::start_threads(threads)?;
        let device = self.device.of_rank(ranks.local_rank()).open()?.0;
        if self.amp && device == Device::Cpu {
            let says = amp_note(bf16::level()?);
            if ranks.rank() == 0 {
                note!("--amp: {says}");
            }
        }
        let (weights, mode) = (self.weights, ComputeMode { device, amp: self.amp });
        Ok(Opener { weights, mode, with: self.with.clone() })
    }

    /// The run directory or checkpoint.
    pub fn run(&self) -> &PathBuf {
        &self.run
    }
}

fn named(text: &str) -> Result<(String, PathBuf), String> {
    let (name, path) = text.split_once('=').ok_or("expected NAME=RUN, e.g. codec=runs/codec")?;
    Ok((name.into(), path.into()))
}
