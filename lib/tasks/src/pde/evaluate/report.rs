//! The result of an evaluation as files and rows.

use super::errors::{Quantities, Sums};
use super::protocol::{DEFINITIONS, Protocol};
use super::scores::{AllScores, Model, Scores};
use super::{Evaluation, Regime};
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::fmt::Write;

/// A row of the table for people: NRMSE of fields over whole rollouts, that of each start frame by
/// itself and then averaged, so that late and quiet states count as much as early ones.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The regime, e.g. `nu=0.001`; `mean` for the mean of the regimes.
    pub regime: String,
    /// Steps of a rollout.
    pub steps: usize,
    /// Number of rollouts.
    pub rollouts: usize,
    /// The operator's first step alone.
    pub one_step: Option<f64>,
    /// The operator.
    pub operator: Option<f64>,
    /// The start stays.
    pub persistence: Option<f64>,
    /// The mean of the training data.
    pub mean: Option<f64>,
    /// The codec alone: the floor.
    pub codec: Option<f64>,
    /// Operator over persistence: below 1 the operator is the better one.
    pub ratio: Option<f64>,
}

/// The rows of a result, one for each regime and one for their mean.
pub fn rows(result: &Evaluation) -> Vec<Row> {
    let mean_over = |regimes: &[Regime], value: &dyn Fn(&Regime) -> Option<f64>| {
        let values: Option<Vec<f64>> = regimes.iter().map(value).collect();
        values.map(|values| values.iter().sum::<f64>() / values.len().max(1) as f64)
    };
    let row = |regime: String, regimes: &[Regime]| {
        let [operator, persistence, mean, codec] =
            [Model::Operator, Model::Persistence, Model::Mean, Model::Codec]
                .map(|model| mean_over(regimes, &|regime| of_starts(regime, model)));
        let first =
            |scores: &AllScores| Some(scores.field.at(Model::Operator, 1)?.errors().nrmse());
        let one_step = mean_over(regimes, &|regime| mean_of_starts(regime, first));
        let ratio = operator.zip(persistence).map(|(o, p)| o / p);
        let rollouts = regimes.iter().map(|regime| regime.rollouts).sum();
        let steps = result.steps;
        Row { regime, steps, rollouts, one_step, operator, persistence, mean, codec, ratio }
    };
    let of_regime = |r: &Regime| row(r.parameter.to_string(), std::slice::from_ref(r));
    let mut rows: Vec<Row> = result.regimes.iter().map(of_regime).collect();
    rows.push(row("mean".into(), &result.regimes));
    rows
}

/// The mean over start frames of what `value` finds in the errors of each.
pub(super) fn mean_of_starts(
    regime: &Regime,
    value: impl Fn(&AllScores) -> Option<f64>,
) -> Option<f64> {
    let values: Option<Vec<f64>> = regime.by_start.iter().map(value).collect();
    values.map(|values| values.iter().sum::<f64>() / values.len().max(1) as f64)
}

/// NRMSE of whole rollouts, averaged over start frames.
pub(super) fn of_starts(regime: &Regime, model: Model) -> Option<f64> {
    mean_of_starts(regime, |scores| nrmse(scores, model))
}

/// NRMSE of whole rollouts, averaged over start frames, by parameter value:
/// `{"nu": {"0.001": {"operator": …, "persistence": …, "codec": …}, …}, "steps": 16}`.
pub fn summary(result: &Evaluation) -> Value {
    let mut summary = Map::new();
    for regime in &result.regimes {
        let of_name = summary.entry(&regime.parameter.name).or_insert_with(|| json!({}));
        of_name[regime.parameter.value.to_string()] = json!({
            "operator": of_starts(regime, Model::Operator),
            "persistence": of_starts(regime, Model::Persistence),
            "codec": of_starts(regime, Model::Codec),
        });
    }
    summary.insert("steps".into(), json!(result.steps));
    Value::Object(summary)
}

/// `metrics.json`: protocol, definitions, and every quantity of every model over the rollout and by
/// step, step 0 being the start.
pub fn metrics_json(result: &Evaluation, protocol: &Protocol) -> Value {
    let definitions: Map<String, Value> =
        DEFINITIONS.iter().map(|(name, text)| (name.to_string(), json!(text))).collect();
    let regimes: Vec<Value> = result
        .regimes
        .iter()
        .map(|regime| {
            let mut value = json!({
                "parameter": regime.parameter,
                "trajectories": regime.trajectories,
                "rollouts": regime.rollouts,
                "nrmse_of_starts": of_all_starts(regime),
            });
            nest(&mut value, told(&regime.scores, scale(result)));
            value
        })
        .collect();
    let mut overall = json!({ "mean_nrmse_of_regimes": mean_of_regimes(result) });
    nest(&mut overall, told(&result.overall, scale(result)));
    json!({
        "format": "longhaul-evaluation",
        "version": 1,
        "protocol": protocol,
        "definitions": definitions,
        "overall": overall,
        "regimes": regimes,
    })
}

