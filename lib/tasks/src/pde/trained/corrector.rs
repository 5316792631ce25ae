//! A trained corrector with its operator and codec: rollouts with a correction after every step.

use super::TrainedOperator;
use super::candidates::{Candidates, Source};
use super::forecast::{Forecast, Predicted};
use crate::pde::corrector::{Correction, CorrectorParts, CorrectorTask, Draws};
use crate::pde::distill::{DistillTask, Student, student_of};
use crate::pde::evaluate::{Batch, Method, RolloutPlan, RolloutRequest, Rollouts, Start};
use crate::trained::Opener;
use data::fields::field::Field;
use data::fields::parameter::Parameter;
use data::fields::split_set::TrajectorySet;
use data::fields::write::Header;
use learn::task::Define;
use learn::trained::{Origin, Parts, TrainedModel};
use std::ops::Range;
use tensor::Var;
use unix::{Error, Result};

/// Seed of the sampling noise in evaluations.
pub(super) const SEED: u64 = 0;

/// Returns an ID for each rollout that does not depend on the other rollouts in the batch.
pub(super) fn ids(set: &TrajectorySet, starts: &[Start]) -> Vec<u64> {
    let frames = set.shape().frames as u64;
    starts.iter().map(|start| start.trajectory as u64 * frames + start.frame as u64).collect()
}

/// A corrector, or a student and its teacher, with the operator and the codec of the latents.
#[derive(Clone, Debug)]
pub struct TrainedCorrector {
    /// The evaluated model, followed by its teacher if it is a student.
    stages: Vec<Stage>,
    operator: TrainedOperator,
    hash: String,
}

#[derive(Clone, Debug)]
pub(super) struct Stage {
    task: &'static str,
    model: Method,
    pub trained: TrainedModel<Correction>,
}

impl TrainedCorrector {
    /// Rolls out unnormalised latents [n, tokens, dim] to [n, steps + 1, tokens, dim]. The noise of a rollout depends
    /// on its entry in `ids` and on the ensemble member.
    fn rollout(
        &self,
        stage: &Stage,
        first: &[f32],
        parameters: &[&Parameter],
        (time, steps): (f64, usize),
        (ids, member): (&[u64], u64),
    ) -> Result<Vec<f32>> {
        let operator = self.operator.layers();
        self.operator.rollout_with(
            first,
            parameters,
            (time, steps),
            |frozen, z, features, start| {
                let operate = |z: &Var, features: &Var| operator.forward(frozen, z, features);
                let rows = &ids[start..start + z.shape()[0]];
                let rows = rows.iter().map(|id| (*id, member)).collect();
                let draws = Draws { seed: SEED, rows };
                stage.trained.run(|forward, correction| {
                    let (from, how) = ((z.clone(), features), (steps, &draws));
                    correction.rollout(forward, self.operator.scale(), from, how, operate)
                })
            },
        )
    }

    fn restore_corrector(parts: &Parts, opener: &Opener) -> Result<Self> {
        let operator = opener.dependency(parts, "operator", |parts, opener| {
            let operator = TrainedOperator::restore(parts, opener)?;
            let hash = operator.hash().to_string();
            Ok((operator, hash))
        })?;
        let ((grid, dim), width) = (operator.tokens(), operator.condition().width());
        let padding = operator.padding();
        let own = CorrectorParts::of(parts, grid[1])?;
        let channels = own.scale.channels.len();
        if channels != dim {
            return Err(Error::data(format!(
                "corrects latents with {channels} features per token, but its operator has {dim}"
            )));
        }
        let trained = parts
            .restore(opener.mode, |b| Ok(own.correction(own.build(b, grid, padding, width))))?;
        let stage = Stage { task: CorrectorTask::SPEC.name, model: Method::Corrector, trained };
        Ok(Self { stages: vec![stage], operator, hash: own.hash })
    }

