//! Evaluates a model of fields by rollouts from every start frame of every trajectory.

use super::batch::{Batch, Cost, Frames};
use super::errors::Errors;
use super::options::ScoreOptions;
use super::plan::{RolloutPlan, Start};
use super::protocol::Protocol;
use super::result::{Evaluation, Regime, RolloutSums};
use super::rollouts::Rollouts;
use super::scores::{Method, Scores, rollout};
use super::spectrum::Spectrum;
use super::{pictures, report};
use crate::evaluation::ScoreRequest;
use crate::pde::TrainedCritic;
use ::report::evaluation::Subject;
use clap::FromArgMatches;
use data::fields::split::SplitName;
use data::fields::split_set::{TrajectorySet, Verify};
use data::fields::stats;
use data::inputs::InputFile;
use data::records::RecordSplit;
use learn::evaluate::{
    self, Block, Evaluator, Losses, Model, Results, Shown, check_stop, not_finite, subject,
};
use learn::score::Bits;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use serde_json::{Map, json};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use unix::text::json_pretty;
use unix::{Error, Result};

/// Number of states computed per batch of rollouts.
const BATCH: usize = 1024;

/// Scores a model on rollouts.
pub(crate) struct RolloutEvaluator {
    pub(super) model: Box<dyn Rollouts>,
    /// The split manifest.
    manifest: PathBuf,
    pub(super) set: TrajectorySet,
    /// The training split, if a baseline needs it.
    train: Option<TrajectorySet>,
    validation: TrajectorySet,
    pub(super) plan: RolloutPlan,
    pub(super) protocol: Protocol,
    spectrum: Spectrum,
    /// The regime index and the start of each rollout.
    starts: Vec<(usize, Start)>,
}

/// Opens the evaluation of a model of fields.
///
/// Errors: 2 for a search, members or views that the model does not support, and for rollouts that do not fit; 65, 66.
pub(crate) fn open(
    model: Box<dyn Rollouts>,
    request: &ScoreRequest,
) -> Result<Box<dyn evaluate::Evaluation>> {
    request.opener.require_known(request.parts, &[])?;
    if RecordSplit::is_manifest(request.data) {
        let manifest = request.data.display();
        return Err(Error::usage(format!("{manifest} has records, but the model reads fields")));
    }
    let options = ScoreOptions::from_arg_matches(request.options).map_err(Error::bug)?;
    let (wanted, critic) = options.request()?;
    let open = |split| TrajectorySet::open(request.data, split, Verify::Sizes);
    let set = open(request.split)?;
    let train = model.needs_training_data().then(|| open(SplitName::Train)).transpose()?;
    let validation = open(SplitName::Validation)?;
    let mut plan = model.plan(&set, &wanted)?;
    if plan.members < wanted.members {
        return Err(Error::usage("--members: only the samples of a corrector or a student differ"));
    }
    if plan.search.is_none() && wanted.search.is_some() {
        return Err(Error::usage("--search: evaluate an operator, a corrector or a student"));
    }
    if let Some((path, operator)) = critic.zip(model.operator()) {
        plan.critic = Some(Arc::new(TrainedCritic::open(path, request.opener, operator)?));
    }
    let of_regime = |(number, regime)| {
        plan.rollouts(regime).into_iter().map(move |start| (number, start)).collect::<Vec<_>>()
    };
    let starts = plan.regimes.iter().enumerate().flat_map(of_regime).collect();
    let (grid, channels) = model.shape();
    Ok(Box::new(RolloutEvaluator {
        protocol: Protocol::of(&set, &plan, &*model),
        spectrum: Spectrum::new(grid, channels),
        manifest: request.data.to_path_buf(),
        model,
        set,
        train,
        validation,
        plan,
        starts,
    }))
}

/// The errors of one rollout, and the spectra of its last state.
#[derive(Serialize, Deserialize)]
pub(crate) struct MeasuredRollout {
    scores: Scores,
    sums: RolloutSums,
    spectrum: Vec<Bits>,
    spectra: Vec<(Method, Vec<Bits>)>,
}

