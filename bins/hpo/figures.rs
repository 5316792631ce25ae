//! The data of `hpo plot`: series of trial values and their axes.

use clap::ValueEnum;
use report::axis::Axis;
use serde_json::{Value, json};
use study::Study;
use study::importance::importances;
use study::record::{End, Record};
use study::space::{Domain, Parameter};
use unix::Result;

/// Fraction of the values, taken from the best, that determines the range of an axis with outliers: for the values of
/// trials, and for the values at all steps, whose first ones are always outliers.
const CORE_FRACTION: [f64; 2] = [0.9, 0.98];
/// Values are outliers if they lie beyond this multiple of the best values' span; they are clipped.
const OUTLIER_SPANS: f64 = 4.0;

/// A plot of a study.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// The value of each trial, and the best so far
    History,
    /// The intermediate values of each trial by step
    Values,
    /// The importance of each parameter, as `hpo importance` prints it
    Importance,
    /// The value against each parameter, most important first
    Slice,
}

/// All kinds, in the order in which they are drawn.
pub const KINDS: [Kind; 4] = [Kind::History, Kind::Values, Kind::Importance, Kind::Slice];

/// How a series is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// The best value so far, or the curve of the best trial.
    Best,
    /// Trials with a final value.
    Complete,
    /// Trials that the pruner ended, with their best value.
    Pruned,
    /// Trials that ended without a value.
    Failed,
    /// Trials that have not ended.
    Running,
}

/// Points that are drawn alike.
#[derive(Clone, Debug)]
pub struct Series {
    /// How it is drawn.
    pub look: Look,
    /// Whether a line joins the points.
    pub joined: bool,
    /// The points; y is NaN for a trial without a value.
    pub points: Vec<(f64, f64)>,
    /// The trial of each point.
    pub trials: Vec<u64>,
}

/// A plot of several series.
#[derive(Clone, Debug)]
pub struct Figure {
    /// What it shows.
    pub kind: Kind,
    /// The parameter, the step or the number of the trial.
    pub x: Axis,
    /// The metric.
    pub y: Axis,
    /// The series; the first one is drawn on top.
    pub series: Vec<Series>,
    /// The worst end of the vertical axis, where trials without a value are drawn.
    worst: f64,
}

impl Look {
    /// The name in the legend.
    pub fn name(self) -> &'static str {
        match self {
            Self::Best => "best",
            Self::Complete => "complete",
            Self::Pruned => "pruned",
            Self::Failed => "no value",
            Self::Running => "running",
        }
    }

    /// How a trial is drawn.
    pub fn of(record: &Record) -> Self {
        match record.end.as_ref().map(|end| end.state) {
            Some(End::Complete) => Self::Complete,
            Some(End::Pruned) => Self::Pruned,
            Some(End::Diverged | End::OutOfMemory | End::Failed) => Self::Failed,
            None => Self::Running,
        }
    }
}

impl Figure {
    /// The points of a series as drawn: clipped to the axes, and spread horizontally within a category.
    pub fn drawn(&self, series: &Series) -> Vec<(f64, f64)> {
        let (low, high) = self.y.ends();
        let place = |((x, y), trial): (&(f64, f64), &u64)| {
            // The golden ratio spreads successive numbers evenly.
            let spread = (*trial as f64 * 0.618_033_988_749_895).fract() - 0.5;
            let x = if self.x.names() > 0 { x + 0.3 * spread } else { *x };
            (x, if y.is_nan() { self.worst } else { y.clamp(low, high) })
        };
        series.points.iter().zip(&series.trials).map(place).collect()
    }

    /// The number of values beyond the vertical axis.
    pub fn beyond(&self) -> usize {
        let values = self.series.iter().flat_map(|series| &series.points).map(|point| point.1);
        values.filter(|value| !value.is_nan() && !self.y.contains(*value)).count()
    }

