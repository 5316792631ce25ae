//! Scores of a trained model on records, beside those of baselines that need no training.

use super::linear::Linear;
use super::task::{METRIC, RegressionTask};
use super::trained::TrainedRegression;
use crate::pde::evaluate::Trained;
use crate::pde::evaluate::pictures::{Pair, draw_pairs};
use crate::trained::TrainedModel;
use data::records::{RecordSet, RecordStats, Side};
use data::split::SplitName;
use learn::score::{Bits, ChannelErrors, RegressionErrors};
use learn::task::Define;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::time::Instant;
use unix::{Error, Result};

/// Records that are scored at a time, after which an interrupted evaluation resumes.
const BATCH: usize = 256;

/// The errors so far.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RecordScores {
    /// By method; the model comes first.
    methods: Vec<Method>,
    /// The model's Σ (p - t)² of each record.
    squares: Vec<Bits>,
}

/// The errors of a method so far, and the time that its predictions took.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Method {
    name: String,
    errors: RegressionErrors,
    seconds: Bits,
}

/// What was evaluated on which records.
#[derive(Clone, Debug, Serialize)]
pub struct RecordProtocol {
    /// Task of the model.
    task: &'static str,
    /// Path of the split manifest.
    split: String,
    /// BLAKE3 of the split manifest.
    split_hash: String,
    /// Name of the split.
    on: String,
    /// Number of records.
    records: usize,
    /// The shape of the inputs.
    input: Side,
    /// That of the targets.
    target: Side,
    /// The model, by task.
    #[serde(flatten)]
    models: BTreeMap<&'static str, Trained>,
}

/// A baseline.
enum Baseline {
    /// The mean of the training targets.
    Mean(Vec<f32>),
    /// The last channels of the input.
    Persistence,
    Linear(Linear),
    /// The last channels of the input, convolved with a Gaussian of this width in points.
    Blur(f64),
}

/// A model and the records that it is scored on.
pub struct RecordEvaluator<'a> {
    model: &'a TrainedRegression,
    set: &'a RecordSet,
    baselines: Vec<(String, Baseline)>,
}

impl<'a> RecordEvaluator<'a> {
    /// Fits the baselines to the training split.
    ///
    /// Errors: 65 when the records are not those that the model reads, or the training split is empty.
    pub fn new(
        model: &'a TrainedRegression,
        set: &'a RecordSet,
        train: &RecordSet,
    ) -> Result<Self> {
        let sides = model.sides();
        if set.sides() != &sides {
            let ([x, y], [u, v]) = (set.sides(), &sides);
            return Err(Error::data(format!(
                "inputs with {x} and targets with {y}, but the model was trained on {u} and {v}"
            )));
        }
        if set.is_empty() || train.name() != SplitName::Train {
            return Err(Error::data(format!("the {} split is empty", set.name())));
        }
        let stats = RecordStats::of(train)?;
        let [input, target] = set.sides();
        let points = target.len() / target.channels;
        let mean: Vec<f32> = stats.target.iter().map(|channel| channel.mean as f32).collect();
        let mut baselines = vec![("mean".to_string(), Baseline::Mean(mean.repeat(points)))];
        // A vector of features has nothing that could persist.
        let same_grid = input.grid == target.grid && !target.grid.is_empty();
        if same_grid && input.channels >= target.channels {
            baselines.push(("persistence".into(), Baseline::Persistence));
            let width = best_blur(train);
            baselines.extend(width.map(|width| ("Gaussian blur".into(), Baseline::Blur(width))));
        }
        let side = |radius: usize| vec![(2 * radius + 1).to_string(); input.grid.len()].join("x");
        let maps = match target.grid.is_empty() {
            true => vec![("linear".to_string(), None)],
            false => [0, 1].map(|radius| (format!("linear {}", side(radius)), Some(radius))).into(),
        };
        for (name, radius) in maps {
            let fitted = Linear::fit(train, radius)?;
            baselines.extend(fitted.map(|linear| (name, Baseline::Linear(linear))));
        }
        Ok(Self { model, set, baselines })
    }

    /// Whether the model was trained on the manifest of `set`.
    pub fn was_trained_on(&self, set: &RecordSet) -> bool {
        let mut models = self.model.models().into_iter();
        models.all(|(_, origin, _)| origin.was_trained_on(set.manifest_hash()))
    }

    /// The protocol of this evaluation on the split of the manifest at `split`.
    pub fn protocol(&self, split: &Path) -> RecordProtocol {
        let [input, target] = self.set.sides().clone();
        let models = self.model.models().into_iter();
        RecordProtocol {
            task: METHOD,
            split: split.display().to_string(),
            split_hash: self.set.manifest_hash().into(),
            on: self.set.name().to_string(),
            records: self.set.len(),
            input,
            target,
            models: models
                .map(|(task, origin, n)| (task, Trained { origin, parameters: n }))
                .collect(),
        }
    }

