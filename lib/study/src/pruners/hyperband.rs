use super::halving::Halving;
use crate::trial::Trial;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Hyperband (Li et al. 2018): brackets of successive halving that start at different rungs. The bracket of a trial is
/// derived from its number and the name of the study, as in Optuna.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Hyperband {
    /// The step at which the first rung ends.
    #[serde(default = "crate::space::one")]
    #[schemars(range(min = 1))]
    pub min_resource: u64,
    /// The last step of a trial.
    pub max_resource: u64,
    /// Reduction factor: one in this many trials is promoted.
    #[serde(default = "crate::config::three")]
    #[schemars(range(min = 2))]
    pub reduction: u64,
}

impl Hyperband {
    pub(super) fn violations(&self) -> Vec<(String, String)> {
        let too_small = self.max_resource < self.min_resource;
        let text = format!("is below min_resource {}", self.min_resource);
        too_small.then(|| ("max_resource".to_string(), text)).into_iter().collect()
    }

    pub(super) fn prunes(&self, study: &str, trial: &Trial, others: &[Trial]) -> bool {
        let (budgets, reduction) = (self.budgets(), self.reduction.max(2));
        let of = |trial: &Trial| bracket(study, trial.number, &budgets);
        let own = of(trial);
        let others: Vec<&Trial> = others.iter().filter(|other| of(other) == own).collect();
        let early = own as u32;
        let min_resource = self.min_resource;
        Halving { min_resource, reduction, early, bootstrap: 0 }.prunes(trial, &others)
    }

    /// Returns the budget of each bracket; trials are assigned to brackets in proportion to it.
    fn budgets(&self) -> Vec<u64> {
        let reduction = self.reduction.max(2) as f64;
        let ratio = self.max_resource as f64 / self.min_resource.max(1) as f64;
        let brackets = (ratio.max(1.0).ln() / reduction.ln()).floor() as u32 + 1;
        let budget = |bracket: u32| {
            let halvings = brackets - 1 - bracket;
            let count = f64::from(brackets) * reduction.powi(halvings as i32);
            (count / f64::from(halvings + 1)).ceil() as u64
        };
        (0..brackets).map(budget).collect()
    }
}

/// Returns the bracket of a trial.
fn bracket(study: &str, number: u64, budgets: &[u64]) -> usize {
    let hash = u64::from(crc32fast::hash(format!("{study}_{number}").as_bytes()));
    let mut left = hash % budgets.iter().sum::<u64>().max(1);
    let beyond = budgets.iter().take_while(|budget| match left.checked_sub(**budget) {
        Some(less) => {
            left = less;
            true
        }
        None => false,
    });
    beyond.count()
}
