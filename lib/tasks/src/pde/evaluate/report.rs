//! Writes the result of an evaluation as files and table rows.

use super::batch::Cost;
use super::errors::{Errors, Quantities};
use super::protocol::Protocol;
use super::scores::{Model, Scores, rollout};
use super::{Evaluation, Regime};
use serde_json::{Map, Value, json};
use std::fmt::Write;
use std::ops::Range;

/// The rows of the table, one per regime and one for their mean: NRMSE of the fields over whole rollouts, by model. It
/// is computed for each start frame and then averaged over start frames, so that decayed late states count as much as
/// early ones. For an operator also the NRMSE of the first step, and the ratio to persistence.
pub fn rows(result: &Evaluation) -> Vec<Value> {
    let row = |name: String, regimes: &[Regime]| {
        let mean = |value: &dyn Fn(&Scores) -> Option<f64>| -> Option<f64> {
            let values: Option<Vec<f64>> =
                regimes.iter().map(|r| mean_of_starts(r, value)).collect();
            values.map(|values| values.iter().sum::<f64>() / values.len() as f64)
        };
        let rollouts: usize = regimes.iter().map(Regime::rollouts).sum();
        let mut row = match result.steps {
            0 => json!({ "regime": name, "samples": rollouts }),
            steps => json!({ "regime": name, "steps": steps, "rollouts": rollouts }),
        };
        if let Some(first) = mean(&|scores| Some(scores.field(Model::Operator)?.get(1)?.nrmse())) {
            row["one_step"] = json!(first);
        }
        let models = regimes[0].by_start[0].models();
        for model in &models {
            row[model.name()] = json!(mean(&|scores| scores.nrmse(*model)));
        }
        let of = |model: Model| mean(&|scores| scores.nrmse(model));
        if let Some((operator, persistence)) = of(Model::Operator).zip(of(Model::Persistence)) {
            row["ratio"] = json!(operator / persistence);
        }
        row
    };
    let of_regime = |r: &Regime| row(r.parameter.to_string(), std::slice::from_ref(r));
    let mut rows: Vec<Value> = result.regimes.iter().map(of_regime).collect();
    rows.push(row("mean".into(), &result.regimes));
    rows
}

/// Mean over start frames of a value computed from the errors of each.
pub(super) fn mean_of_starts(
    regime: &Regime,
    value: impl Fn(&Scores) -> Option<f64>,
) -> Option<f64> {
    let values: Option<Vec<f64>> = regime.by_start.iter().map(value).collect();
    values.map(|values| values.iter().sum::<f64>() / values.len().max(1) as f64)
}

/// NRMSE of whole rollouts, averaged over start frames.
pub(super) fn of_starts(regime: &Regime, model: Model) -> Option<f64> {
    mean_of_starts(regime, |scores| scores.nrmse(model))
}

/// NRMSE of whole rollouts, averaged over start frames, by parameter value and model:
/// `{"nu": {"0.001": {"operator": …, "persistence": …, "mean": …, "codec": …}, …}, "steps": 16}`.
pub fn summary(result: &Evaluation) -> Value {
    let mut summary = Map::new();
    for regime in &result.regimes {
        let of_name = summary.entry(&regime.parameter.name).or_insert_with(|| json!({}));
        let nrmse = |model: Model| (model.name().to_string(), json!(of_starts(regime, model)));
        let models = regime.scores().models().into_iter().map(nrmse);
        of_name[regime.parameter.value.to_string()] = Value::Object(models.collect());
    }
    summary.insert("steps".into(), json!(result.steps));
    Value::Object(summary)
}

/// `metrics.json`: protocol, and every quantity of every model over the rollout and by step; step 0 is the
/// initial state.
pub fn metrics_json(result: &Evaluation, protocol: &Protocol) -> Value {
    let of_regime = |(number, regime): (usize, &Regime)| {
        let mut value = json!({
            "parameter": regime.parameter,
            "trajectories": regime.trajectories,
            "rollouts": regime.rollouts(),
            "nrmse_of_starts": of_all_starts(regime),
        });
        nest(&mut value, tables(result, number..number + 1));
        value
    };
    let mut overall = json!({
        "mean_nrmse_of_regimes": mean_of_regimes(result),
        "validation_rms": result.validation_rms.map(|rms| rms.0),
    });
    nest(&mut overall, tables(result, 0..result.regimes.len()));
    json!({
        "format": "longhaul-evaluation",
        "version": 1,
        "protocol": protocol,
        "regimes": result.regimes.iter().enumerate().map(of_regime).collect::<Vec<_>>(),
        "overall": overall,
    })
}