/// The errors of a batch of rollouts of one regime.
#[derive(Serialize, Deserialize)]
pub(crate) struct RegimeRollouts {
    regime: usize,
    /// The index of each rollout's start frame, and the errors of the rollout.
    rollouts: Vec<(usize, MeasuredRollout)>,
    costs: Vec<Cost>,
}

impl RolloutEvaluator {
    /// Computes ground truth, predictions and baselines for rollouts of one regime.
    pub(super) fn rollouts(&self, starts: &[Start]) -> Result<Batch> {
        self.model.rollouts(&self.set, self.train.as_ref(), &self.plan, starts)
    }

    /// Returns the regime and the rollout of an item.
    fn place(&self, item: u64) -> (usize, Start) {
        self.starts[item as usize]
    }

    /// Measures every rollout of a batch. Uses all threads.
    fn measured(&self, batch: &Batch, rollouts: usize) -> Vec<MeasuredRollout> {
        let (plan, spectrum) = (&self.plan, &self.spectrum);
        let one = |number: usize| {
            let energies = |frames: &Frames| {
                let state = frames.at(number, plan.steps).iter().map(|u| f64::from(*u));
                spectrum.energies(state.collect()).into_iter().map(Bits).collect()
            };
            let scores = Scores::of(batch, number, plan.steps, spectrum);
            let fields = scores.iter().filter(|(space, ..)| *space == "field");
            let all: Vec<Errors> = fields.map(|(.., steps)| rollout(steps)).collect();
            MeasuredRollout {
                sums: RolloutSums {
                    elements: all[0].elements(),
                    target: Bits(all[0].sums()[1]),
                    squared: all.iter().map(|errors| Bits(errors.sums()[0])).collect(),
                    variance: batch.variances.get(number).map(|variance| Bits(*variance)),
                    rank_correlation: batch.rank_correlations.get(number).map(|rank| Bits(*rank)),
                },
                scores,
                spectrum: energies(&batch.field().truth),
                spectra: batch
                    .predictions()
                    .map(|(model, frames)| (*model, energies(frames)))
                    .collect(),
            }
        };
        (0..rollouts).into_par_iter().map(one).collect()
    }
}

/// Adds the energies of one rollout to the sums over rollouts.
fn add(sums: &mut Vec<Bits>, energies: &[Bits]) {
    sums.resize(energies.len(), Bits(0.0));
    sums.iter_mut().zip(energies).for_each(|(sum, energy)| sum.0 += energy.0);
}

impl Evaluator for RolloutEvaluator {
    type Part = RegimeRollouts;
    type Sums = Evaluation;

    fn subject(&self) -> Subject {
        let data = (&*self.manifest, self.set.manifest_hash());
        let mut subject = subject((self.model.models()[0].0, "nrmse"), data, self.set.name());
        subject.description = self.protocol.to_string();
        if let Ok(serde_json::Value::Object(protocol)) = serde_json::to_value(&self.protocol) {
            subject.protocol.extend(protocol);
        }
        let Protocol { views, members, .. } = self.protocol;
        subject.settings.extend([
            ("views".into(), views.into()),
            ("members".into(), members.into()),
            ("search".into(), json!(self.plan.search)),
            ("latent".into(), json!(self.model.latent())),
        ]);
        subject
    }

    fn models(&self) -> Vec<Model> {
        let critic = self.plan.critic.iter().map(|critic| critic.model());
        let has_latents = self.model.latent().is_some();
        let of = |(task, origin, parameters)| {
            // The data of an operator are latents; the hash of the fields is that of its codec.
            let is_compared = !has_latents || task == "codec";
            let data = is_compared.then(|| self.set.manifest_hash().to_string());
            Model { task, origin, parameters, data }
        };
        self.model.models().into_iter().chain(critic).map(of).collect()
    }

