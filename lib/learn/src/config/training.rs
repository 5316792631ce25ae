use super::{OnSpike, Spikes};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use unix::cli::MAX_THREADS;
use unix::config::{Violations, within};

/// How long, in which portions, and what is watched.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("required" = ["updates", "batch_size"]))]
pub struct Training {
    /// Updates in all.
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub updates: u64,
    /// Samples of one forward and backward pass, those of all ranks together.
    #[schemars(range(min = 1, max = 1_048_576))]
    pub batch_size: u64,
    /// Passes whose gradients are averaged to one update.
    #[schemars(range(min = 1, max = 1024))]
    pub accumulation: u64,
    /// Divide the samples of a pass into up to 8 portions that are computed apart and summed in a fixed
    /// tree, so that 1, 2, 4 or 8 ranks, where that many share them, give the same bits. Smaller passes
    /// are slower.
    pub deterministic: bool,
    /// Compute in fewer bits inside the model, on devices that gain by it; parameters, losses and updates
    /// stay in f32.
    pub amp: bool,
    /// With amp: which 16-bit floats. f16 comes with a loss scale that follows the gradients.
    pub precision: Precision,
    /// Let products of f32 matrices on a GPU round their operands to 11 bits (TF32): faster, and less precise.
    pub tf32: bool,
    /// Record a pass on a device once its shapes are known, and launch it as a whole from then on.
    pub compile: bool,
    /// Share of the memory of a model's blocks that may be kept for the backward pass, 0 to 1; of the
    /// rest the least costly is computed again.
    pub mem_budget: f64,
    /// Largest global norm of the gradient; longer ones are shortened to it. None: no limit.
    pub clip: Option<f64>,
    /// Decay of the moving average of the parameters that validation and evaluation use. None: the
    /// parameters themselves are used.
    pub ema: Option<f64>,
    /// Let the decay of the moving average grow with the steps t as (1 + t)/(10 + t), up to ema, so that the
    /// average soon forgets the initial parameters. False: the decay is ema from the first step.
    pub ema_warmup: bool,
    /// Updates between validations.
    #[schemars(range(min = 1))]
    pub validate_every: u64,
    /// Samples of a validation, spread evenly over the split; 0 for all of it.
    #[schemars(range(min = 0, max = 1_000_000_000))]
    pub validation_samples: u64,
    /// Samples that go through the model together in a validation.
    #[schemars(range(min = 1, max = 1_048_576))]
    pub validation_batch_size: u64,
    /// With amp: compute validations in 16-bit floats as well; otherwise they are computed in f32.
    pub validation_amp: bool,
    /// Validations without improvement after which training ends early. None: never.
    pub patience: Option<u64>,
    /// Updates with a loss or gradient that is not finite are skipped; this many in a row, or 10 of the
    /// last 1000, end the run as diverged.
    #[schemars(range(min = 1))]
    pub non_finite_limit: u64,
    /// The run is marked failed after this many consecutive attempts that resume at the same update and
    /// get no further than the attempts before them.
    #[schemars(range(min = 1))]
    pub attempts_without_progress: u64,
    /// What happens at a spike of loss or gradient norm: it is recorded, or the run goes back to the
    /// newest regular checkpoint before it and on with other samples.
    pub on_spike: OnSpike,
    /// What a spike is, and how a run goes round it.
    pub spike: Spikes,
    /// Updates between checks of the hardware: gradients are computed twice and must have the same bits. 0: never.
    pub verify_every: u64,
    /// Updates between hashes of all parameters in the log. 0: never.
    pub hash_every: u64,
    /// Updates between records in the log.
    #[schemars(range(min = 1))]
    pub log_every: u64,
    /// Batches prepared ahead of the training.
    #[schemars(range(min = 1, max = 1024))]
    pub prefetch: usize,
    /// Threads that prepare them; changes the speed and nothing else.
    #[schemars(range(min = 1, max = 256))]
    pub workers: usize,
    /// Threads; changes the speed and nothing else. None: one for each processor.
    #[schemars(range(min = 1, max = 1024))]
    pub threads: Option<usize>,
    /// Time limit of one start, as 24:00:00, 1-12:00:00, 90m or seconds. None: what SLURM or timekeep
    /// say.
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

/// The defaults of the keys. `updates` and `batch_size` have none: the schema requires them, and 0 is out of range.
impl Default for Training {
    fn default() -> Self {
        Self {
            updates: 0,
            batch_size: 0,
            accumulation: 1,
            deterministic: false,
            amp: false,
            precision: Precision::default(),
            tf32: false,
            compile: true,
            mem_budget: 1.0,
            clip: None,
            ema: None,
            ema_warmup: true,
            validate_every: 100,
            validation_samples: 256,
            validation_batch_size: 64,
            validation_amp: false,
            patience: None,
            non_finite_limit: 8,
            attempts_without_progress: 3,
            on_spike: OnSpike::default(),
            spike: Spikes::default(),
            verify_every: 0,
            hash_every: 1000,
            log_every: 10,
            prefetch: 4,
            workers: 1,
            threads: None,
            time_limit: None,
        }
    }
}

impl Training {
    /// Samples of one update.
    pub fn samples_per_update(&self) -> u64 {
        self.batch_size * self.accumulation
    }