/// `metrics.csv`: the same numbers, one in a line: regime, space, quantity, model, step, value. The
/// step is a number or `rollout`; a value that is not finite is left out.
pub fn metrics_csv(result: &Evaluation) -> String {
    let mut text = String::from("regime,space,quantity,model,step,value\n");
    let regimes = result.regimes.iter().map(|r| (r.parameter.to_string(), &r.scores));
    for (regime, scores) in regimes.chain([("all".to_string(), &result.overall)]) {
        for Told { space, model, rollout, by_step } in told(scores, scale(result)) {
            let mut line = |quantity: &str, step: &str, value: f64| {
                let value = if value.is_finite() { value.to_string() } else { String::new() };
                // Writing to a string does not fail.
                let _ = writeln!(text, "{regime},{space},{quantity},{model},{step},{value}");
            };
            rollout.iter().for_each(|(quantity, value)| line(quantity, "rollout", *value));
            for (step, quantities) in by_step.iter().enumerate() {
                let step = step.to_string();
                quantities.iter().for_each(|(quantity, value)| line(quantity, &step, *value));
            }
        }
    }
    text
}

/// The quantities of one model in one space.
struct Told {
    space: &'static str,
    model: &'static str,
    rollout: Quantities,
    by_step: Vec<Quantities>,
}

fn told(scores: &AllScores, scale: f64) -> Vec<Told> {
    let mut told = told_in("field", &scores.field, |sums| {
        let mut quantities = sums.quantities();
        quantities.insert(2, ("nrmse_task_scale", sums.errors().rmse() / scale));
        quantities
    });
    told.extend(told_in("latent", &scores.latent, Sums::quantities));
    told.extend(told_in("latent_weighted", &scores.latent_weighted, Sums::quantities));
    told
}

fn told_in<S: Sums>(
    space: &'static str,
    scores: &Scores<S>,
    quantities: impl Fn(&S) -> Quantities,
) -> Vec<Told> {
    let of_model = |&model: &Model| {
        let steps = (0..=scores.steps()).filter_map(|step| scores.at(model, step));
        Some(Told {
            space,
            model: model.name(),
            rollout: quantities(&scores.rollout(model)?),
            by_step: steps.map(&quantities).collect(),
        })
    };
    scores.models().iter().filter_map(of_model).collect()
}

/// Adds `space.model.quantity = {rollout, by_step}` for all that was told.
fn nest(value: &mut Value, told: Vec<Told>) {
    for Told { space, model, rollout, by_step } in told {
        for (at, (quantity, over_all)) in rollout.into_iter().enumerate() {
            let by_step: Vec<f64> = by_step.iter().map(|quantities| quantities[at].1).collect();
            value[space][model][quantity] = json!({ "rollout": over_all, "by_step": by_step });
        }
    }
}

/// Root mean square of all targets: the one scale of a task.
fn scale(result: &Evaluation) -> f64 {
    // Every model has the same targets.
    let sums = result.overall.field.rollout(Model::Codec);
    sums.map_or(f64::NAN, |sums| sums.errors().target_rms())
}

fn nrmse(scores: &AllScores, model: Model) -> Option<f64> {
    Some(scores.field.rollout(model)?.errors().nrmse())
}

/// NRMSE of whole rollouts by model: their mean over start frames, and that of each.
fn of_all_starts(regime: &Regime) -> Map<String, Value> {
    let of_model = |model: &Model| {
        let each: Vec<_> = regime.by_start.iter().map(|scores| nrmse(scores, *model)).collect();
        (model.name().to_string(), json!({ "mean": of_starts(regime, *model), "by_start": each }))
    };
    regime.scores.field.models().iter().map(of_model).collect()
}

fn mean_of_regimes(result: &Evaluation) -> Map<String, Value> {
    let count = result.regimes.len() as f64;
    let mean = |model: &Model| {
        let sum: f64 = result.regimes.iter().filter_map(|r| nrmse(&r.scores, *model)).sum();
        (model.name().to_string(), json!(sum / count))
    };
    result.overall.field.models().iter().map(mean).collect()
}
