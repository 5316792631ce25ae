//! Writes the result of an evaluation as files and table rows.

use super::batch::Cost;
use super::errors::{Errors, Quantities};
use super::scores::{Method, Scores, rollout};
use super::{Evaluation, Regime};
use indexmap::IndexMap;
use report::evaluation::{self, Group, Metric, MetricsByName};
use serde_json::{Map, Value, json};
use std::ops::Range;

/// Returns the rows of the table, one per regime and one for their mean: NRMSE of the fields over whole rollouts, by
/// model. It is computed for each start frame and then averaged over start frames, so that decayed late states have the
/// same weight as early ones. An operator also has the NRMSE of the first step and the ratio to persistence.
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
        if let Some(first) = mean(&|scores| Some(scores.field(Method::Operator)?.get(1)?.nrmse())) {
            row["one_step"] = json!(first);
        }
        let models = regimes[0].by_start[0].models();
        for model in &models {
            row[model.name()] = json!(mean(&|scores| scores.nrmse(*model)));
        }
        let of = |model: Method| mean(&|scores| scores.nrmse(model));
        if let Some((operator, persistence)) = of(Method::Operator).zip(of(Method::Persistence)) {
            row["ratio"] = json!(operator / persistence);
        }
        row
    };
    let of_regime = |r: &Regime| row(r.parameter.to_string(), std::slice::from_ref(r));
    let mut rows: Vec<Value> = result.regimes.iter().map(of_regime).collect();
    rows.push(row("mean".into(), &result.regimes));
    rows
}

/// Computes the mean over start frames of a value computed from the scores of each.
pub(super) fn mean_of_starts(
    regime: &Regime,
    value: impl Fn(&Scores) -> Option<f64>,
) -> Option<f64> {
    let values: Option<Vec<f64>> = regime.by_start.iter().map(value).collect();
    values.map(|values| values.iter().sum::<f64>() / values.len().max(1) as f64)
}

/// Computes the NRMSE of whole rollouts, averaged over start frames.
pub(super) fn of_starts(regime: &Regime, model: Method) -> Option<f64> {
    mean_of_starts(regime, |scores| scores.nrmse(model))
}

/// Returns the NRMSE of whole rollouts, averaged over start frames, by parameter value and model:
/// `{"nu": {"0.001": {"operator": …, "persistence": …, "mean": …, "codec": …}, …}, "steps": 16}`.
pub fn summary(result: &Evaluation) -> Value {
    let mut summary = Map::new();
    for regime in &result.regimes {
        let of_name = summary.entry(&regime.parameter.name).or_insert_with(|| json!({}));
        let nrmse = |model: Method| (model.name().to_string(), json!(of_starts(regime, model)));
        let models = regime.scores().models().into_iter().map(nrmse);
        of_name[regime.parameter.value.to_string()] = Value::Object(models.collect());
    }
    summary.insert("steps".into(), json!(result.steps));
    Value::Object(summary)
}

/// Metrics for which larger values are better.
const SCORES: [&str; 4] = [
    "reward_rank_correlation",
    "oracle_gain_captured",
    "spread_rank_correlation",
    "spread_rank_correlation_relative",
];
/// Metrics for which neither larger nor smaller values are better.
const PLAIN: [&str; 4] =
    ["spread_skill", "spread", "evaluations_per_step", "denoiser_evaluations_per_step"];

/// Converts a quantity to a metric.
fn metric(quantity: &str, value: f64) -> Metric {
    match quantity {
        _ if SCORES.contains(&quantity) => Metric::score(value),
        _ if PLAIN.contains(&quantity) => Metric::plain(value),
        _ => Metric::error(value),
    }
}

