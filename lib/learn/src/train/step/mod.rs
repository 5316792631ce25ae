//! Performs one update: prefetches batches, sums gradients over micro-batches, slices and ranks, and runs the optimizer
//! step. Both training runs and `--dry-run` use this module; nothing in it touches the files of a run.

mod compiled;
mod exchange;
mod gradients;
mod in_flight;
mod learner;
mod micro_batches;
pub mod numerics;
mod parts;
mod terms;

pub use in_flight::{InFlight, Timing};
pub use learner::{Files, Learner, Pending, UpdateResult};
use micro_batches::MicroBatches;

use crate::config::{Config, Training};
use crate::params::ParamSet;
use crate::score::Metrics;
use crate::task::{Batch, ConfiguredTask, Task};
use crate::train::Progress;
use compiled::Compiled;
use data::loader::{Ahead, Mixture, Prefetch};
use dist::Collective;
use exchange::Exchange;
use gradients::{StepGradients, accumulate_gradients};
use numerics::Numerics;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tensor::Device;
use unix::{Error, Result};

/// Everything needed for an update: the task, the training state, and the machinery that computes gradients.
pub struct Trainer<'a> {
    pub task: Arc<dyn Task>,
    pub learner: Learner,
    config: Config<(), (), ()>,
    ranks: &'a dyn Collective,
    device: Device,
    micro_batches: MicroBatches,
    pub numerics: Numerics,
    /// All-reduce across ranks; None before the first update or with one rank.
    exchange: Option<Exchange>,
    compiled: Compiled,
    /// Threads that prepare batches; started when an update first needs a batch.
    batches: Option<Prefetch<Batch>>,
    /// [`Progress::amp_on_cpu`].
    amp_on_cpu: bool,
}

impl<'a> Trainer<'a> {
    /// Creates the state before the first update, with initial parameters `params`, computed as `progress` says. Errors: 78
    /// when the batch cannot be divided among the ranks as configured; errors of the device.
    pub fn new(
        configured: &'a ConfiguredTask,
        device: Device,
        ranks: &'a dyn Collective,
        (task, params): (Box<dyn Task>, ParamSet),
        progress: &Progress,
    ) -> Result<Self> {
        let config = &configured.config;
        let slices = MicroBatches::new(&config.training, ranks.rank(), ranks.size())?;
        Ok(Self {
            micro_batches: if progress.memory.halved { slices.halved() } else { slices },
            learner: Learner::new(params.to_device(device)?, config, ranks)?,
            numerics: Numerics::new(&config.training, device, progress),
            compiled: Compiled::new(config.training.compile, device),
            task: Arc::from(task),
            config: config.clone(),
            ranks,
            device,
            exchange: None,
            batches: None,
            amp_on_cpu: progress.amp_on_cpu,
        })
    }

    /// Discards the prefetched batches after a rewind, so that the next [`Trainer::step`] restarts the loader threads.
    pub fn restart_loader(&mut self) {
        self.batches = None;
    }

    /// Switches to the batch settings of `training`, whose other keys must equal the configuration of the run.
    pub fn set_batches(&mut self, training: Training) -> Result<()> {
        let (rank, ranks) = (self.ranks.rank(), self.ranks.size());
        self.micro_batches = MicroBatches::new(&training, rank, ranks)?;
        (self.config.training, self.batches) = (training, None);
        Ok(())
    }

    /// Number of samples in each forward and backward pass of this rank.
    pub fn samples_per_pass(&self) -> u64 {
        self.micro_batches.samples
    }

    /// Number of forward and backward passes per update on this rank.
    pub fn passes(&self) -> u64 {
        self.micro_batches.passes(self.config.training.accumulation)
    }

    /// Submits update number `update` (from 0) to the device. `skipped` is the number of samples skipped by earlier
    /// rewinds.
    pub fn step(&mut self, update: u64, skipped: u64) -> Result<InFlight> {
        let submitted = Instant::now();
        let StepGradients { losses, gradients, data_wait, times } =
            accumulate_gradients(self, update, skipped)?;
        let frozen = self.task.frozen(update);
        let pending = self.learner.update(update, &losses, &gradients, frozen, self.ranks)?;
        Ok(InFlight { pending, submitted, data_wait, times })
    }

    /// Computes the metrics on the validation split.
    pub fn validate(&self) -> Result<Metrics> {
        let params = self.learner.evaluation_params();
        let (training, amp_on_cpu) = (&self.config.training, self.amp_on_cpu);
        super::validation::validate(&*self.task, &params, training, amp_on_cpu, self.ranks)
    }

    /// Returns the batch of this rank's first pass of an update.
    pub fn first_batch(&self, update: u64, skipped: u64) -> Result<Batch> {
        self.batches_from(skipped)?(self.first_pass(update))
    }

    fn first_pass(&self, update: u64) -> u64 {
        update * self.passes()
    }

    /// Returns the function that maps `count` to the batch of this rank's `count`-th pass.
    fn batches_from(
        &self,
        skipped: u64,
    ) -> Result<impl Fn(u64) -> Result<Batch> + Send + Sync + 'static> {
        let (training, seed) = (&self.config.training, self.config.seed);
        let order = Mixture::new(seed, &self.task.sources(), training.batch_size)?
            .with_buckets(self.task.buckets());
        let (task, device, slices) = (Arc::clone(&self.task), self.device, self.micro_batches);
        let accumulation = training.accumulation;
        // A rewind shifts the samples, but nothing else that follows from the update number.
        let skipped = skipped / training.batch_size;
        Ok(move |count| {
            let (micro_batch, place) = slices.position(count, accumulation);
            let samples = order.part(micro_batch + skipped, place, slices.samples);
            let batch = task.batch(micro_batch, place, &samples)?;
            batch.with_counter(seed, micro_batch, place).to_device(device)
        })
    }

    /// Returns the next prefetched batch, starting with the first pass of `update`, and the time spent waiting for it:
    /// none if the device still has work, for which the loader's copies wait as well.
    fn next_batch(&mut self, update: u64, skipped: u64) -> Result<(Batch, Duration)> {
        if self.batches.is_none() {
            let training = &self.config.training;
            let first = self.first_pass(update);
            let ahead = Ahead { batches: training.prefetch, workers: training.workers };
            self.batches = Some(Prefetch::start(first, ahead, self.batches_from(skipped)?)?);
        }
        let batches = self.batches.as_mut().ok_or_else(|| Error::bug("no loader"))?;
        let batch = batches.next()?;
        let stall = batches.stall();
        let is_idle = tensor::kernel::is_idle(self.device);
        Ok((batch, if is_idle { stall } else { Duration::ZERO }))
    }
}
