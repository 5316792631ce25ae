//! The charts of `hpo plot`: trial values by number, step and parameter, and the importances of the parameters.

use crate::record::{Outcome, Record};
use crate::space::{Domain, Parameter, plain};
use crate::study::Study;
use clap::ValueEnum;
use report::axis::Axis;
use report::chart::Chart;
use report::panel::{Curve, Mark};
use serde::Serialize;
use serde_json::{Value, json};
use unix::Result;

/// Fraction of the values, counted from the best, that determines the range of an axis with outliers. The first entry
/// is for trial values, the second for values at all steps, the first of which are always outliers.
const CORE_FRACTION: [f64; 2] = [0.9, 0.98];
/// Values farther than this multiple of the best values' span are outliers and are clipped.
const OUTLIER_SPANS: f64 = 4.0;

/// A plot of a study.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum PlotKind {
    /// The value of each trial, and the best so far
    History,
    /// The intermediate values of each trial by step
    Values,
    /// The importance of each parameter, as `hpo importance` prints it
    Importance,
    /// The value against each parameter, most important first
    Slice,
}

/// A chart and its values.
#[derive(Clone, Debug)]
pub struct Plot {
    /// The chart. Values beyond the vertical axis are drawn at its end, and trials without a value at its worst end.
    pub chart: Chart,
    /// One JSON record per series.
    pub records: Vec<Value>,
}

/// How trials are drawn; the discriminant is the index of the colour.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Group {
    Complete,
    /// Trials that ended without a value.
    Failed,
    /// The best value so far, or the curve of the best trial.
    Best,
    Running,
    /// Pruned trials, drawn with their best value.
    Pruned,
}

/// Points that are drawn alike, each with its trial.
struct Series {
    group: Group,
    joined: bool,
    /// y is NaN for a trial without a value.
    points: Vec<((f64, f64), u64)>,
}

impl Group {
    const NAMES: [&str; 5] = ["complete", "no value", "best", "running", "pruned"];

    fn of(record: &Record) -> Self {
        match record.end.as_ref().map(|end| end.state) {
            Some(Outcome::Complete) => Self::Complete,
            Some(Outcome::Pruned) => Self::Pruned,
            Some(Outcome::Diverged | Outcome::OutOfMemory | Outcome::Failed) => Self::Failed,
            None => Self::Running,
        }
    }
}

impl Study {
    /// Creates the plots of a round. Errors: 65, 66, 74.
    pub fn plots(&self, round: usize, kinds: &[PlotKind]) -> Result<Vec<Plot>> {
        let records: Vec<&Record> = self.of_round(round).collect();
        let important = self.importances(round)?;
        let metric = &self.config().metric;
        let values = records.iter().map(|record| self.value(record));
        let y = self.value_axis(values, CORE_FRACTION[0]);
        let mut plots = Vec::new();
        for kind in kinds {
            match kind {
                PlotKind::History => {
                    let number = |record: &Record| Some(record.number as f64);
                    let first = self.first_of(round) as f64;
                    let last = records.last().map_or(first, |record| record.number as f64);
                    let x = Axis::linear("trial", first - 0.5, last + 0.5).whole();
                    let mut series = vec![self.best_so_far(&records)];
                    series.extend(self.series_by_outcome(&records, number));
                    let title = format!("{metric} of each trial");
                    plots.push(plot(*kind, title, "best so far", x, y.clone(), series));
                }
                PlotKind::Values => plots.extend(self.curves(round, &records)),
                PlotKind::Importance => {
                    let bars = important.iter().flatten();
                    let bars = bars.map(|own| (own.parameter.as_str(), own.importance));
                    let bars: Vec<(&str, f64)> = bars.collect();
                    let record = |(name, x): &(&str, f64)| json!({"plot": kind, "parameter": name, "importance": x});
                    let title = "importance of each parameter";
                    let chart = Chart::bars(title, "fraction", &bars);
                    let records = bars.iter().map(record).collect();
                    plots.extend((!bars.is_empty()).then_some(Plot { chart, records }));
                }
                PlotKind::Slice => {
                    let Some(space) = self.space_of(round)? else { continue };
                    let searched = space.0.iter().filter(|(_, own)| !own.domain().is_single());
                    let mut searched: Vec<(&String, &Parameter)> = searched.collect();
                    let rank = |name: &String| {
                        important.iter().flatten().position(|own| own.parameter == *name)
                    };
                    searched.sort_by_key(|(name, _)| rank(name));
                    for (name, parameter) in searched {
                        let x = |record: &Record| parameter.number(record.start.params.get(name)?);
                        let series = self.series_by_outcome(&records, x);
                        let (title, x) = (format!("{metric} by {name}"), x_axis(name, parameter));
                        plots.push(plot(*kind, title, "", x, y.clone(), series));
                    }
                }
            }
        }
        Ok(plots)
    }