    /// Scores the records that `scores` does not have yet. Calls `done` after each batch; its error ends the work, which a
    /// later call continues.
    pub fn score(
        &self,
        mut scores: RecordScores,
        mut done: impl FnMut(&RecordScores) -> Result<()>,
    ) -> Result<RecordScores> {
        let [_, target] = self.set.sides();
        while scores.len() < self.set.len() {
            let some = scores.len()..self.set.len().min(scores.len() + BATCH);
            let inputs: Vec<f32> = some.clone().flat_map(|i| self.set.input(i)).copied().collect();
            let began = Instant::now();
            let found = self.model.solve(&inputs, &[])?;
            let seconds = began.elapsed().as_secs_f64() / some.len() as f64;
            for (i, found) in some.zip(found.chunks_exact(target.len())) {
                let truth = self.set.target(i);
                let errors = RegressionErrors::of(target.channels, found, truth);
                scores.squares.push(Bits(errors.overall().squared));
                scores.add(METHOD, &errors, seconds);
                for (name, baseline) in &self.baselines {
                    let began = Instant::now();
                    let found = baseline.predict(self.set.input(i), target);
                    let seconds = began.elapsed().as_secs_f64();
                    scores.add(
                        name,
                        &RegressionErrors::of(target.channels, &found, truth),
                        seconds,
                    );
                }
            }
            done(&scores)?;
        }
        Ok(scores)
    }

    /// Pictures of the records with the smallest, the median and the largest error, of a grid with three axes the plane in
    /// the middle of the first; none for targets without a grid. The input is the channel that persistence predicts.
    pub fn picture(&self, scores: &RecordScores) -> Result<Option<Vec<u8>>> {
        let [input, target] = self.set.sides();
        let (grid, plane, which) = match target.grid[..] {
            [] => return Ok(None),
            [depth, ref plane @ ..] if plane.len() == 2 => {
                (plane, depth / 2, format!(" in plane {} of {depth} along x", depth / 2))
            }
            _ => (&target.grid[..], 0, String::new()),
        };
        let points = grid.iter().product::<usize>();
        let mut order: Vec<usize> = (0..scores.len()).collect();
        order.sort_by(|a, b| scores.squares[*a].0.total_cmp(&scores.squares[*b].0));
        let chosen = [("best", 0), ("median", (order.len() - 1) / 2), ("worst", order.len() - 1)];
        let (mut pairs, mut records) = (Vec::new(), Vec::new());
        for (name, at) in chosen {
            let record = order[at];
            let found = self.model.solve(self.set.input(record), &[])?;
            let rmse = (scores.squares[record].0 / target.len() as f64).sqrt();
            let (file, number) = self.set.origin(record);
            let file = file.file_name().unwrap_or_default().to_string_lossy();
            let of = |values: &[f32], channel: usize, channels: usize| {
                let values = values.iter().skip(channel).step_by(channels);
                values.skip(plane * points).take(points).copied().collect()
            };
            let last = input.channels.checked_sub(target.channels);
            let last = last.filter(|_| input.grid == target.grid);
            records.push(format!("{name}: record {number} of {file}"));
            pairs.push(Pair {
                name: format!("{name}, RMSE {rmse:.3}"),
                input: last.map(|channel| of(self.set.input(record), channel, input.channels)),
                truth: of(self.set.target(record), 0, target.channels),
                prediction: of(&found, 0, target.channels),
            });
        }
        let title = format!("channel 0 of the target{which}");
        draw_pairs(&title, &records.join("; "), grid, &pairs).map(Some)
    }
}

/// Name of the model's own row.
const METHOD: &str = RegressionTask::SPEC.name;

impl Baseline {
    /// The prediction for an input; `side` is the shape of the target.
    fn predict(&self, input: &[f32], side: &Side) -> Vec<f32> {
        match self {
            Self::Mean(mean) => mean.clone(),
            Self::Linear(linear) => linear.predict(input),
            Self::Persistence => last_channels(input, side),
            Self::Blur(width) => blur(last_channels(input, side), side, *width),
        }
    }
}

/// The last channels of an input on the grid of the target.
fn last_channels(input: &[f32], side: &Side) -> Vec<f32> {
    let own = input.len() / (side.len() / side.channels);
    input.chunks_exact(own).flat_map(|point| &point[own - side.channels..]).copied().collect()
}

/// Convolves each axis of a field with a Gaussian of standard deviation `width` in points, cut off at four of these;
/// beyond the grid the last value continues, as in scipy.ndimage's mode `nearest`.
fn blur(mut field: Vec<f32>, side: &Side, width: f64) -> Vec<f32> {
    let radius = (4.0 * width + 0.5) as isize;
    let weight = |d: isize| (-0.5 * (d as f64 / width).powi(2)).exp();
    let total: f64 = (-radius..=radius).map(weight).sum();
    for (axis, n) in side.grid.iter().enumerate() {
        let after = side.grid[axis + 1..].iter().product::<usize>() * side.channels;
        let old = field.clone();
        for (i, out) in field.iter_mut().enumerate() {
            let place = (i / after % n) as isize;
            let value = |d: isize| {
                let at = (place + d).clamp(0, *n as isize - 1);
                weight(d) * f64::from(old[(i as isize + (at - place) * after as isize) as usize])
            };
            *out = ((-radius..=radius).map(value).sum::<f64>() / total) as f32;
        }
    }
    field
}