    /// A JSON record per series.
    pub fn records(&self) -> impl Iterator<Item = Value> {
        let names: Vec<String> = self.x.ticks().into_iter().map(|(_, name)| name).collect();
        let kind = self.kind.to_possible_value();
        let kind = kind.map_or(String::new(), |kind| kind.get_name().to_string());
        self.series.iter().map(move |series| {
            let x = |(x, _): &(f64, f64)| match self.x.names() > 0 {
                true => json!(names.get(*x as usize)),
                false => json!(x),
            };
            json!({
                "plot": kind, "x": self.x.label(), "y": self.y.label(), "series": series.look.name(),
                "trials": series.trials,
                "xs": series.points.iter().map(x).collect::<Vec<_>>(),
                "ys": series.points.iter().map(|(_, y)| y).collect::<Vec<_>>(),
            })
        })
    }
}

/// All plots of a round except the importances. Errors: 65, 66, 74.
pub fn of_round(study: &Study, round: usize, kinds: &[Kind]) -> Result<Vec<Figure>> {
    let first = study.first_of(round);
    let records = study.records().range(first..first + study.rounds()[round].trials);
    let records: Vec<&Record> = records.map(|(_, record)| record).collect();
    let mut figures = Vec::new();
    let values = records.iter().map(|record| value(study, record));
    let (y, worst) = value_axis(study, values, CORE_FRACTION[0]);
    let number = |record: &Record| Some(record.number as f64);
    for kind in kinds {
        match kind {
            Kind::History => {
                let last = records.last().map_or(first, |record| record.number);
                let x = Axis::linear("trial", first as f64 - 0.5, last as f64 + 0.5).whole();
                let mut series = vec![best_so_far(study, &records)];
                series.extend(marks(study, &records, number));
                figures.push(Figure { kind: *kind, x, y: y.clone(), series, worst });
            }
            Kind::Values => figures.extend(curves(study, round, &records)),
            Kind::Importance => {}
            Kind::Slice => {
                let Some(space) = study.space_of(round)? else { continue };
                let searched = space.0.iter().filter(|(_, own)| !own.domain().is_single());
                let mut searched: Vec<(&String, &Parameter)> = searched.collect();
                if let Some(order) = importances(&space, &study.trials(round, &space)) {
                    searched.sort_by_key(|(name, _)| {
                        order.iter().position(|own| own.parameter == **name)
                    });
                }
                for (name, parameter) in searched {
                    let domain = parameter.domain();
                    let x = |record: &Record| {
                        record.start.params.get(name).and_then(|value| parameter.number(value))
                    };
                    let series = marks(study, &records, x);
                    let x = parameter_axis(name, parameter, domain);
                    figures.push(Figure { kind: *kind, x, y: y.clone(), series, worst });
                }
            }
        }
    }
    Ok(figures)
}

/// The value of a trial: the final value if complete, the best value if pruned, otherwise NaN.
pub fn value(study: &Study, record: &Record) -> f64 {
    let best = || record.best(study.config().direction.sign()).map(|(_, value)| value);
    match record.end.as_ref() {
        Some(end) if end.state == End::Complete => end.value.unwrap_or(f64::NAN),
        Some(end) if end.state == End::Pruned => best().unwrap_or(f64::NAN),
        _ => f64::NAN,
    }
}

/// The ended trials, one series per outcome.
fn marks(study: &Study, records: &[&Record], x: impl Fn(&Record) -> Option<f64>) -> Vec<Series> {
    let of = |look: Look| {
        let own = records.iter().filter(|record| Look::of(record) == look);
        let own =
            own.filter_map(|record| Some(((x(record)?, value(study, record)), record.number)));
        let (points, trials) = own.unzip();
        Series { look, joined: false, points, trials }
    };
    let mut all = Vec::from([Look::Complete, Look::Pruned, Look::Failed].map(of));
    all.retain(|series| records.iter().any(|record| Look::of(record) == series.look));
    all
}

/// The best value so far as a step function, up to the last trial.
fn best_so_far(study: &Study, records: &[&Record]) -> Series {
    let sign = study.config().direction.sign();
    let (mut points, mut trials): (Vec<(f64, f64)>, Vec<u64>) = (Vec::new(), Vec::new());
    let mut best = f64::NAN;
    for record in records {
        let found = if Look::of(record) == Look::Complete { value(study, record) } else { best };
        let is_better = best.is_nan() || sign * found < sign * best;
        for value in [best, if is_better { found } else { best }] {
            let point = (record.number as f64, value);
            if !value.is_nan() && points.last() != Some(&point) {
                points.push(point);
                trials.push(record.number);
            }
        }
        best = if is_better { found } else { best };
    }
    Series { look: Look::Best, joined: true, points, trials }
}

