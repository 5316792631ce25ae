//! Evaluation of a model of a steady problem, beside two predictions that need no model: the mean of the
//! training solutions, point by point, and the solution of the training sample whose input is nearest.
//! Both are taken from the same parameter value where training has it, else from all of training.

use super::trained::TrainedSteady;
use crate::pde::evaluate::errors::{FieldErrors, Sums};
use crate::pde::evaluate::pictures::{self, Picture};
use crate::pde::evaluate::protocol::Trained;
use crate::pde::evaluate::spectrum::Spectrum;
use crate::regression::task::Preparation;
use data::fields::parameter::Parameter;
use data::fields::split_set::TrajectorySet;
use rayon::prelude::*;
use serde::Serialize;
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::Path;
use unix::{Error, Result};

/// What is compared with the truth, and what it is.
const MODELS: [(&str, &str); 3] = [
    ("steady", "the model"),
    ("mean", "the mean of the training solutions of the parameter value, point by point"),
    (
        "nearest",
        "the solution of the training sample of the parameter value whose input is nearest",
    ),
];

/// A row of the table: NRMSE by what predicted.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SteadyRow {
    /// The regime, e.g. `beta=1`; `mean` for the mean of the regimes.
    pub regime: String,
    /// Number of samples.
    pub samples: usize,
    /// The model.
    pub steady: f64,
    /// The mean of the training solutions.
    pub mean: f64,
    /// The solution of the nearest training sample.
    pub nearest: f64,
}

/// The errors of one parameter value.
struct Regime {
    parameter: Parameter,
    samples: usize,
    /// In the order of [`MODELS`].
    errors: [FieldErrors; 3],
}

/// The result.
pub struct SteadyEvaluation {
    regimes: Vec<Regime>,
    /// The samples of the median and of the largest error of each regime: name, truth, prediction.
    examples: Vec<(Parameter, Vec<Example>)>,
    grid: Vec<usize>,
    states: usize,
}

struct Example {
    name: String,
    truth: Vec<f32>,
    prediction: Vec<f32>,
}

/// One sample to be judged.
struct Sample<'a> {
    parameter: &'a Parameter,
    input: Vec<f32>,
    truth: Vec<f32>,
    /// Squared distance and number of the nearest training sample so far.
    nearest: (f64, usize),
}

/// Judges a model on `set`, at most `limit` samples of each parameter value, with the training split for
/// the baselines. `done` is asked after every sample that was read, and may end it.
///
/// Errors: 65 when there is nothing to judge or to compare with.
pub fn evaluate_steady(
    model: &TrainedSteady,
    set: &TrajectorySet,
    train: &TrajectorySet,
    limit: Option<usize>,
    done: impl Fn() -> Result<()>,
) -> Result<SteadyEvaluation> {
    model.require_fields_of(set)?;
    model.require_fields_of(train)?;
    if set.is_empty() || train.is_empty() {
        return Err(Error::data(format!("the {} or the training split is empty", set.name())));
    }
    let preparation = model.preparation();
    let regimes = regimes_of(set, limit);
    let mut result = SteadyEvaluation {
        regimes: Vec::new(),
        examples: Vec::new(),
        grid: preparation.patches[1].grid().to_vec(),
        states: preparation.patches[1].channels(),
    };
    let spectrum = Spectrum::new(&result.grid, result.states);
    for (parameter, members) in regimes {
        let mut samples = Vec::with_capacity(members.len());
        for &member in &members {
            done()?;
            let [input, truth] = read(set, member, preparation)?;
            let nearest = (f64::INFINITY, 0);
            samples.push(Sample { parameter: set.entry(member).parameter, input, truth, nearest });
        }
        let mean = compare_with_training(&mut samples, &parameter, train, preparation, &done)?;
        let inputs: Vec<Vec<f32>> = samples.iter().map(|s| s.input.clone()).collect();
        let parameters: Vec<&Parameter> = samples.iter().map(|s| s.parameter).collect();
        let found = model.solve(&inputs, &parameters)?;
        let mut errors = [(); 3].map(|()| FieldErrors::default());
        let mut order = Vec::with_capacity(samples.len());
        for (at, (sample, found)) in samples.iter().zip(&found).enumerate() {
            let [_, nearest] = read(train, sample.nearest.1, preparation)?;
            for (errors, prediction) in errors.iter_mut().zip([found, &mean, &nearest]) {
                errors.add(prediction, &sample.truth, &spectrum);
            }
            let mut own = FieldErrors::default();
            own.add(found, &sample.truth, &spectrum);
            order.push((own.errors().nrmse(), at));
        }
        order.sort_by(|a, b| a.0.total_cmp(&b.0));
        let shown = [("median", order[(order.len() - 1) / 2]), ("largest", order[order.len() - 1])];
        let example = |(name, (error, at)): (&str, (f64, usize))| Example {
            name: format!("steady, {name} error {error:.3}"),
            truth: samples[at].truth.clone(),
            prediction: found[at].clone(),
        };
        result.examples.push((parameter.clone(), shown.map(example).into()));
        result.regimes.push(Regime { parameter, samples: samples.len(), errors });
    }
    Ok(result)
}

/// Input and solution of a sample.
fn read(set: &TrajectorySet, i: usize, preparation: &Preparation) -> Result<[Vec<f32>; 2]> {
    let mut field = vec![0.0; set.shape().frame_len()];
    set.read(i, &mut field)?;
    Ok([0, 1].map(|part| preparation.part(&field, part)))
}