    fn noun(&self) -> &'static str {
        if self.plan.steps == 0 { "samples" } else { "rollouts" }
    }

    fn items(&self) -> u64 {
        self.starts.len() as u64
    }

    fn block_end(&self, first: u64) -> u64 {
        let regime = self.place(first).0;
        let end = self.starts.partition_point(|(other, _)| *other <= regime) as u64;
        end.min(first + (BATCH / (self.plan.steps + 1)).max(1) as u64)
    }

    fn inputs(&self) -> Vec<InputFile> {
        let all = [&self.set, &self.validation].into_iter().chain(&self.train);
        all.flat_map(TrajectorySet::input_files).collect()
    }

    fn loss_name(&self) -> &'static str {
        "nrmse"
    }

    fn cluster(&self, item: u64) -> u64 {
        self.place(item).1.trajectory as u64
    }

    fn shown(&self) -> usize {
        4
    }

    fn measure(&self, block: Range<u64>) -> Result<Block<RegimeRollouts>> {
        let own = &self.starts[block.start as usize..block.end as usize];
        let starts: Vec<Start> = own.iter().map(|(_, start)| *start).collect();
        let batch = self.rollouts(&starts)?;
        let measured = self.measured(&batch, starts.len());
        let losses = measured.iter().map(|one| one.sums.nrmse(0).into()).collect();
        let frames = &self.plan.starts;
        let number = |start: &Start| frames.iter().position(|frame| *frame == start.frame);
        let rollouts = starts.iter().map(|start| number(start).unwrap_or(0)).zip(measured);
        let part =
            RegimeRollouts { regime: own[0].0, rollouts: rollouts.collect(), costs: batch.costs };
        Ok(Block { part, losses })
    }

    fn add(&self, result: &mut Evaluation, part: RegimeRollouts) {
        result.steps = self.plan.steps;
        while result.regimes.len() <= part.regime {
            let planned = &self.plan.regimes[result.regimes.len()];
            result.regimes.push(Regime {
                parameter: planned.parameter.clone(),
                trajectories: planned.trajectories.len(),
                by_start: vec![Scores::default(); self.plan.starts.len()],
                spectrum: Vec::new(),
                spectra: Vec::new(),
                costs: Vec::new(),
                sums: Vec::new(),
            });
        }
        let regime = &mut result.regimes[part.regime];
        for (start, measured) in part.rollouts {
            regime.sums.push(measured.sums);
            add(&mut regime.spectrum, &measured.spectrum);
            for (at, (model, energies)) in measured.spectra.iter().enumerate() {
                if regime.spectra.len() == at {
                    regime.spectra.push((*model, Vec::new()));
                }
                add(&mut regime.spectra[at].1, energies);
            }
            regime.by_start[start].merge(&measured.scores);
        }
        for cost in part.costs {
            match regime.costs.iter_mut().find(|own| own.model == cost.model) {
                None => regime.costs.push(cost),
                Some(own) => own.add(&cost),
            }
        }
    }

    fn finish(&self, sums: &Evaluation, _: &Losses) -> Result<Results> {
        let validation_rms = Some(Bits(stats::rms(&self.validation, check_stop)?));
        let result = Evaluation { validation_rms, ..sums.clone() };
        let times = json_pretty(&report::times(&result)).map_err(Error::bug)?;
        let mut files = vec![("times.json".into(), times.into_bytes())];
        for (name, png) in pictures::draw(&result, self, check_stop)? {
            files.push((PathBuf::from("pictures").join(name), png));
        }
        Ok(Results {
            scores: report::scores(&result, 0..result.regimes.len()),
            groups: report::groups(&result),
            details: report::details(&result),
            rows: report::rows(&result),
            files,
            summary: Some(report::summary(&result)),
            failed: not_finite(result.diverged(), result.rollouts(), self.noun()),
            ..Results::default()
        })
    }

    fn show(&self, _: &Evaluation, item: u64) -> Result<Shown> {
        let (regime, start) = self.place(item);
        let file =
            self.set.field_of(start.trajectory).map(|field| field.path().display().to_string());
        let fields = Map::from_iter([
            ("parameter".into(), self.plan.regimes[regime].parameter.to_string().into()),
            ("file".into(), json!(file)),
            ("trajectory".into(), start.trajectory.into()),
            ("start_frame".into(), start.frame.into()),
        ]);
        let picture = pictures::of_rollout(self, start)?;
        Ok(Shown { fields, picture, ..Shown::default() })
    }
}
