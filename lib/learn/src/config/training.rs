use super::{OnSpike, Spikes};
use crate::score::Direction;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tensor::Dtype;
use unix::cli::MAX_THREADS;
use unix::config::{Violations, within};

/// Training loop: number of updates, batch size, precision, validation, logging and failure handling.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("required" = ["updates", "batch_size"]))]
pub struct Training {
    /// Total number of optimizer updates.
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub updates: u64,
    /// Samples per forward and backward pass, summed over all ranks.
    #[schemars(range(min = 1, max = 1_048_576))]
    pub batch_size: u64,
    /// Number of micro-batches whose gradients are averaged into one update.
    #[schemars(range(min = 1, max = 1024))]
    pub accumulation: u64,
    /// Make the result independent of the number of ranks: each batch is split into up to 8 slices whose gradients are
    /// summed in a fixed tree, so 1, 2, 4 or 8 ranks (if that many divide the slices) give the same bits. Smaller
    /// slices are slower.
    pub deterministic: bool,
    /// Automatic mixed precision: compute in 16-bit floats inside the model; on the CPU, round the operands of matrix
    /// products to bf16. Parameters, losses and updates stay in f32.
    pub amp: bool,
    /// The 16-bit format for amp: bf16, or f16 with dynamic loss scaling.
    pub precision: Precision,
    /// Use TF32 for f32 matrix products on a GPU: operands are rounded to 11 significant bits, which is faster and less
    /// precise.
    pub tf32: bool,
    /// Let large 16-bit matrix products and attention use wgmma and TMA, on Hopper GPUs only.
    // Not serialised when true, the default, so that configurations older than this key keep their hash.
    #[serde(skip_serializing_if = "is_on")]
    #[schemars(extend("default" = true))]
    pub wgmma: bool,
    /// Record a training pass as a CUDA graph once its shapes are known, and replay it afterwards.
    pub compile: bool,
    /// The type in which NCCL sums gradients over ranks. bf16 halves the traffic, but every partial sum is rounded to 8
    /// significant bits.
    // Not serialised when f32, so that configurations older than this key keep their hash.
    #[serde(skip_serializing_if = "ReduceDtype::is_f32")]
    #[schemars(extend("default" = "f32"))]
    pub reduce_dtype: ReduceDtype,
    /// Activation checkpointing: fraction (0 to 1) of the memory for block activations that may be kept for the
    /// backward pass. The blocks that are cheapest to recompute are recomputed until the rest fits. 1: keep everything.
    pub mem_budget: f64,
    /// When the device runs out of memory, begin another attempt in which the samples of a pass are computed in two passes,
    /// and if that is not enough, one in which all blocks are recomputed as well (mem_budget 0), instead of failing. The run
    /// stays adapted; results change by rounding only. For runs of one rank.
    // Not serialised when false, so that configurations older than this key keep their hash.
    #[serde(skip_serializing_if = "is_off")]
    #[schemars(extend("default" = false))]
    pub adapt_to_memory: bool,
    /// Clip the global gradient norm to this value. Null: no clipping.
    pub clip_grad_norm: Option<f64>,
    /// Decay of an exponential moving average (EMA) of the parameters, which validation and evaluation then use instead
    /// of the parameters. Null: no average.
    pub ema: Option<f64>,
    /// Increase the EMA decay with the update t as (1 + t)/(10 + t), up to ema, so that the average quickly forgets the
    /// initial parameters. False: the decay is ema from the first update.
    pub ema_warmup: bool,
    /// Updates between validations.
    #[schemars(range(min = 1))]
    pub validate_every: u64,
    /// Number of validation samples, spread evenly over the split; 0 for all of them.
    #[schemars(range(min = 0, max = 1_000_000_000))]
    pub validation_samples: u64,
    /// Batch size of validation.
    #[schemars(range(min = 1, max = 1_048_576))]
    pub validation_batch_size: u64,
    /// With amp, also run validation in 16-bit floats. False: validation runs in f32.
    pub validation_amp: bool,
    /// Early stopping: stop after this many consecutive validations without improvement; 0 counts as 1. Null: never.
    pub early_stopping_patience: Option<u64>,
    /// Validations at the beginning that early stopping does not count.
    // Not serialised when 0, so that configurations older than this key keep their hash.
    #[serde(skip_serializing_if = "is_zero")]
    #[schemars(extend("default" = 0))]
    pub early_stopping_after: u64,
    /// Validate and stop when the mean training loss of the last 20 updates is below this. Null: never.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = null))]
    pub stop_below_loss: Option<f64>,
    /// The metric of the validations that selects the best checkpoint, stops early and reduces the learning rate. Null:
    /// that of the task.
    // Not serialised when null, so that configurations older than this key keep their hash.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = null))]
    pub monitor: Option<Monitor>,
    /// An update whose loss or gradient is not finite is skipped. After this many in a row, or 10 of the last 1000
    /// updates, the run ends as diverged.
    #[schemars(range(min = 1))]
    pub non_finite_limit: u64,
    /// The run is marked failed after this many consecutive attempts that resume at the same update and get no further
    /// than the attempts before them.
    #[schemars(range(min = 1))]
    pub attempts_without_progress: u64,
    /// What to do when the loss or gradient norm spikes: only record it, or rewind to the newest regular checkpoint
    /// before the spike and continue with other samples.
    pub on_spike: OnSpike,
    /// Spike detection, and how to rewind past a spike.
    pub spike: Spikes,
    /// Updates between hardware checks, in which the gradients are computed twice and must have the same bits. 0:
    /// never.
    pub verify_every: u64,
    /// Updates between log records of a hash over all parameters. 0: never.
    pub hash_every: u64,
    /// Updates between log records.
    #[schemars(range(min = 1))]
    pub log_every: u64,
    /// Number of batches prepared in advance.
    #[schemars(range(min = 1, max = 1024))]
    pub prefetch: usize,
    /// Threads that prepare batches. Affects only speed, not results.
    #[schemars(range(min = 1, max = 256))]
    pub workers: usize,
    /// CPU threads for computation. Affects only speed, not results. Null: one per available processor.
    #[schemars(range(min = 1, max = 1024))]
    pub threads: Option<usize>,
    /// Time limit of one attempt: 24:00:00, 1-12:00:00, 90m or a number of seconds. Null: the limit that SLURM or
    /// timekeep reports.
    pub time_limit: Option<String>,
}

