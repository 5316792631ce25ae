//! The options of `evaluate score` and `evaluate predict` for models of fields.

use super::plan::RolloutRequest;
use crate::pde::search::{Preset, Reward, Search};
use data::fields::generate::Equation;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use unix::{Error, Result};

/// How a rollout is computed.
#[derive(clap::Args, Clone, Debug)]
pub struct StepOptions {
    /// Steps of a rollout
    #[arg(long, value_name = "N", default_value_t = 16)]
    steps: usize,
    /// Frames from one state to the next [default: the largest stride of the training]
    #[arg(long, value_name = "N")]
    stride: Option<usize>,
}

/// Which rollouts are scored.
#[derive(clap::Args, Clone, Debug)]
pub struct StartOptions {
    /// Start frames per trajectory, spread evenly; 0 for all from which a rollout fits
    #[arg(long, value_name = "N", default_value_t = 8)]
    starts: usize,
    /// First start frame; earlier frames are skipped, e.g. an initial transient
    #[arg(long, value_name = "FRAME", default_value_t = 0)]
    from: usize,
    /// Largest number of trajectories per parameter value
    #[arg(long, value_name = "N")]
    max_trajectories: Option<usize>,
    #[command(flatten)]
    steps: StepOptions,
}

/// Views of the initial states.
#[derive(clap::Args, Clone, Debug)]
pub struct ViewOptions {
    /// Also average the predictions from N copies of each initial state, transformed by exact symmetries of the
    /// equation
    #[arg(long, value_name = "N", default_value = "1")]
    views: NonZeroUsize,
    /// Equation of the data, for --views, if its files do not name it
    #[arg(long, value_name = "NAME")]
    equation: Option<Equation>,
}

/// The options of `evaluate score`.
#[derive(clap::Args, Clone, Debug)]
pub struct ScoreOptions {
    #[command(flatten)]
    starts: StartOptions,
    #[command(flatten)]
    views: ViewOptions,
    /// Samples of each rollout, of a corrector or a student: also score their mean, their distribution and its spread
    #[arg(long, value_name = "N", default_value = "1")]
    members: NonZeroUsize,
    #[command(flatten)]
    search: SearchOptions,
}

/// The options of `evaluate predict`.
#[derive(clap::Args, Clone, Debug)]
pub struct PredictOptions {
    #[command(flatten)]
    steps: StepOptions,
    #[command(flatten)]
    views: ViewOptions,
}

/// Test-time search.
#[derive(clap::Args, Clone, Debug)]
pub struct SearchOptions {
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
    critic: Option<PathBuf>,
    /// Subtract from the reward this much times the change of conserved means and the excess over bounds that the
    /// equation never crosses
    #[arg(long, value_name = "X", requires = "search", value_parser = not_negative)]
    penalty: Option<f64>,
}

fn not_negative(text: &str) -> std::result::Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| "not a number".to_string())?;
    if value >= 0.0 && value.is_finite() { Ok(value) } else { Err("must be 0 or more".into()) }
}

impl SearchOptions {
    /// Returns the requested search, if any.
    fn search(&self) -> Option<Search> {
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
}

impl StepOptions {
    /// Requests a single rollout of each trajectory.
    fn request(&self) -> RolloutRequest {
        RolloutRequest {
            steps: self.steps,
            stride: self.stride,
            starts: 1,
            from: 0,
            max_trajectories: None,
            views: 1,
            equation: None,
            members: 1,
            search: None,
        }
    }
}

impl StartOptions {
    /// Requests rollouts from several start frames.
    pub fn request(&self) -> RolloutRequest {
        let Self { starts, from, max_trajectories, .. } = *self;
        RolloutRequest { starts, from, max_trajectories, ..self.steps.request() }
    }
}

impl ViewOptions {
    fn add_to(&self, request: RolloutRequest) -> RolloutRequest {
        RolloutRequest { views: self.views.get(), equation: self.equation, ..request }
    }
}

impl PredictOptions {
    /// Requests a single rollout of each trajectory.
    pub fn request(&self) -> RolloutRequest {
        self.views.add_to(self.steps.request())
    }
}

impl ScoreOptions {
    /// Returns the rollouts to score and the critic. Errors: 2 for a critic without its reward or vice versa.
    pub fn request(&self) -> Result<(RolloutRequest, Option<&PathBuf>)> {
        let critic = self.search.critic.as_ref();
        match (self.search.reward == Some(Reward::Critic), critic) {
            (true, None) => {
                Err(Error::usage("--reward critic: add --critic RUN, of train-stage critic"))
            }
            (false, Some(_)) => Err(Error::usage("--critic: add --reward critic, which uses it")),
            _ => {
                let (members, search) = (self.members.get(), self.search.search());
                let request = self.views.add_to(self.starts.request());
                Ok((RolloutRequest { members, search, ..request }, critic))
            }
        }
    }
}
