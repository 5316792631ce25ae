use super::{OnSpike, Spikes};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use unix::cli::MAX_THREADS;
use unix::config::{Faults, within};

/// How long, in which portions, and what is watched.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Training {
    /// Updates in all.
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub updates: u64,
    /// Samples of one forward and backward pass, those of all ranks together.
    #[schemars(range(min = 1, max = 1_048_576))]
    pub batch_size: u64,
    /// Passes whose gradients are averaged to one update.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 1024))]
    pub accumulation: u64,
    /// Divide the samples of a pass into up to 8 portions that are computed apart and summed in a fixed
    /// tree, so that 1, 2, 4 or 8 ranks, where that many share them, give the same bits. Smaller passes
    /// are slower.
    #[serde(default)]
    pub deterministic: bool,
    /// Compute in fewer bits inside the model, on devices that gain by it; parameters, losses and updates
    /// stay in f32.
    #[serde(default)]
    pub amp: bool,
    /// With amp: which 16-bit floats. f16 comes with a loss scale that follows the gradients.
    #[serde(default)]
    pub precision: Precision,
    /// Let products of f32 matrices on a GPU round their operands to 11 bits (TF32): faster, and less precise.
    #[serde(default)]
    pub tf32: bool,
    /// Record a pass on a device once its shapes are known, and launch it as a whole from then on.
    #[serde(default = "yes")]
    pub compile: bool,
    /// Share of the memory of a model's blocks that may be kept for the backward pass, 0 to 1; of the
    /// rest the least costly is computed again.
    #[serde(default = "all")]
    pub mem_budget: f64,
    /// Largest global norm of the gradient; longer ones are shortened to it. None: no limit.
    #[serde(default)]
    pub clip: Option<f64>,
    /// Decay of the moving average of the parameters that validation and evaluation use. None: the
    /// parameters themselves are used.
    #[serde(default)]
    pub ema: Option<f64>,
    /// Let the decay of the moving average grow with the steps t as (1 + t)/(10 + t), up to ema, so that the
    /// average soon forgets the initial parameters. False: the decay is ema from the first step.
    #[serde(default = "yes")]
    pub ema_warmup: bool,
    /// Updates between validations.
    #[serde(default = "hundred")]
    #[schemars(range(min = 1))]
    pub validate_every: u64,
    /// Samples of a validation, spread evenly over the split; 0 for all of it.
    #[serde(default = "validation_samples")]
    #[schemars(range(min = 0, max = 1_000_000_000))]
    pub validation_samples: u64,
    /// Samples that go through the model together in a validation.
    #[serde(default = "validation_batch_size")]
    #[schemars(range(min = 1, max = 1_048_576))]
    pub validation_batch_size: u64,
    /// With amp: compute validations in 16-bit floats as well; otherwise they are computed in f32.
    #[serde(default)]
    pub validation_amp: bool,
    /// Validations without improvement after which training ends early. None: never.
    #[serde(default)]
    pub patience: Option<u64>,
    /// Updates with a loss or gradient that is not finite are skipped; this many in a row, or 10 of the
    /// last 1000, end the run as diverged.
    #[serde(default = "eight")]
    #[schemars(range(min = 1))]
    pub non_finite_limit: u64,
    /// The run is marked failed after this many consecutive attempts that resume at the same update and
    /// get no further than the attempts before them.
    #[serde(default = "three")]
    #[schemars(range(min = 1))]
    pub attempts_without_progress: u64,
    /// What happens at a spike of loss or gradient norm: it is recorded, or the run goes back to the
    /// newest regular checkpoint before it and on with other samples.
    #[serde(default)]
    pub on_spike: OnSpike,
    /// What a spike is, and how a run goes round it.
    #[serde(default)]
    pub spike: Spikes,
    /// Updates between checks of the hardware: gradients are computed twice and must have the same bits. 0: never.
    #[serde(default)]
    pub verify_every: u64,
    /// Updates between hashes of all parameters in the log. 0: never.
    #[serde(default = "thousand")]
    pub hash_every: u64,
    /// Updates between records in the log.
    #[serde(default = "ten")]
    #[schemars(range(min = 1))]
    pub log_every: u64,
    /// Batches prepared ahead of the training.
    #[serde(default = "four")]
    #[schemars(range(min = 1, max = 1024))]
    pub prefetch: usize,
    /// Threads that prepare them; changes the speed and nothing else.
    #[serde(default = "single")]
    #[schemars(range(min = 1, max = 256))]
    pub workers: usize,
    /// Threads; changes the speed and nothing else. None: one for each processor.
    #[serde(default)]
    #[schemars(range(min = 1, max = 1024))]
    pub threads: Option<usize>,
    /// Time limit of one start, as 24:00:00, 1-12:00:00, 90m or seconds. None: what SLURM or timekeep
    /// say.
    #[serde(default)]
    pub time_limit: Option<String>,
}