/// The type in which gradients are summed over ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReduceDtype {
    /// Single precision.
    #[default]
    F32,
    /// bfloat16: the range of f32, 8 significant bits.
    Bf16,
}

impl ReduceDtype {
    /// Returns the dtype in which NCCL sums gradients.
    pub fn dtype(self) -> Dtype {
        match self {
            Self::F32 => Dtype::F32,
            Self::Bf16 => Dtype::Bf16,
        }
    }

    fn is_f32(&self) -> bool {
        *self == Self::F32
    }
}

/// A 16-bit floating-point format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    /// bfloat16: the range of f32, 8 significant bits.
    #[default]
    Bf16,
    /// IEEE half precision: largest value 65504, smallest 6e-8, 11 significant bits.
    F16,
}

impl Precision {
    /// The dtype that it stands for.
    pub fn dtype(self) -> Dtype {
        match self {
            Self::Bf16 => Dtype::Bf16,
            Self::F16 => Dtype::F16,
        }
    }
}

/// A metric of the validations.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Monitor {
    /// Its name in the log.
    pub metric: String,
    /// Whether it is minimised or maximised.
    pub direction: Direction,
    /// A value is an improvement if it is better than the best one by more than this.
    #[serde(default)]
    pub min_delta: f64,
}

impl Monitor {
    /// Whether `value` is an improvement over `best`; a NaN never is.
    pub fn is_better(&self, value: f64, best: f64) -> bool {
        let margin =
            if self.direction == Direction::Minimize { -self.min_delta } else { self.min_delta };
        self.direction.is_better(value, best + margin)
    }
}