/// `metrics.csv`: the same numbers, one per line, with the columns regime, space, quantity, model, step, value. The
/// step is a number or `rollout`.
pub fn metrics_csv(result: &Evaluation) -> String {
    let mut text = String::from("regime,space,quantity,model,step,value\n");
    let names = result.regimes.iter().map(|regime| regime.parameter.to_string()).enumerate();
    let regimes = names.map(|(number, name)| (name, number..number + 1));
    for (regime, which) in regimes.chain([("all".to_string(), 0..result.regimes.len())]) {
        for Table { space, model, rollout, by_step, of_rollouts } in tables(result, which) {
            let mut line = |quantity: &str, step: &str, value: f64| {
                // Writing to a String cannot fail.
                let _ = writeln!(text, "{regime},{space},{quantity},{model},{step},{value}");
            };
            let all = rollout.iter().chain(&of_rollouts);
            all.for_each(|(quantity, value)| line(quantity, "rollout", *value));
            for (step, quantities) in by_step.iter().enumerate() {
                let step = step.to_string();
                quantities.iter().for_each(|(quantity, value)| line(quantity, &step, *value));
            }
        }
    }
    text
}

/// `times.json`: wall-clock seconds per step of one rollout by model. They are kept apart from the metrics, which are
/// the same in every run. Of a search also the time of a reward, in evaluations of the operator.
pub fn times(result: &Evaluation) -> Value {
    let all = 0..result.regimes.len();
    let of_model = |model: Model| {
        let [.., seconds] = result.cost(all.clone(), model)?;
        Some((model.name().to_string(), json!(seconds)))
    };
    let seconds: Map<String, Value> =
        result.overall().models().into_iter().filter_map(of_model).collect();
    let mut times = json!({ "seconds_per_step": seconds });
    let costs = || result.regimes.iter().flat_map(|regime| &regime.costs);
    let per = |model: Model, of: fn(&Cost) -> (f64, u64)| {
        let [seconds, count] = costs()
            .filter(|cost| cost.model == model)
            .map(of)
            .fold([0.0; 2], |[seconds, count], (more, of)| [seconds + more, count + of as f64]);
        (count > 0.0).then_some(seconds / count)
    };
    let reward = per(Model::Search, |cost| (cost.reward_seconds.0, cost.rewards));
    let operator = per(Model::Operator, |cost| (cost.seconds.0, cost.evaluations));
    if let Some((reward, operator)) = reward.zip(operator) {
        times["seconds_per_reward"] = json!(reward);
        times["operator_evaluations_per_reward"] = json!(reward / operator);
    }
    times
}

/// The quantities of one model in one space.
struct Table {
    space: String,
    model: &'static str,
    rollout: Quantities,
    by_step: Vec<Quantities>,
    /// Quantities that only exist for whole rollouts.
    of_rollouts: Quantities,
}

/// The tables of all models over some regimes.
fn tables(result: &Evaluation, which: Range<usize>) -> Vec<Table> {
    // Root mean square of all targets: one common scale for the task. All models have the same targets.
    let targets = result.overall().iter().next().map(|(.., steps)| rollout(steps).target_rms());
    let scales = [
        ("nrmse_task_scale", targets),
        ("nrmse_validation_scale", result.validation_rms.map(|rms| rms.0)),
    ];
    let quantities = |space: &str, errors: &Errors| {
        let mut quantities = errors.quantities();
        if space == "field" {
            let scaled =
                scales.map(|(name, scale)| (name, errors.rmse() / scale.unwrap_or(f64::NAN)));
            quantities.splice(2..2, scaled);
        }
        quantities
    };
    let of_model = |(space, model, steps): (&str, Model, &[Errors])| Table {
        space: space.into(),
        model: model.name(),
        rollout: quantities(space, &rollout(steps)),
        by_step: steps.iter().map(|errors| quantities(space, errors)).collect(),
        of_rollouts: match space {
            "field" => result.of_rollouts(which.clone(), model),
            _ => Vec::new(),
        },
    };
    result.scores(which.clone()).iter().map(of_model).collect()
}

/// Adds `space.model.quantity = {rollout, by_step}` for all tables.
fn nest(value: &mut Value, tables: Vec<Table>) {
    for Table { space, model, rollout, by_step, of_rollouts } in tables {
        for (at, (quantity, over_all)) in rollout.into_iter().enumerate() {
            let by_step: Vec<f64> = by_step.iter().map(|quantities| quantities[at].1).collect();
            value[&space][model][quantity] = json!({ "rollout": over_all, "by_step": by_step });
        }
        for (quantity, over_all) in of_rollouts {
            value[&space][model][quantity] = json!({ "rollout": over_all });
        }
    }
}

/// NRMSE of whole rollouts by model: the mean over start frames, and the value of each start frame.
fn of_all_starts(regime: &Regime) -> Map<String, Value> {
    let of_model = |model: Model| {
        let each: Vec<_> = regime.by_start.iter().map(|scores| scores.nrmse(model)).collect();
        (model.name().to_string(), json!({ "mean": of_starts(regime, model), "by_start": each }))
    };
    regime.scores().models().into_iter().map(of_model).collect()
}

fn mean_of_regimes(result: &Evaluation) -> Map<String, Value> {
    let count = result.regimes.len() as f64;
    let mean = |model: Model| {
        let sum: f64 = result.regimes.iter().filter_map(|r| r.scores().nrmse(model)).sum();
        (model.name().to_string(), json!(sum / count))
    };
    result.overall().models().into_iter().map(mean).collect()
}