/// 16-bit floats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    /// The range of f32, 8 bits of precision.
    #[default]
    Bf16,
    /// A range of 65504 to 6e-8, 11 bits of precision.
    F16,
}

fn yes() -> bool {
    true
}
fn all() -> f64 {
    1.0
}
fn one() -> u64 {
    1
}
fn single() -> usize {
    1
}
fn three() -> u64 {
    3
}
fn four() -> usize {
    4
}
fn eight() -> u64 {
    8
}
fn ten() -> u64 {
    10
}
fn hundred() -> u64 {
    100
}
fn thousand() -> u64 {
    1000
}
fn validation_samples() -> u64 {
    256
}
fn validation_batch_size() -> u64 {
    64
}

impl Training {
    /// Samples of one update.
    pub fn samples_per_update(&self) -> u64 {
        self.batch_size * self.accumulation
    }

    pub(super) fn faults(&self) -> Faults {
        let mut faults = Faults::new();
        let mut fault = |key: &str, text: String| faults.push((key.into(), text));
        if !(0.0..=1.0).contains(&self.mem_budget) {
            fault("mem_budget", "must lie in [0, 1]".into());
        }
        if self.clip.is_some_and(|c| !(c > 0.0 && c.is_finite())) {
            fault("clip", "must be a positive number, or null".into());
        }
        if self.ema.is_some_and(|d| !(0.0..1.0).contains(&d)) {
            fault("ema", "must lie in [0, 1), or be null".into());
        }
        if self.threads.is_some_and(|threads| !(1..=MAX_THREADS).contains(&threads)) {
            fault("threads", format!("must be from 1 to {MAX_THREADS}, or null"));
        }
        if let Some(Err(error)) = self.time_limit.as_deref().map(unix::time::parse_limit) {
            fault("time_limit", error.to_string());
        }
        faults.extend(within("spike", self.spike.faults()));
        faults
    }
}

/// When the state is saved and what is kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Checkpoints {
    /// Updates between checkpoints. There is one at the end and at every stop in any case.
    #[serde(default = "five_hundred")]
    #[schemars(range(min = 1))]
    pub every: u64,
    /// Newest checkpoints that are kept.
    #[serde(default = "keep_last")]
    #[schemars(range(min = 1, max = 1_048_576))]
    pub keep_last: usize,
    /// Checkpoints with the best validation that are kept; there is a checkpoint at every validation
    /// that is the best so far.
    #[serde(default = "keep_best")]
    #[schemars(range(min = 0, max = 1_048_576))]
    pub keep_best: usize,
    /// Checkpoints at multiples of this many updates are kept for ever; 0 for none.
    #[serde(default)]
    pub keep_every: u64,
    /// Consecutive failed saves after which the run stops. A single one stops it if the last good checkpoint
    /// is more than an hour old.
    #[serde(default = "three")]
    #[schemars(range(min = 1))]
    pub failed_saves: u64,
}

fn five_hundred() -> u64 {
    500
}
fn keep_last() -> usize {
    2
}
fn keep_best() -> usize {
    1
}

impl Default for Checkpoints {
    fn default() -> Self {
        Self {
            every: five_hundred(),
            keep_last: keep_last(),
            keep_best: keep_best(),
            keep_every: 0,
            failed_saves: three(),
        }
    }
}

impl Checkpoints {
    pub(super) fn faults(&self) -> Faults {
        Faults::new()
    }
}

/// What the run may cost, over all its starts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Cost {
    /// Price of an hour of the whole job, all its ranks together, in any currency.
    #[serde(default)]
    pub rate_per_hour: f64,
    /// What the run may cost; a warning comes at nine tenths of it. None: no limit.
    #[serde(default)]
    pub budget: Option<f64>,
    /// Stop, with a checkpoint, when the budget is spent.
    #[serde(default)]
    pub stop_at_budget: bool,
}

impl Cost {
    pub(super) fn faults(&self) -> Faults {
        let mut faults = Faults::new();
        if !(self.rate_per_hour >= 0.0 && self.rate_per_hour.is_finite()) {
            faults.push(("rate_per_hour".into(), "must not be negative".into()));
        }
        if self.budget.is_some_and(|b| !(b > 0.0 && b.is_finite())) {
            faults.push(("budget".into(), "must be a positive number, or null".into()));
        }
        faults
    }
}