    /// Returns the final value of a complete trial, the best value of a pruned one, otherwise NaN.
    fn value(&self, record: &Record) -> f64 {
        let value = match Group::of(record) {
            Group::Complete => record.value(),
            Group::Pruned => record.best(self.config().direction.sign()).map(|(_, value)| value),
            _ => None,
        };
        value.unwrap_or(f64::NAN)
    }

    /// Returns the ended trials as points, one series per outcome.
    fn series_by_outcome(
        &self,
        records: &[&Record],
        x: impl Fn(&Record) -> Option<f64>,
    ) -> Vec<Series> {
        let of = |group: Group| {
            let own = records.iter().filter(|record| Group::of(record) == group);
            let point = |record: &&Record| Some(((x(record)?, self.value(record)), record.number));
            Series { group, joined: false, points: own.filter_map(point).collect() }
        };
        let all = [Group::Complete, Group::Pruned, Group::Failed].into_iter().map(of);
        all.filter(|series| !series.points.is_empty()).collect()
    }

    /// Returns the best value so far as a step function, up to the last trial.
    fn best_so_far(&self, records: &[&Record]) -> Series {
        let sign = self.config().direction.sign();
        let mut best = f64::NAN;
        let step = |record: &&Record| {
            let before = best;
            if Group::of(record) == Group::Complete {
                best = sign * (sign * before).min(sign * self.value(record));
            }
            [before, best].map(|value| ((record.number as f64, value), record.number))
        };
        let mut points: Vec<_> = records.iter().flat_map(step).collect();
        points.retain(|((_, value), _)| !value.is_nan());
        points.dedup();
        Series { group: Group::Best, joined: true, points }
    }

    /// Plots one curve per trial with intermediate values.
    fn curves(&self, round: usize, records: &[&Record]) -> Option<Plot> {
        let best = self.ranking(round).first().map(|record| record.number);
        let curve = |record: &&Record| {
            let values = record.values.iter();
            let points = values.filter_map(|(step, value)| Some((*step as f64, (*value)?)));
            let points: Vec<_> = points.map(|point| (point, record.number)).collect();
            let is_best = best == Some(record.number);
            let group = if is_best { Group::Best } else { Group::of(record) };
            (!points.is_empty()).then_some(Series { group, joined: true, points })
        };
        let mut series: Vec<Series> = records.iter().filter_map(curve).collect();
        series.sort_by_key(|series| series.group != Group::Best);
        let points = || series.iter().flat_map(|series| &series.points).map(|(point, _)| *point);
        let first = points().map(|(step, _)| step).reduce(f64::min)?;
        let last = points().map(|(step, _)| step).fold(first + 1.0, f64::max);
        let y = self.value_axis(points().map(|(_, value)| value), CORE_FRACTION[1]);
        let step = if self.config().task().is_some() { "update" } else { "step" };
        let margin = 0.02 * (last - first);
        let x = Axis::linear(step, first - margin, last + margin).whole();
        let title = format!("{} by {step}", self.config().metric);
        Some(plot(PlotKind::Values, title, "best trial", x, y, series))
    }

