//! Test-time search on the command line.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use tasks::pde::search::{Preset, Reward, Search};
use unix::{Error, Result};

/// The options of `evaluate score` about search.
#[derive(clap::Args)]
pub struct SearchArgs {
    /// Choose among several candidates at every step by a reward that does not know the truth: default (4 candidates),
    /// enhanced (8, two steps ahead), aggressive (16, two steps ahead). Candidates are samples of a corrector or a
    /// student; of an operator, its predictions for each parameter value of the data
    #[arg(long, value_name = "PRESET")]
    search: Option<Preset>,
    /// Candidates per state
    #[arg(long, value_name = "N", requires = "search")]
    candidates: Option<NonZeroUsize>,
    /// Paths that are extended when looking ahead
    #[arg(long, value_name = "N", requires = "search")]
    beam: Option<NonZeroUsize>,
    /// Steps to look ahead, the next one included
    #[arg(long, value_name = "N", requires = "search")]
    horizon: Option<NonZeroUsize>,
    /// Largest number of scored candidates per rollout
    #[arg(long, value_name = "N", requires = "search")]
    budget: Option<NonZeroUsize>,
    /// Do not look ahead where the best reward exceeds the next one by this much, in units of the field; of a critic, of
    /// its normalised latents
    #[arg(long, value_name = "X", requires = "search")]
    margin: Option<f64>,
    /// Reward: residual (of the discretised equation, cheap), solver (exact, as expensive as ds-prep gen) or critic
    /// (trained)
    #[arg(long, value_name = "NAME", requires = "search")]
    reward: Option<Reward>,
    /// Run or checkpoint of train-stage critic, for --reward critic; trained on candidates of the same operator
    #[arg(long, value_name = "RUN", requires = "search")]
    pub critic: Option<PathBuf>,
    /// Subtract from the reward this much times the change of conserved means and the excess over bounds that the
    /// equation never crosses
    #[arg(long, value_name = "X", requires = "search", value_parser = not_negative)]
    penalty: Option<f64>,
}

fn not_negative(text: &str) -> std::result::Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| "not a number".to_string())?;
    if value >= 0.0 && value.is_finite() { Ok(value) } else { Err("must be 0 or more".into()) }
}

impl SearchArgs {
    /// The search that was asked for.
    pub fn search(&self) -> Option<Search> {
        let preset = self.search?.search();
        let or = |own: Option<NonZeroUsize>, other: usize| own.map_or(other, NonZeroUsize::get);
        Some(Search {
            candidates: or(self.candidates, preset.candidates),
            beam: or(self.beam, preset.beam),
            horizon: or(self.horizon, preset.horizon),
            budget: self.budget.map(NonZeroUsize::get),
            margin: self.margin,
            reward: self.reward.unwrap_or(preset.reward),
            penalty: self.penalty.unwrap_or(preset.penalty),
            ..preset
        })
    }

    /// Refuses (2) a critic without its reward and the reverse.
    pub fn require_critic(&self) -> Result<()> {
        match (self.reward == Some(Reward::Critic), &self.critic) {
            (true, None) => {
                Err(Error::usage("--reward critic: add --critic RUN, of train-stage critic"))
            }
            (false, Some(_)) => Err(Error::usage("--critic: add --reward critic, which uses it")),
            _ => Ok(()),
        }
    }
}