/// A curve per trial with intermediate values.
fn curves(study: &Study, round: usize, records: &[&Record]) -> Option<Figure> {
    let best = study.ranking(round).first().map(|record| record.number);
    let curve = |record: &&Record| {
        let points =
            record.values.iter().filter_map(|(step, value)| Some((*step as f64, (*value)?)));
        let points: Vec<(f64, f64)> = points.collect();
        let look = if best == Some(record.number) { Look::Best } else { Look::of(record) };
        Series { look, joined: true, trials: vec![record.number; points.len()], points }
    };
    let mut series: Vec<Series> = records.iter().map(curve).collect();
    series.retain(|series| !series.points.is_empty());
    series.sort_by_key(|series| series.look != Look::Best);
    let points = || series.iter().flat_map(|series| &series.points).copied();
    let first = points().map(|(step, _)| step).reduce(f64::min)?;
    let last = points().map(|(step, _)| step).reduce(f64::max)?;
    let (y, worst) = value_axis(study, points().map(|(_, value)| value), CORE_FRACTION[1]);
    let step = if study.config().task().is_some() { "update" } else { "step" };
    let last = last.max(first + 1.0);
    let margin = 0.02 * (last - first);
    let x = Axis::linear(step, first - margin, last + margin).whole();
    Some(Figure { kind: Kind::Values, x, y, series, worst })
}

fn parameter_axis(name: &str, parameter: &Parameter, domain: Domain) -> Axis {
    let name_of = |value: &Value| match value {
        Value::String(text) => text.clone(),
        value => value.to_string(),
    };
    match (parameter, domain) {
        (Parameter::Categorical { choices, .. }, _) => {
            Axis::categories(name, choices.iter().map(name_of).collect())
        }
        (_, Domain::Numeric { low, high, log: true, .. }) => Axis::logarithmic(name, [low, high]),
        (_, Domain::Numeric { low, high, .. }) => {
            let margin = 0.04 * (high - low);
            let axis = Axis::linear(name, low - margin, high + margin);
            if matches!(parameter, Parameter::Int { .. }) { axis.whole() } else { axis }
        }
        (_, Domain::Categorical(_)) => Axis::linear(name, 0.0, 1.0),
    }
}

/// The axis of the metric, and its worst end. The axis is logarithmic if the metric is minimised, positive and spans a
/// factor of 5 or more, outliers aside.
fn value_axis(study: &Study, values: impl Iterator<Item = f64>, most: f64) -> (Axis, f64) {
    let sign = study.config().direction.sign();
    let label = &study.config().metric;
    // With the sign of a minimised metric.
    let mut values: Vec<f64> =
        values.filter(|value| value.is_finite()).map(|value| sign * value).collect();
    values.sort_by(f64::total_cmp);
    let (Some(best), Some(worst)) = (values.first(), values.last()) else {
        return (Axis::linear(label, 0.0, 1.0), 1.0);
    };
    let most = values[((most * values.len() as f64).ceil() as usize).clamp(1, values.len()) - 1];
    let is_log = sign > 0.0 && *best > 0.0 && most >= 5.0 * best;
    let to = |x: f64| if is_log { x.ln() } else { x };
    let back = |x: f64| if is_log { x.exp() } else { x };
    let span = to(most) - to(*best);
    let is_far = span > 0.0 && to(*worst) - to(*best) > OUTLIER_SPANS * span;
    let worst = if is_far { back(to(*best) + 1.2 * span) } else { *worst };
    let axis = if is_log {
        Axis::logarithmic(label, [*best, worst])
    } else {
        // The range must not be empty if all values are equal.
        let margin = (0.06 * (worst - best)).max(0.01 * best.abs()).max(1e-12);
        let ends = [sign * (best - margin), sign * (worst + margin)];
        Axis::linear(label, ends[0].min(ends[1]), ends[0].max(ends[1]))
    };
    let (low, high) = axis.ends();
    (axis, if sign > 0.0 { high } else { low })
}
