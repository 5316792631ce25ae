//! The metrics of evaluations side by side.

use super::{Report, names, number};

/// A metric and its value in every report.
pub type Metric = (String, Vec<Option<f64>>);

/// The metrics of the decoded fields by model and quantity, in the order in which they first occur.
fn of_fields(reports: &[Report]) -> Vec<(String, String)> {
    let all = names(reports.iter().map(|report| &report.scored.metrics));
    let parts = |path: &String| {
        let (model, quantity) = path.strip_prefix("field.")?.split_once('.')?;
        Some((model.to_string(), quantity.to_string()))
    };
    all.iter().filter_map(parts).collect()
}

fn is_evaluated(reports: &[Report], model: &str) -> bool {
    reports.iter().any(|report| report.scored.task == model)
}

fn values(reports: &[Report], name: &str) -> Vec<Option<f64>> {
    reports.iter().map(|report| report.scored.metric(name)).collect()
}

/// The quantity whose interval this bounds, if it is a bound: `nrmse` for `nrmse_low` and `nrmse_high`.
fn interval_of(quantity: &str) -> Option<&str> {
    quantity.strip_suffix("_low").or_else(|| quantity.strip_suffix("_high"))
}

/// Whether a quantity is a bound of the interval of another of these quantities.
pub fn is_bound(quantity: &str, all: &[String]) -> bool {
    interval_of(quantity).is_some_and(|value| all.iter().any(|own| own == value))
}

/// The metrics of the evaluated model, which may be of another task in every report.
pub fn metrics(reports: &[Report]) -> Vec<Metric> {
    let mut quantities: Vec<String> = Vec::new();
    for (model, quantity) in of_fields(reports) {
        if is_evaluated(reports, &model) && !quantities.contains(&quantity) {
            quantities.push(quantity);
        }
    }
    // The bounds of an interval follow its value.
    let place = |name: &String| {
        let value = interval_of(name).filter(|_| is_bound(name, &quantities));
        quantities.iter().position(|own| own == value.unwrap_or(name))
    };
    let mut sorted = quantities.clone();
    sorted.sort_by_key(place);
    sorted.into_iter().map(|name| (name.clone(), values(reports, &name))).collect()
}

/// The NRMSE of all other models.
pub fn baselines(reports: &[Report]) -> Vec<Metric> {
    let shown = ["nrmse", "nrmse_of_starts"];
    let of_fields = of_fields(reports);
    let others = of_fields.iter().filter(|(model, quantity)| {
        !is_evaluated(reports, model) && shown.contains(&quantity.as_str())
    });
    let mut others: Vec<_> = others.collect();
    others.sort_by_key(|(model, _)| of_fields.iter().position(|(own, _)| own == model));
    let row = |(model, quantity): &(String, String)| {
        let name = format!("{model}.{quantity}");
        (name.clone(), values(reports, &name))
    };
    others.into_iter().map(row).collect()
}

/// The NRMSE of the evaluated model by parameter value.
pub fn regimes(reports: &[Report]) -> Vec<Metric> {
    let of =
        |report: &Report, at: usize| number(report.regimes.get(at)?.1.get(&report.scored.task)?);
    let row = |(at, (name, _)): (usize, &(String, _))| {
        (name.clone(), reports.iter().map(|report| of(report, at)).collect())
    };
    reports[0].regimes.iter().enumerate().map(row).collect()
}