    fn restore_student(parts: &Parts, opener: &Opener) -> Result<Self> {
        let (mut all, teacher) = opener.dependency(parts, "corrector", |parts, opener| {
            let all = Self::restore_corrector(parts, opener)?;
            let (teacher, hash) =
                (CorrectorParts::of(parts, all.operator.tokens().0[1])?, all.hash.clone());
            Ok(((all, teacher), hash))
        })?;
        let student: Student = parts.section("model")?;
        let (grid, width) = (all.operator.tokens().0, all.operator.condition().width());
        let padding = all.operator.padding();
        let trained = parts.restore(opener.mode, |b| {
            Ok(student_of(&teacher, &student, teacher.build(b, grid, padding, width)))
        })?;
        all.stages
            .insert(0, Stage { task: DistillTask::SPEC.name, model: Method::Student, trained });
        Ok(all)
    }
}

impl Rollouts for TrainedCorrector {
    /// Restores a corrector or a student, and the models that it depends on, from their checkpoints.
    ///
    /// Errors: 65 when checkpoints are inconsistent, or the operator or the teacher is a different one; 66 when a
    /// checkpoint cannot be found.
    fn restore(parts: &Parts, opener: &Opener) -> Result<Self> {
        match parts.task == DistillTask::SPEC.name {
            true => Self::restore_student(parts, opener),
            false => Self::restore_corrector(parts, opener),
        }
    }

    fn models(&self) -> Vec<(&'static str, Origin, usize)> {
        let of = |Stage { task, trained, .. }: &Stage| {
            (*task, trained.origin.clone(), trained.params.count())
        };
        self.stages.iter().map(of).chain(self.operator.models()).collect()
    }

    fn shape(&self) -> (&[usize], usize) {
        self.operator.shape()
    }

    fn latent(&self) -> Option<[usize; 2]> {
        self.operator.latent()
    }

    fn operator(&self) -> Option<&TrainedOperator> {
        Some(&self.operator)
    }

    fn plan(&self, set: &TrajectorySet, request: &RolloutRequest) -> Result<RolloutPlan> {
        let plan = self.operator.plan(set, &RolloutRequest { search: None, ..*request })?;
        Ok(RolloutPlan {
            members: request.members,
            search: request.search,
            equation: request.equation,
            ..plan
        })
    }

    fn rollouts(
        &self,
        set: &TrajectorySet,
        _: Option<&TrajectorySet>,
        plan: &RolloutPlan,
        starts: &[Start],
    ) -> Result<Batch> {
        let ids = ids(set, starts);
        let (parameters, time) = (plan.parameters(set, starts), plan.time_step(set));
        let steps = (time, plan.steps);
        let searched = match &plan.search {
            None => None,
            Some(search) => {
                let source = Source::Samples(&self.stages[0], ids.clone());
                Some(Candidates::new(&self.operator, source, *search, plan, set, starts)?)
            }
        };
        let mut forecasts = Vec::new();
        for stage in &self.stages {
            let (parameters, ids) = (&parameters, &ids);
            forecasts.push(Forecast::new(stage.model, move |first: &[f32], member| {
                let states = self.rollout(stage, first, parameters, steps, (ids, member))?;
                let denoisings = stage.trained.model.method.evaluations();
                Ok(Predicted::plain(states, ids.len() * steps.1, denoisings))
            }));
        }
        forecasts.push(self.operator.forecast(&parameters, time, plan.steps));
        if let Some(searched) = &searched {
            forecasts.extend(searched.forecasts());
        }
        self.operator.compare(set, plan, starts, &forecasts)
    }

    fn output(&self, inputs: &Field, request: &RolloutRequest) -> Result<Header> {
        self.operator.output(inputs, request)
    }

    /// Samples one rollout from the first frame of every trajectory.
    fn predict(
        &self,
        inputs: &Field,
        which: Range<usize>,
        request: &RolloutRequest,
    ) -> Result<Vec<f32>> {
        let ids: Vec<u64> = which.clone().map(|trajectory| trajectory as u64).collect();
        let parameter = inputs.only_regime()?;
        let time = self.operator.time_step(&parameter, request)?;
        let parameters = vec![&parameter; which.len()];
        self.operator.predict_with(inputs, which, request, |first: &[f32]| {
            self.rollout(&self.stages[0], first, &parameters, (time, request.steps), (&ids, 0))
        })
    }
}
