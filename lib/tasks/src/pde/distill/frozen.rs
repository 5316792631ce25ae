//! A trained corrector, or a student of one, as the frozen part of another model.

use super::{DistillTask, SampledData, Student, student_of};
use crate::pde::corrector::{Correction, CorrectorParts, CorrectorTask, Residuals};
use crate::pde::identity::hash_of_model;
use learn::dependency::Dependency;
use learn::params::{Builder, ParamSet};
use learn::task::Define;
use learn::trained::{Parts, Weights};
use std::path::PathBuf;
use tensor::Tensor;
use unix::{Context, Error, Result};

/// A frozen corrector or student, with its operator and the data.
pub(in crate::pde) struct FrozenCorrector {
    pub residuals: Residuals,
    /// The corrector, or the teacher of the student.
    pub corrector: CorrectorParts,
    /// Draws samples with the frozen layers.
    pub correction: Correction,
    /// The dependency that models trained on its samples record.
    pub dependency: Dependency,
    scope: &'static str,
    weights: Vec<(String, Tensor)>,
}

/// Returns the path of a model that `parts` depend on. Errors (65): the path is not recorded.
fn path_of(parts: &Parts, name: &str) -> Result<PathBuf> {
    let recorded = parts.dependencies.get(name).and_then(|recorded| recorded.path.clone());
    let missing = || format!("{}: its manifest does not record where its {name} is", parts.origin);
    recorded.ok_or_else(|| Error::data(missing()))
}

impl FrozenCorrector {
    /// Opens the corrector or student of `data`, read as `parts`, and registers its layers as frozen parameters in
    /// `scope`, whose values [`FrozenCorrector::assign`] sets. `steps` is passed on to [`Residuals::open`].
    ///
    /// Errors: those of [`Residuals::open`]; 65 for a different task, or if the operator or teacher has changed.
    pub fn open(
        data: &SampledData,
        parts: &Parts,
        (scope, steps, seed): (&'static str, [usize; 2], u64),
        builder: &mut Builder,
    ) -> Result<Self> {
        let [own, other] = [CorrectorTask::SPEC.name, DistillTask::SPEC.name];
        let (student, teacher) = match &parts.task {
            task if task == own => (None, parts.clone()),
            task if task == other => {
                let teacher =
                    Parts::read(&path_of(parts, "corrector")?, Weights::Ema).context(|| {
                        format!("the corrector that {} was distilled from", parts.origin)
                    })?;
                (Some(parts.section::<Student>("model")?), teacher)
            }
            task => {
                let origin = &parts.origin;
                return Err(Error::data(format!(
                    "{origin}: task {task}, expected {own} or {other}"
                )));
            }
        };
        CorrectorParts::require_task(&teacher)?;
        let operator = path_of(&teacher, "operator")?;
        let residuals = Residuals::open(&data.of_operator(operator), steps, seed, builder)?;
        let (grid, padding) = residuals.grid();
        let corrector = CorrectorParts::of(&teacher, grid[1])?;
        residuals.require_operator(&corrector.operator, &corrector.origin.checkpoint)?;
        builder.freeze(&[format!("{scope}.*")]);
        let width = residuals.condition_width();
        let denoiser = builder.scope(scope, |b| corrector.build(b, grid, padding, width));
        let mut hash = corrector.hash.clone();
        let (correction, weights) = match &student {
            None => (corrector.correction(denoiser), corrector.weights.clone()),
            Some(student) => {
                if parts.dependencies.get("corrector").is_none_or(|recorded| recorded.hash != hash)
                {
                    return Err(Error::data(format!(
                        "{} is the student of another corrector than {}, which has changed since",
                        parts.origin.checkpoint.display(),
                        corrector.origin.checkpoint.display()
                    )));
                }
                let mut weights = parts.weights.clone();
                weights.sort_by(|a, b| a.0.cmp(&b.0));
                hash = format!("{}+{hash}", hash_of_model(student, &weights)?);
                (student_of(&corrector, student, denoiser), weights)
            }
        };
        let dependency = Dependency::new(data.corrector.canonicalize().ok(), hash);
        Ok(Self { residuals, corrector, correction, dependency, scope, weights })
    }

    /// Assigns the weights of the operators and of the corrector or student.
    pub fn assign(&self, params: &mut ParamSet) -> Result<()> {
        self.residuals.assign(params)?;
        let named =
            |(name, value): &(String, Tensor)| (format!("{}.{name}", self.scope), value.clone());
        let weights: Vec<_> = self.weights.iter().map(named).collect();
        params.frozen.assign_scope(&format!("{}.", self.scope), &weights)
    }
}
