//! `evaluate check`: checks, before a model is trained, that rollouts fit into the trajectories of a split.

use crate::pde::evaluate::options::StartOptions;
use crate::pde::evaluate::{RolloutPlan, RolloutRequest};
use crate::pde::operator::OperatorTask;
use data::fields::split::SplitName;
use data::fields::split_set::{TrajectorySet, Verify};
use learn::task::load_config;
use serde_json::json;
use std::path::PathBuf;
use std::slice::from_ref;
use unix::cli::Output;
use unix::out::Out;
use unix::{Context, Exit, Result};

/// The arguments.
#[derive(clap::Args)]
pub struct Check {
    /// Split manifest of ds-prep split
    #[arg(long, value_name = "MANIFEST")]
    data: PathBuf,
    /// Split of the manifest
    #[arg(long, value_name = "NAME", default_value_t = SplitName::Test)]
    split: SplitName,
    #[command(flatten)]
    rollouts: StartOptions,
    /// Configuration of an operator that is not trained yet; the rollouts of its training and validation must fit
    /// as well
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    output: Output,
}

/// Checks that the rollouts of an evaluation, and of the operator's training and validation, fit into the trajectories.
/// Errors: 2 if they do not, 78 for a bad configuration, 65, 66.
pub fn check(args: &Check) -> Result<Exit> {
    let request = args.rollouts.request();
    let (mut stride, mut needed) = (1, Vec::new());
    if let Some(file) = &args.config {
        let environment = |name: &str| std::env::var(name).ok();
        let config = load_config::<OperatorTask>(from_ref(file), &[], &environment)?.config;
        let longest = |numbers: &[usize]| numbers.iter().copied().max().unwrap_or(1);
        stride = longest(&config.data.strides);
        let trained = |steps| RolloutRequest { steps, stride: Some(stride), ..request };
        needed.push((SplitName::Train, trained(longest(&config.loss.horizons))));
        needed.push((SplitName::Validation, trained(config.loss.validation_steps)));
    }
    needed.push((args.split, request));
    let mut out = Out::stdout(args.output);
    for (split, request) in needed {
        let set = TrajectorySet::open(&args.data, split, Verify::Sizes)?;
        let plan = RolloutPlan::of_rollouts(&set, &request, stride)
            .context(|| format!("{}, {split}", args.data.display()))?;
        out.row(&json!({"split": split.to_string(), "rollouts": plan.count()}))?;
    }
    out.finish()
}