    pub(super) fn violations(&self) -> Violations {
        let mut violations = Violations::new();
        let mut violation = |key: &str, text: String| violations.push((key.into(), text));
        if !(0.0..=1.0).contains(&self.mem_budget) {
            violation("mem_budget", "must lie in [0, 1]".into());
        }
        if self.clip.is_some_and(|c| !(c > 0.0 && c.is_finite())) {
            violation("clip", "must be a positive number, or null".into());
        }
        if self.ema.is_some_and(|d| !(0.0..1.0).contains(&d)) {
            violation("ema", "must lie in [0, 1), or be null".into());
        }
        if self.threads.is_some_and(|threads| !(1..=MAX_THREADS).contains(&threads)) {
            violation("threads", format!("must be from 1 to {MAX_THREADS}, or null"));
        }
        if let Some(Err(error)) = self.time_limit.as_deref().map(unix::time::parse_limit) {
            violation("time_limit", error.to_string());
        }
        violations.extend(within("spike", self.spike.violations()));
        violations
    }
}

/// When the state is saved and what is kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Checkpoints {
    /// Updates between checkpoints. There is one at the end and at every stop in any case.
    #[schemars(range(min = 1))]
    pub every: u64,
    /// Newest checkpoints that are kept.
    #[schemars(range(min = 1, max = 1_048_576))]
    pub keep_last: usize,
    /// Checkpoints with the best validation that are kept; there is a checkpoint at every validation
    /// that is the best so far.
    #[schemars(range(min = 0, max = 1_048_576))]
    pub keep_best: usize,
    /// Checkpoints at multiples of this many updates are kept for ever; 0 for none.
    pub keep_every: u64,
    /// Store frozen parameters in every checkpoint; otherwise a checkpoint has their hash, and init.from must still be
    /// there to resume.
    pub frozen: bool,
    /// Consecutive failed saves after which the run stops. A single one stops it if the last good checkpoint
    /// is more than an hour old.
    #[schemars(range(min = 1))]
    pub failed_saves: u64,
}

impl Default for Checkpoints {
    fn default() -> Self {
        Self {
            every: 500,
            keep_last: 2,
            keep_best: 1,
            keep_every: 0,
            frozen: false,
            failed_saves: 3,
        }
    }
}

/// What the run may cost, over all its starts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Cost {
    /// Price of an hour of the whole job, all its ranks together, in any currency.
    pub rate_per_hour: f64,
    /// What the run may cost; a warning comes at nine tenths of it. None: no limit.
    pub budget: Option<f64>,
    /// Stop, with a checkpoint, when the budget is spent.
    pub stop_at_budget: bool,
}

impl Cost {
    pub(super) fn violations(&self) -> Violations {
        let mut violations = Violations::new();
        if !(self.rate_per_hour >= 0.0 && self.rate_per_hour.is_finite()) {
            violations.push(("rate_per_hour".into(), "must not be negative".into()));
        }
        if self.budget.is_some_and(|b| !(b > 0.0 && b.is_finite())) {
            violations.push(("budget".into(), "must be a positive number, or null".into()));
        }
        violations
    }
}