fn is_zero(key: &u64) -> bool {
    *key == 0
}

fn is_off(key: &bool) -> bool {
    !*key
}

fn is_on(key: &bool) -> bool {
    *key
}

/// Default values. `updates` and `batch_size` have no default: the schema requires them, and 0 is out of range.
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
            wgmma: true,
            compile: true,
            reduce_dtype: ReduceDtype::default(),
            mem_budget: 1.0,
            adapt_to_memory: false,
            clip_grad_norm: None,
            ema: None,
            ema_warmup: true,
            validate_every: 100,
            validation_samples: 256,
            validation_batch_size: 64,
            validation_amp: false,
            early_stopping_patience: None,
            early_stopping_after: 0,
            stop_below_loss: None,
            monitor: None,
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
    /// Samples per update, summed over all ranks and micro-batches.
    pub fn samples_per_update(&self) -> u64 {
        self.batch_size * self.accumulation
    }

    pub(super) fn violations(&self) -> Violations {
        let mut violations = Violations::new();
        let mut violation = |key: &str, text: String| violations.push((key.into(), text));
        if !(0.0..=1.0).contains(&self.mem_budget) {
            violation("mem_budget", "must lie in [0, 1]".into());
        }
        if self.clip_grad_norm.is_some_and(|c| !(c > 0.0 && c.is_finite())) {
            violation("clip_grad_norm", "must be a positive number, or null".into());
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
        if self.monitor.as_ref().is_some_and(|m| !(m.min_delta >= 0.0 && m.min_delta.is_finite())) {
            violation("monitor.min_delta", "must not be negative".into());
        }
        if self.early_stopping_after > 0 && self.early_stopping_patience.is_none() {
            violation("early_stopping_after", "no effect without early_stopping_patience".into());
        }
        match self.stop_below_loss {
            Some(loss) if !loss.is_finite() => {
                violation("stop_below_loss", "must be a number, or null".into());
            }
            Some(_) if self.spike.window < LOSSES as u64 => {
                let text = format!(
                    "needs the losses of {LOSSES} updates: set spike.window to at least {LOSSES}"
                );
                violation("stop_below_loss", text);
            }
            _ => {}
        }
        violations.extend(within("spike", self.spike.violations()));
        violations
    }

    /// Whether training stops early after `validations`, of which the last `since_best` were no improvement.
    pub fn has_lost_patience(&self, validations: u64, since_best: u64) -> bool {
        let counted = match self.early_stopping_after {
            0 => since_best,
            after => since_best.min(validations.saturating_sub(after)),
        };
        self.early_stopping_patience.is_some_and(|patience| counted >= patience.max(1))
    }
}

/// Updates whose mean loss [`Training::stop_below_loss`] is compared with.
pub const LOSSES: usize = 20;

/// When checkpoints are saved and which are kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Checkpoints {
    /// Updates between checkpoints. A checkpoint is also saved at the end of training and whenever the run is stopped.
    #[schemars(range(min = 1))]
    pub every: u64,
    /// Number of newest checkpoints to keep.
    #[schemars(range(min = 1, max = 1_048_576))]
    pub keep_last: usize,
    /// Number of checkpoints with the best validation metric to keep. A checkpoint is saved at every validation that is
    /// the best so far.
    #[schemars(range(min = 0, max = 1_048_576))]
    pub keep_best: usize,
    /// Keep every checkpoint whose update is a multiple of this; 0 for none.
    pub keep_every: u64,
    /// Store frozen parameters in every checkpoint. False: a checkpoint stores only their hash, and init.from must
    /// still exist to resume.
    pub frozen: bool,
    /// Stop the run after this many consecutive failed saves. A single failure stops it if the last good checkpoint is
    /// more than an hour old.
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
