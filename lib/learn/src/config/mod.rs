//! What the configuration of a run holds. One file is one run, complete in itself; sections that all tasks share are
//! here, those of a task beside the task.

mod spikes;
mod training;

pub use spikes::{OnSpike, Spikes};
pub use training::{Checkpoints, Cost, Precision, Training};

use crate::init::InitFrom;
use crate::optim::{Optimizer, Phase, Plateau};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use unix::config::{Violations, within};

/// The configuration of a run of one stage, with that stage's own sections for data, model and loss.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config<D, M, L> {
    /// Seed of everything random: initial weights, order of the data, noise.
    #[serde(default)]
    pub seed: u64,
    /// What is learned from.
    pub data: D,
    /// What is learned.
    pub model: M,
    /// What is minimised.
    pub loss: L,
    /// How long, in which portions, and what is watched.
    pub training: Training,
    /// How parameters follow gradients.
    pub optimizer: Optimizer,
    /// Phases of the learning rate, one after the other; a constant rate when empty.
    #[serde(default)]
    pub schedule: Vec<Phase>,
    /// Reduction of the learning rate when validation stops improving. None: the schedule alone.
    #[serde(default)]
    pub plateau: Option<Plateau>,
    /// Initial values of the parameters from a file. None: random ones.
    #[serde(default)]
    pub init: Option<InitFrom>,
    /// When the state is saved and what is kept.
    #[serde(default)]
    pub checkpoint: Checkpoints,
    /// What the run may cost.
    #[serde(default)]
    pub cost: Cost,
}

impl<D, M, L> Config<D, M, L> {
    /// The sections that all tasks share.
    pub fn shared(&self) -> Config<(), (), ()> {
        Config {
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

    /// Violations of the sections that all stages share.
    pub fn common_violations(&self) -> Violations {
        let mut violations: Violations = within("training", self.training.violations()).collect();
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