/// Returns every quantity of every model over some regimes, for whole rollouts and by step. In latent spaces, the names
/// are prefixed with the name of the space.
pub fn scores(result: &Evaluation, which: Range<usize>) -> evaluation::Scores {
    let mut methods: IndexMap<String, MetricsByName> = IndexMap::new();
    for Table { space, model, rollout, by_step, of_rollouts } in tables(result, which.clone()) {
        let own = methods.entry(model.name().into()).or_default();
        let prefix = if space == "field" { String::new() } else { format!("{space}.") };
        for (at, (quantity, over_all)) in rollout.into_iter().enumerate() {
            let by_step = by_step.iter().map(|quantities| quantities[at].1).collect();
            let metric = Metric { by_step, ..metric(quantity, over_all) };
            own.insert(format!("{prefix}{quantity}"), metric);
        }
        let of = |name: &str| of_rollouts.iter().find(|(own, _)| *own == name).map(|(_, x)| *x);
        for (quantity, value) in &of_rollouts {
            if !quantity.ends_with("_low") && !quantity.ends_with("_high") {
                own.insert((*quantity).into(), metric(quantity, *value));
            }
        }
        for name in ["nrmse", "nrmse_geometric_mean"] {
            let bounds = of(&format!("{name}_low")).zip(of(&format!("{name}_high")));
            if let (Some((low, high)), Some(metric)) = (bounds, own.get_mut(name)) {
                *metric = metric.clone().with_interval(Some([low, high]));
            }
        }
        if space == "field" {
            let regimes = &result.regimes[which.clone()];
            let mean = |of: &dyn Fn(&Regime) -> Option<f64>| {
                let all: Option<Vec<f64>> = regimes.iter().map(of).collect();
                all.map(|all| all.iter().sum::<f64>() / all.len() as f64)
            };
            if let Some(value) = mean(&|regime| of_starts(regime, model)) {
                own.insert("nrmse_of_starts".into(), Metric::error(value));
            }
            let of_all = which.len() == result.regimes.len() && result.regimes.len() > 1;
            if let Some(value) = mean(&|regime| regime.scores().nrmse(model)).filter(|_| of_all) {
                own.insert("nrmse_mean_of_parameters".into(), Metric::error(value));
            }
        }
    }
    let samples = result.regimes[which].iter().map(Regime::rollouts).sum::<usize>() as u64;
    evaluation::Scores { samples, methods }
}

/// Returns the scores of each regime.
pub fn groups(result: &Evaluation) -> Vec<Group> {
    let group = |(number, regime): (usize, &Regime)| Group {
        kind: "parameter".into(),
        name: regime.parameter.to_string(),
        scores: scores(result, number..number + 1),
    };
    result.regimes.iter().enumerate().map(group).collect()
}

/// Returns the further content of metrics.json: the RMS of the validation fields and, for each regime, the parameter,
/// the number of trajectories and the NRMSE of each model by start frame.
pub fn details(result: &Evaluation) -> Map<String, Value> {
    let of_regime = |regime: &Regime| {
        let by_start = |model: Method| {
            let each: Vec<_> = regime.by_start.iter().map(|scores| scores.nrmse(model)).collect();
            (model.name().to_string(), json!(each))
        };
        let by_start: Map<_, _> = regime.scores().models().into_iter().map(by_start).collect();
        json!({
            "parameter": regime.parameter, "trajectories": regime.trajectories, "by_start": by_start,
        })
    };
    let regimes: Vec<Value> = result.regimes.iter().map(of_regime).collect();
    Map::from_iter([
        ("validation_rms".into(), json!(result.validation_rms.map(|rms| rms.0))),
        ("parameters".into(), regimes.into()),
    ])
}

/// Returns the content of `times.json`: wall-clock seconds per step of one rollout, by model; for a search, also the
/// cost of a reward in operator evaluations. Times are separate from the metrics, which are the same in every run.
pub fn times(result: &Evaluation) -> Value {
    let all = 0..result.regimes.len();
    let of_model = |model: Method| {
        let [.., seconds] = result.cost(all.clone(), model)?;
        Some((model.name().to_string(), json!(seconds)))
    };
    let seconds: Map<String, Value> =
        result.overall().models().into_iter().filter_map(of_model).collect();
    let mut times = json!({ "seconds_per_step": seconds });
    let costs = || result.regimes.iter().flat_map(|regime| &regime.costs);
    let per = |model: Method, of: fn(&Cost) -> (f64, u64)| {
        let [seconds, count] = costs()
            .filter(|cost| cost.model == model)
            .map(of)
            .fold([0.0; 2], |[seconds, count], (more, of)| [seconds + more, count + of as f64]);
        (count > 0.0).then_some(seconds / count)
    };
    let reward = per(Method::Search, |cost| (cost.reward_seconds.0, cost.rewards));
    let operator = per(Method::Operator, |cost| (cost.seconds.0, cost.evaluations));
    if let Some((reward, operator)) = reward.zip(operator) {
        times["seconds_per_reward"] = json!(reward);
        times["operator_evaluations_per_reward"] = json!(reward / operator);
    }
    times
}

/// The quantities of one model in one space.
struct Table {
    space: String,
    model: Method,
    rollout: Quantities,
    by_step: Vec<Quantities>,
    /// Quantities that only exist for whole rollouts.
    of_rollouts: Quantities,
}

/// Returns the tables of all models over some regimes.
fn tables(result: &Evaluation, which: Range<usize>) -> Vec<Table> {
    // The RMS of all targets is a common scale for the task; all models have the same targets.
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
    let of_model = |(space, model, steps): (&str, Method, &[Errors])| Table {
        space: space.into(),
        model,
        rollout: quantities(space, &rollout(steps)),
        by_step: steps.iter().map(|errors| quantities(space, errors)).collect(),
        of_rollouts: match space {
            "field" => result.of_rollouts(which.clone(), model),
            _ => Vec::new(),
        },
    };
    result.scores(which.clone()).iter().map(of_model).collect()
}
