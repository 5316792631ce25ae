//! Configuration of a training run. One file describes one run completely. The sections that all tasks share are
//! defined here; task-specific sections are defined with their task.

mod cost;
mod spikes;
mod training;

pub use cost::{Cost, PRICES};
pub use spikes::{OnSpike, Spikes};
pub use training::{Checkpoints, LOSSES, Monitor, Precision, ReduceDtype, Training};

use crate::init::InitFrom;
use crate::optim::{Optimizer, Phase, Plateau};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use unix::config::{Violations, within};

/// The configuration of a run, generic over the task's own sections `data`, `model` and `loss`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config<D, M, L> {
    /// Name of the run in its log and in exports. Null: model, rank of LoRA, learning rate and updates, such as
    /// `qwen3-vl-2b-instruct-r16-lr0.0002-3000`.
    #[serde(default)]
    pub name: Option<String>,
    /// Random seed for weight initialisation, data order, augmentation and noise.
    #[serde(default)]
    pub seed: u64,
    /// The training and validation data.
    pub data: D,
    /// The architecture of the model.
    pub model: M,
    /// The loss function.
    pub loss: L,
    /// Training loop: number of updates, batch size, precision, validation, logging and failure handling.
    pub training: Training,
    /// Optimizer, learning rate and weight decay.
    pub optimizer: Optimizer,
    /// Learning-rate schedule: consecutive phases that multiply optimizer.learning_rate. Empty: a constant learning
    /// rate.
    #[serde(default)]
    pub schedule: Vec<Phase>,
    /// Reduce the learning rate when the validation metric stops improving. Null: off.
    #[serde(default)]
    pub plateau: Option<Plateau>,
    /// Load initial parameter values from a file. Null: random initialisation.
    #[serde(default)]
    pub init: Option<InitFrom>,
    /// When checkpoints are saved and which are kept.
    #[serde(default)]
    pub checkpoint: Checkpoints,
    /// Cost accounting and budget.
    #[serde(default)]
    pub cost: Cost,
}

impl<D, M, L> Config<D, M, L> {
    /// Returns a copy with only the sections shared by all tasks.
    pub fn shared(&self) -> Config<(), (), ()> {
        Config {
            name: self.name.clone(),
            seed: self.seed,
            data: (),
            model: (),
            loss: (),
            training: self.training.clone(),
            optimizer: self.optimizer.clone(),
            schedule: self.schedule.clone(),
            plateau: self.plateau.clone(),
            init: self.init.clone(),
            checkpoint: self.checkpoint.clone(),
            cost: self.cost.clone(),
        }
    }

    /// Whether frozen parameters can be restored: either `init` provides them, or checkpoints store them.
    pub fn keeps_frozen(&self) -> bool {
        self.init.is_some() || self.checkpoint.frozen
    }

    /// Lists violations in the sections shared by all tasks.
    pub fn common_violations(&self) -> Violations {
        let mut violations: Violations = within("training", self.training.violations()).collect();
        if self.name.iter().any(|name| name.trim().is_empty() || name.contains(char::is_control)) {
            violations.push(("name".into(), "must be a line of text, or null".into()));
        }
        violations.extend(within("optimizer", self.optimizer.violations()));
        violations
            .extend(within("plateau", self.plateau.iter().flat_map(Plateau::violations).collect()));
        violations.extend(within("cost", self.cost.violations()));
        if let Err(text) = crate::optim::Schedule::new(&self.schedule, self.training.updates) {
            violations.push(("schedule".into(), text));
        }
        violations
    }
}