    /// Returns the axis of the metric, and its worst end.
    fn value_axis(&self, values: impl Iterator<Item = f64>, core: f64) -> (Axis, f64) {
        let sign = self.config().direction.sign();
        // Signed so that lower values are better.
        let mut values: Vec<f64> =
            values.filter(|value| value.is_finite()).map(|value| sign * value).collect();
        values.sort_by(f64::total_cmp);
        if let [best, .., worst] = values[..] {
            let core = values[(core * values.len() as f64).ceil() as usize - 1];
            let is_log = best > 0.0 && core >= 5.0 * best;
            let to = |x: f64| if is_log { x.ln() } else { x };
            let back = |x: f64| if is_log { x.exp() } else { x };
            let span = to(core) - to(best);
            if span > 0.0 && to(worst) - to(best) > OUTLIER_SPANS * span {
                let most = back(to(best) + 1.2 * span);
                values.iter_mut().for_each(|value| *value = value.min(most));
            }
        }
        values.iter_mut().for_each(|value| *value *= sign);
        let axis = Axis::covering(&self.config().metric, &values);
        let (low, high) = axis.ends();
        (axis, if sign > 0.0 { high } else { low })
    }
}

/// Creates a plot whose series of the best values is called `best`; trials without a value are drawn at `worst`.
fn plot(
    kind: PlotKind,
    title: String,
    best: &str,
    x: Axis,
    (y, worst): (Axis, f64),
    all: Vec<Series>,
) -> Plot {
    let ((low, high), is_named) = (y.ends(), x.names() > 0);
    let names: Vec<String> = x.ticks().into_iter().map(|(_, name)| name).collect();
    let drawn = |((x, y), trial): &((f64, f64), u64)| {
        // Spreads points within a category by the golden ratio, which distributes successive numbers evenly.
        let spread = (*trial as f64 * 0.618_033_988_749_895).fract() - 0.5;
        let x = if is_named { x + 0.3 * spread } else { *x };
        (x, if y.is_nan() { worst } else { y.clamp(low, high) })
    };
    let curve = |(at, series): (usize, &Series)| {
        let mark = match series.group {
            _ if series.joined && series.points.len() > 1 => None,
            Group::Pruned => Some(Mark::Ring),
            Group::Failed => Some(Mark::Cross),
            _ => Some(Mark::Disc),
        };
        let (name, width) = match series.group {
            Group::Best => (best, 2.4),
            group => (Group::NAMES[group as usize], if mark.is_some() { 1.4 } else { 1.0 }),
        };
        let is_listed = all[..at].iter().any(|other| other.group == series.group);
        let radius = if series.points.len() < 150 { 4.5 } else { 3.0 };
        let (name, points) = (if is_listed { "" } else { name }, series.points.iter().map(drawn));
        let curve = Curve::of_run(series.group as usize, name, width, points);
        Curve { mark: mark.map(|mark| (mark, radius)), ..curve }
    };
    let record = |series: &Series| {
        let points = || series.points.iter();
        let place = |((x, _), _): &((f64, f64), u64)| match is_named {
            true => json!(names.get(*x as usize)),
            false => json!(x),
        };
        json!({
            "plot": kind, "x": x.label(), "y": y.label(), "series": Group::NAMES[series.group as usize],
            "trials": points().map(|(_, trial)| trial).collect::<Vec<_>>(),
            "xs": points().map(place).collect::<Vec<_>>(),
            "ys": points().map(|((_, y), _)| y).collect::<Vec<_>>(),
        })
    };
    let beyond = all.iter().flat_map(|series| &series.points);
    let beyond = beyond.filter(|((_, y), _)| !y.is_nan() && !(low..=high).contains(y)).count();
    let curves = all.iter().enumerate().map(curve).collect();
    let records = all.iter().map(record).collect();
    let title = match beyond {
        0 => title,
        _ => format!("{title} (values outside the axis range: {beyond})"),
    };
    let metric = y.label().to_string();
    Plot { chart: Chart { metric, title, x, y, curves }, records }
}

fn x_axis(name: &str, parameter: &Parameter) -> Axis {
    match (parameter, parameter.domain()) {
        (Parameter::Categorical { choices, .. }, _) => {
            Axis::categories(name, choices.iter().map(plain).collect())
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