/// The width of the Gaussian with the smallest error on (at most 100 of) the training records; `None` if no blur helps.
fn best_blur(train: &RecordSet) -> Option<f64> {
    let [_, target] = train.sides();
    let records: Vec<usize> = (0..train.len()).step_by(train.len().div_ceil(100)).collect();
    let error = |width: f64| -> f64 {
        let of_record = |i: &usize| {
            let own = last_channels(train.input(*i), target);
            let found = if width > 0.0 { blur(own, target, width) } else { own };
            let pairs = found.iter().zip(train.target(*i));
            pairs.map(|(p, t)| f64::from(p - t).powi(2)).sum::<f64>()
        };
        records.par_iter().map(of_record).collect::<Vec<f64>>().iter().sum()
    };
    let widths: Vec<f64> =
        std::iter::once(0.0).chain((1..=16).map(|n| 0.25 * f64::from(n))).collect();
    let best = widths.into_iter().min_by(|a, b| error(*a).total_cmp(&error(*b)))?;
    (best > 0.0).then_some(best)
}

impl RecordScores {
    /// Number of records that were scored.
    pub fn len(&self) -> usize {
        self.squares.len()
    }

    /// Number of records for which the model's error is not finite.
    pub fn not_finite(&self) -> usize {
        self.squares.iter().filter(|square| !square.0.is_finite()).count()
    }

    /// Whether none was.
    pub fn is_empty(&self) -> bool {
        self.squares.is_empty()
    }

    fn add(&mut self, name: &str, errors: &RegressionErrors, seconds: f64) {
        match self.methods.iter_mut().find(|own| own.name == name) {
            Some(own) => {
                own.errors.merge(errors);
                own.seconds.0 += seconds;
            }
            None => self.methods.push(Method {
                name: name.into(),
                errors: errors.clone(),
                seconds: Bits(seconds),
            }),
        }
    }

    /// The content of metrics.json, in the format of evaluations of fields, with one space and without regimes. The
    /// metrics of a channel are in `channel_N`, if there are several.
    pub fn metrics_json(&self, protocol: &RecordProtocol) -> Value {
        let metrics = |errors: &ChannelErrors| -> Map<String, Value> {
            let number = |(name, value): (&str, f64)| (name.to_string(), json!(value));
            errors.metrics().into_iter().map(number).collect()
        };
        let of_method = |Method { name, errors, .. }: &Method| {
            let mut all = metrics(&errors.overall());
            let several = errors.0.iter().enumerate().filter(|_| errors.0.len() > 1);
            all.extend(several.map(|(n, own)| (format!("channel_{n}"), metrics(own).into())));
            (name.clone(), Value::Object(all))
        };
        json!({
            "format": "longhaul-evaluation",
            "version": 1,
            "protocol": protocol,
            "regimes": [],
            "overall": {"field": self.methods.iter().map(of_method).collect::<Map<_, _>>()},
        })
    }

    /// The content of times.json: wall-clock seconds per record, by method.
    pub fn times(&self) -> Value {
        let count = self.len().max(1) as f64;
        let of_method = |own: &Method| (own.name.clone(), json!(own.seconds.0 / count));
        json!({"seconds_per_record": self.methods.iter().map(of_method).collect::<Map<_, _>>()})
    }

    /// One row for each method, for a table.
    pub fn rows(&self) -> Vec<Value> {
        let row = |Method { name, errors, .. }: &Method| {
            let mut row = json!({"method": name});
            for (metric, value) in errors.overall().metrics() {
                if ["rmse", "mae", METRIC, "vrmse"].contains(&metric) {
                    row[metric] = json!(value);
                }
            }
            row
        };
        self.methods.iter().map(row).collect()
    }

    /// The content of metrics.csv: one line for each method, channel and metric; the channel is empty for all together.
    pub fn csv(&self) -> String {
        let mut text = "method,channel,metric,value\n".to_string();
        let mut lines = |method: &str, channel: &str, errors: &ChannelErrors| {
            for (metric, value) in errors.metrics() {
                let _ = writeln!(text, "{method},{channel},{metric},{value}"); // cannot fail
            }
        };
        for Method { name: method, errors, .. } in &self.methods {
            lines(method, "", &errors.overall());
            for (number, channel) in errors.0.iter().enumerate() {
                lines(method, &number.to_string(), channel);
            }
        }
        text
    }
}
