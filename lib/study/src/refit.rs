//! Retrains the best configuration of a study with new seeds. A refit is itself a study, with fixed parameters.

use crate::config::{Round, StudyConfig};
use crate::pruners::Pruner;
use crate::record::Record;
use crate::samplers::Sampler;
use crate::space::{Parameter, Space};
use crate::study::Study;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use unix::{Error, Exit, Result, small};

/// Maximum size of a task's schema in bytes.
const MAX_BYTES: u64 = 1 << 26;

/// Settings of a refit.
pub struct Refit<'a> {
    /// The trial whose configuration is retrained.
    pub trial: &'a Record,
    /// Number of seeds.
    pub seeds: u64,
    /// Configuration keys that override the trial's, with their values.
    pub overrides: BTreeMap<String, Value>,
}

impl Study {
    /// The best complete trial of a round, by default the last round. Errors: 75 if the round has not ended; 1 if it
    /// has no complete trial.
    pub fn winner(&self, round: Option<usize>) -> Result<&Record> {
        let round = round.unwrap_or(self.rounds().len() - 1);
        let name = &self.rounds()[round].name;
        let space = self.space_of(round)?;
        if !space.is_some_and(|space| self.has_ended(round, &space)) {
            let text = format!("round {name} has not ended; run workers, or choose a trial");
            return Err(Error::new(Exit::Again, text));
        }
        let best = self.ranking(round).first().copied();
        best.ok_or_else(|| Error::failure(format!("no trial of round {name} is complete")))
    }

    /// Creates the study of a refit in `folder`, or opens it if it exists. Its seeds follow those of the search: the
    /// best trial was selected in part for its seed, so that seed would bias the result. Errors: those of
    /// [`Study::create`].
    pub fn create_refit(&self, refit: &Refit, folder: &Path) -> Result<Self> {
        let config = self.config();
        let round = self.round_of(refit.trial.number).unwrap_or(0);
        let overridden = |name: &str| {
            let key = config.key(name);
            refit.overrides.keys().any(|other| config.key(other) == key)
        };
        let mut values = self.rounds()[round].fidelity.clone();
        values.extend(refit.trial.start.params.clone());
        values.retain(|name, _| !overridden(name));
        values.extend(refit.overrides.clone());
        let fixed = |value: Value| Parameter::Fixed { value, when: BTreeMap::new() };
        let space = values.into_iter().map(|(name, value)| (name, fixed(value))).collect();
        let trials: u64 = self.rounds().iter().map(|round| round.trials).sum();
        let config = StudyConfig {
            name: Some(format!("{}, refit", self.name())),
            seed: config.seed.wrapping_add(trials),
            space: Space(space),
            sampler: Sampler::Random,
            pruner: Pruner::None,
            trials: None,
            rounds: vec![Round { name: "refit".into(), trials: refit.seeds, ..Round::default() }],
            ..config.clone()
        };
        let schema = self.folder().join("schema.json");
        let advice = "copy it from another study of this task";
        let schema = small::read_json::<Value>(&schema, MAX_BYTES, advice)?;
        Self::create_with(folder, config, schema, "the configuration of the refit")
    }

    /// The other complete trials in the round of `trial` that are at most `margin` worse than it, the best first.
    pub fn within(&self, trial: &Record, margin: f64) -> Vec<&Record> {
        let sign = self.config().direction.sign();
        let value =
            |record: &Record| record.end.as_ref().and_then(|end| end.value).map(|v| sign * v);
        let Some(limit) = value(trial).map(|value| value + margin) else { return Vec::new() };
        let ranking = self.ranking(self.round_of(trial.number).unwrap_or(0)).into_iter();
        let others = ranking.filter(|record| record.number != trial.number);
        others.filter(|record| value(record).is_some_and(|value| value <= limit)).collect()
    }
}

/// Mean and spread over seeds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// Number of seeds.
    pub count: usize,
    /// Mean.
    pub mean: f64,
    /// Sample standard deviation (n - 1); `None` for a single seed.
    pub std: Option<f64>,
    /// Smallest value.
    pub low: f64,
    /// Largest value.
    pub high: f64,
}

impl Spread {
    /// `None` without values.
    pub fn of(values: &[f64]) -> Option<Self> {
        let count = values.len();
        let mean = values.iter().sum::<f64>() / count as f64;
        let squares = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>();
        (count > 0).then(|| Self {
            count,
            mean,
            std: (count > 1).then(|| (squares / (count - 1) as f64).sqrt()),
            low: values.iter().copied().fold(f64::INFINITY, f64::min),
            high: values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spread_of_known_values() {
        let found = Spread::of(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]).unwrap();
        assert_eq!((found.count, found.mean, found.low, found.high), (8, 5.0, 2.0, 9.0));
        // The squared deviations sum to 32.
        assert!((found.std.unwrap() - (32.0_f64 / 7.0).sqrt()).abs() < 1e-15);
        assert_eq!(Spread::of(&[3.0]).unwrap().std, None);
        assert_eq!(Spread::of(&[]), None);
    }
}
