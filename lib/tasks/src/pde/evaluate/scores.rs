//! Errors of every model at every step, in every space.

use super::batch::Batch;
use super::errors::Errors;
use super::spectrum::Spectrum;
use serde::{Deserialize, Serialize};

/// A model or baseline that is compared with the ground truth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, strum::IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum Method {
    /// The operator's rollout, decoded.
    Operator,
    /// The operator's rollout with a correction after every step, decoded.
    Corrector,
    /// The operator's rollout with the correction of a student after every step, decoded.
    Student,
    /// The rollout of the candidates chosen by a search.
    Search,
    /// The mean of search rollouts from copies of the initial state transformed by exact symmetries.
    SearchViews,
    /// The mean of the same number of candidates at every step.
    CandidateMean,
    /// The candidate nearest to the ground truth at every step.
    Oracle,
    /// The mean of an ensemble of samples of the evaluated model.
    Ensemble,
    /// The mean of the predictions from exactly transformed copies of the initial state.
    Views,
    /// The regression model.
    Regression,
    /// The initial state at every step.
    Persistence,
    /// The mean of the training data.
    Mean,
    /// The solution of the nearest training sample.
    Nearest,
    /// The ground truth, encoded and decoded: a lower bound on the error of any operator on these latents.
    Codec,
}

impl Method {
    /// Name of the model in files.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// Returns whether the model only serves as a comparison.
    pub fn is_baseline(self) -> bool {
        matches!(self, Self::Persistence | Self::Mean | Self::Nearest | Self::Codec)
    }
}

/// Errors of one model in one space, by step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Entry {
    space: String,
    model: Method,
    steps: Vec<Errors>,
}

/// Errors by space, model and step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Scores {
    entries: Vec<Entry>,
}

impl Scores {
    /// Computes the errors of one rollout of a batch at steps 0..=`steps`.
    pub fn of(batch: &Batch, rollout: usize, steps: usize, spectrum: &Spectrum) -> Self {
        let mut entries = Vec::new();
        for space in &batch.spaces {
            for (model, predictions) in &space.models {
                let errors = |step: usize| {
                    let (found, truth) =
                        (predictions.at(rollout, step), space.truth.at(rollout, step));
                    let errors =
                        Errors::of(found, truth, (space.name == "field").then_some(spectrum));
                    match model {
                        Method::Ensemble => {
                            let members = batch.members.iter();
                            let members: Vec<_> = members.map(|m| m.at(rollout, step)).collect();
                            errors.with_ensemble(&members, found, truth)
                        }
                        _ => errors,
                    }
                };
                let steps = (0..=steps).map(errors).collect();
                entries.push(Entry { space: space.name.into(), model: *model, steps });
            }
        }
        Self { entries }
    }

    /// Adds the errors of further rollouts.
    pub fn merge(&mut self, other: &Self) {
        if self.entries.is_empty() {
            return self.entries.clone_from(&other.entries);
        }
        for (own, other) in self.entries.iter_mut().zip(&other.entries) {
            own.steps.iter_mut().zip(&other.steps).for_each(|(own, other)| own.merge(other));
        }
    }

    /// Iterates over spaces and models with their errors by step.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Method, &[Errors])> {
        self.entries.iter().map(|e| (e.space.as_str(), e.model, e.steps.as_slice()))
    }

    /// Returns the evaluated models and baselines in the space of fields.
    pub fn models(&self) -> Vec<Method> {
        let fields = self.iter().filter(|(space, ..)| *space == "field");
        fields.map(|(_, model, _)| model).collect()
    }

    /// Returns the errors of the fields by step; None when the model was not evaluated.
    pub fn field(&self, model: Method) -> Option<&[Errors]> {
        self.iter()
            .find(|(space, own, _)| (*space, *own) == ("field", model))
            .map(|(.., steps)| steps)
    }

    /// Computes the NRMSE of the fields over whole rollouts.
    pub fn nrmse(&self, model: Method) -> Option<f64> {
        Some(rollout(self.field(model)?).nrmse())
    }
}

/// Sums the errors of a whole rollout: of steps 1 and later, or of the only state of a steady problem.
pub fn rollout(steps: &[Errors]) -> Errors {
    let mut all = Errors::default();
    steps.iter().skip(usize::from(steps.len() > 1)).for_each(|errors| all.merge(errors));
    all
}