/// The samples of each parameter value, values ascending.
fn regimes_of(set: &TrajectorySet, limit: Option<usize>) -> Vec<(Parameter, Vec<usize>)> {
    let mut regimes: Vec<(Parameter, Vec<usize>)> = Vec::new();
    for i in 0..set.len() {
        let parameter = set.entry(i).parameter;
        let at = regimes.iter().position(|(known, _)| known.is_same_regime(parameter));
        let at = at.unwrap_or_else(|| {
            regimes.push((parameter.clone(), Vec::new()));
            regimes.len() - 1
        });
        if limit.is_none_or(|limit| regimes[at].1.len() < limit) {
            regimes[at].1.push(i);
        }
    }
    regimes.retain(|(_, members)| !members.is_empty());
    regimes.sort_by(|(a, _), (b, _)| a.value.total_cmp(&b.value));
    regimes
}

/// Finds the nearest training sample of each of `samples`, and the mean of the training solutions. Reads
/// the training split once, one sample at a time.
fn compare_with_training(
    samples: &mut [Sample],
    parameter: &Parameter,
    train: &TrajectorySet,
    preparation: &Preparation,
    done: impl Fn() -> Result<()>,
) -> Result<Vec<f32>> {
    let same = |i: &usize| train.entry(*i).parameter.is_same_regime(parameter);
    let mut members: Vec<usize> = (0..train.len()).filter(same).collect();
    if members.is_empty() {
        members = (0..train.len()).collect();
    }
    let mut mean = vec![0.0; preparation.patches[1].field_len()];
    for &member in &members {
        done()?;
        let [input, solution] = read(train, member, preparation)?;
        let count = members.len() as f64;
        mean.iter_mut().zip(&solution).for_each(|(m, u)| *m += f64::from(*u) / count);
        samples.par_iter_mut().for_each(|sample| {
            let pairs = sample.input.iter().zip(&input);
            let distance = pairs.map(|(a, b)| f64::from(a - b).powi(2)).sum();
            if distance < sample.nearest.0 {
                sample.nearest = (distance, member);
            }
        });
    }
    Ok(mean.into_iter().map(|m| m as f32).collect())
}

impl SteadyEvaluation {
    /// The rows of the table, one for each regime and one for their mean.
    pub fn rows(&self) -> Vec<SteadyRow> {
        let row = |regime: String, regimes: &[Regime]| {
            let [steady, mean, nearest] = [0, 1, 2].map(|model| {
                let sum: f64 = regimes.iter().map(|r| r.errors[model].errors().nrmse()).sum();
                sum / regimes.len().max(1) as f64
            });
            let samples = regimes.iter().map(|r| r.samples).sum();
            SteadyRow { regime, samples, steady, mean, nearest }
        };
        let of = |r: &Regime| row(r.parameter.to_string(), std::slice::from_ref(r));
        let mut rows: Vec<SteadyRow> = self.regimes.iter().map(of).collect();
        rows.push(row("mean".into(), &self.regimes));
        rows
    }

    /// `metrics.json`: protocol, definitions, and every quantity of every model.
    pub fn json(&self, split: &Path, set: &TrajectorySet, model: &TrainedSteady) -> Value {
        let of = |r: &Regime| {
            let mut value = json!({ "parameter": r.parameter, "samples": r.samples });
            for ((name, _), errors) in MODELS.iter().zip(&r.errors) {
                value["field"][name] = errors.quantities().into_iter().collect();
            }
            value
        };
        let models = MODELS.map(|(name, text)| (name.to_string(), json!(text)));
        json!({
            "format": "longhaul-steady-evaluation",
            "version": 1,
            "protocol": {
                "split": split,
                "split_hash": set.manifest_hash(),
                "on": set.name().to_string(),
                "grid": self.grid,
                "samples": self.regimes.iter().map(|r| r.samples).sum::<usize>(),
                "steady": Trained {
                    origin: model.origin().clone(),
                    parameters: model.parameters(),
                },
            },
            "definitions": serde_json::Map::from_iter(models),
            "regimes": self.regimes.iter().map(of).collect::<Vec<Value>>(),
        })
    }

    /// `metrics.csv`: regime, quantity, model, value.
    pub fn csv(&self) -> String {
        let mut text = String::from("regime,quantity,model,value\n");
        for regime in &self.regimes {
            for ((name, _), errors) in MODELS.iter().zip(&regime.errors) {
                for (quantity, value) in errors.quantities() {
                    // Writing to a string does not fail.
                    let _ = writeln!(text, "{},{quantity},{name},{value}", regime.parameter);
                }
            }
        }
        text
    }

    /// A picture of each regime: truth, prediction and error of two samples. None for fields on one axis.
    pub fn pictures(&self) -> Result<Vec<Picture>> {
        let &[x, y] = &self.grid[..] else { return Ok(Vec::new()) };
        let first = |u: &[f32]| -> Vec<f32> { u.iter().step_by(self.states).copied().collect() };
        let draw = |(parameter, examples): &(Parameter, Vec<Example>)| {
            let shown: Vec<(String, Vec<f32>, Vec<f32>)> = examples
                .iter()
                .map(|e| (e.name.clone(), first(&e.truth), first(&e.prediction)))
                .collect();
            let name = format!("{}-{}.png", parameter.name, parameter.value);
            Ok((name, pictures::draw_fields(&parameter.to_string(), [x, y], &shown)?))
        };
        self.examples.iter().map(draw).collect()
    }
}
