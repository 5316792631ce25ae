//! What an update trains: modes that take turns, and the objectives of other programs.

use super::batch::Drawing;
use super::config::{CycleVaeLoss, TextWeighting};
use super::noise::{LatentSchedule, LatentTarget};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tensor::random::{Philox, Purpose};
use unix::config::Violations;

/// Source of the random numbers that choose modes.
const SOURCE: u64 = 8;

/// What an update trains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Both directions, as `text_share` divides the pairs.
    #[default]
    Joint,
    /// Texts given latents. The layers that only latents use stay as they are.
    L2t,
    /// Latents given texts. The layers that only texts use stay as they are.
    T2l,
    /// Texts alone and latents alone, as `text_share` divides the pairs.
    Unconditional,
}

impl Mode {
    /// Name patterns of the parameters that stay as they are.
    pub fn frozen(self) -> &'static [&'static str] {
        match self {
            Self::L2t => &["latent.*", "latent_head.*", "norm.latent.*"],
            Self::T2l => &["text.*", "text_head.*", "norm.text.*"],
            Self::Joint | Self::Unconditional => &[],
        }
    }
}

/// A mode and its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ModeUpdates {
    /// What is trained.
    pub mode: Mode,
    /// Number of updates of a turn; of modes in random order, the share of the updates relative to the others.
    #[schemars(range(min = 1))]
    pub updates: u64,
}

/// How modes take turns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ModeOrder {
    /// One after the other, then again from the first.
    #[default]
    Sequential,
    /// Each update draws its mode.
    Random,
}

/// The objective of another program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Compatibility {
    /// That of the cycle trainer of LGDLM: texts are masked as a whole, latents are noise alone (`latent_t_mode: full`),
    /// and the network predicts this noise with the squared error of unit vectors. Its input is the answer, so it learns
    /// to copy and does not read texts: T2L stays at chance. A text that was learned so cannot be sampled in steps.
    Upstream,
}

impl Compatibility {
    /// Why the objective fails, for a warning.
    pub const fn warning(self) -> &'static str {
        match self {
            Self::Upstream => {
                "loss.compat: upstream asks for the noise at time 1, where the input is that noise: vectors are learned \
                 without reading texts, and stay at chance; use it for comparisons only"
            }
        }
    }

    /// Returns the loss with the values that this objective stands for.
    fn resolve(self, loss: &CycleVaeLoss) -> CycleVaeLoss {
        CycleVaeLoss {
            unconditional: 0.0,
            text_weighting: TextWeighting::Mean,
            min_time: 1.0,
            padding_weight: 1.0,
            latent_target: LatentTarget::Epsilon,
            latent_schedule: LatentSchedule::DdpmCosine,
            latent_times: [1.0, 1.0],
            ..loss.clone()
        }
    }

    /// Lists the keys with values that this objective would replace.
    pub fn conflicts(self, loss: &CycleVaeLoss) -> Violations {
        let usual = CycleVaeLoss::default();
        let fixed = self.resolve(loss);
        let mut found = Violations::new();
        let mut check = |key: &str, is_usual: bool, is_fixed: bool| {
            if !is_usual && !is_fixed {
                found.push((format!("loss.{key}"), "loss.compat sets it; leave it out".into()));
            }
        };
        macro_rules! check {
            ($($key:ident),*) => {
                $(check(stringify!($key), loss.$key == usual.$key, loss.$key == fixed.$key);)*
            };
        }
        check!(
            unconditional,
            text_weighting,
            min_time,
            padding_weight,
            latent_target,
            latent_schedule,
            latent_times
        );
        found
    }
}

impl CycleVaeLoss {
    /// Returns the loss that is trained: with the values that `compat` stands for.
    #[must_use]
    pub fn resolved(&self) -> Self {
        self.compat.map_or_else(|| self.clone(), |compat| compat.resolve(self))
    }

    /// Whether the error of latents compares unit vectors.
    pub fn compares_directions(&self) -> bool {
        self.compat == Some(Compatibility::Upstream)
    }
}

impl Drawing {
    /// What update number `update` (from 0) trains.
    pub fn mode(&self, update: u64) -> Mode {
        let modes = &self.loss.modes;
        let total: u64 = modes.iter().map(|own| own.updates).sum();
        let place = match self.loss.mode_order {
            _ if total == 0 => return Mode::default(),
            ModeOrder::Sequential => update % total,
            ModeOrder::Random => {
                let random = Philox::new(self.seed, Purpose::Loss).at_update(update);
                let u = f64::from(random.at_source(SOURCE).uniform(0, 0));
                ((u * total as f64) as u64).min(total - 1)
            }
        };
        let mut end = 0;
        let turn = modes.iter().find(|own| {
            end += own.updates;
            place < end
        });
        turn.map_or(Mode::default(), |own| own.mode)
    }
}
