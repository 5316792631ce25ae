//! Scores of a trained model and of untrained baselines on records.

use super::linear::Linear;
use super::task::{METRIC, RegressionTask};
use super::trained::TrainedRegression;
use crate::pde::evaluate::pictures::{Pair, draw_pairs};
use data::inputs::InputFile;
use data::records::{RecordSet, RecordStats, ValueShape};
use data::split::SplitName;
use learn::evaluate::{Block, Evaluator, Losses, Model, Results, Shown, not_finite, subject};
use learn::score::{Bits, RegressionErrors};
use learn::task::Define;
use rayon::prelude::*;
use report::evaluation::{Metric, Scores, Subject};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Instant;
use unix::text::json_pretty;
use unix::{Error, Result};

/// Number of records scored per block; an interrupted evaluation resumes after the last complete block.
const BATCH: u64 = 256;

/// The accumulated errors of each method; the model comes first.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RecordSums(Vec<Method>);

/// The accumulated errors of a method, and the total time of its predictions.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Method {
    name: String,
    errors: RegressionErrors,
    seconds: Bits,
}

/// A baseline.
enum Baseline {
    /// The mean of the training targets.
    Mean(Vec<f32>),
    /// The last channels of the input.
    Persistence,
    Linear(Linear),
    /// The last channels of the input, convolved with a Gaussian of this standard deviation in points.
    Blur(f64),
}

/// Scores a model on the records of a split.
pub struct RecordEvaluator {
    model: TrainedRegression,
    /// The split manifest.
    manifest: PathBuf,
    set: RecordSet,
    /// The group of each record, numbered from 0.
    groups: Vec<u64>,
    baselines: Vec<(String, Baseline)>,
}

impl RecordEvaluator {
    /// Opens the evaluation and fits the baselines to the training split.
    ///
    /// Errors: 65 when the shapes of the records differ from those of the model, or the training split is empty.
    pub fn open(model: TrainedRegression, manifest: &Path, split: SplitName) -> Result<Self> {
        let [set, train] = [split, SplitName::Train].map(|name| RecordSet::open(manifest, name));
        let (set, train) = (set?, train?);
        let sides = model.sides();
        if set.sides() != &sides {
            let ([x, y], [u, v]) = (set.sides(), &sides);
            return Err(Error::data(format!(
                "the inputs have {x} and the targets {y}, but the model was trained on {u} and {v}"
            )));
        }
        for set in [&set, &train] {
            if set.is_empty() {
                return Err(Error::data(format!("the {} split is empty", set.name())));
            }
        }
        let stats = RecordStats::of(&train)?;
        let [input, target] = set.sides();
        let points = target.len() / target.channels;
        let mean: Vec<f32> = stats.target.iter().map(|channel| channel.mean as f32).collect();
        let mut baselines = vec![("mean".to_string(), Baseline::Mean(mean.repeat(points)))];
        // Persistence is not defined for a vector of features.
        let same_grid = input.grid == target.grid && !target.grid.is_empty();
        if same_grid && input.channels >= target.channels {
            baselines.push(("persistence".into(), Baseline::Persistence));
            let width = best_blur(&train);
            baselines.extend(width.map(|width| ("Gaussian blur".into(), Baseline::Blur(width))));
        }
        let side = |radius: usize| vec![(2 * radius + 1).to_string(); input.grid.len()].join("x");
        let maps = match target.grid.is_empty() {
            true => vec![("linear".to_string(), None)],
            false => [0, 1].map(|radius| (format!("linear {}", side(radius)), Some(radius))).into(),
        };
        for (name, radius) in maps {
            let fitted = Linear::fit(&train, radius)?;
            baselines.extend(fitted.map(|linear| (name, Baseline::Linear(linear))));
        }
        let mut known = HashMap::new();
        let mut number = |i: usize| {
            let next = known.len() as u64;
            *known.entry(set.group(i)).or_insert(next)
        };
        let groups = (0..set.len()).map(&mut number).collect();
        Ok(Self { model, manifest: manifest.to_path_buf(), set, groups, baselines })
    }

    /// Returns the plane of a field to draw: its grid, its index along the first axis, and a suffix for the title. A
    /// field with three axes is cut in the middle of the first one. `None` for targets without a grid.
    fn plane(&self) -> Option<(&[usize], usize, String)> {
        let [_, target] = self.set.sides();
        match target.grid[..] {
            [] => None,
            [depth, ref plane @ ..] if plane.len() == 2 => {
                let title = format!(" in plane {} of {depth} along x", depth / 2);
                Some((plane, depth / 2, title))
            }
            _ => Some((&target.grid[..], 0, String::new())),
        }
    }

    /// Draws some records, given with their names; `None` for targets without a grid. The input is drawn as the channel
    /// that persistence predicts.
    fn picture(&self, records: &[(String, usize)]) -> Result<Option<Vec<u8>>> {
        let [input, target] = self.set.sides();
        let Some((grid, plane, which)) = self.plane() else { return Ok(None) };
        let points = grid.iter().product::<usize>();
        let of = |values: &[f32], channel: usize, channels: usize| {
            let values = values.iter().skip(channel).step_by(channels);
            values.skip(plane * points).take(points).copied().collect()
        };
        let last = input.channels.checked_sub(target.channels);
        let last = last.filter(|_| input.grid == target.grid);
        let pair = |(name, record): &(String, usize)| {
            let found = self.model.solve(self.set.input(*record), &[])?;
            Ok(Pair {
                name: name.clone(),
                input: last.map(|channel| of(self.set.input(*record), channel, input.channels)),
                truth: of(self.set.target(*record), 0, target.channels),
                prediction: of(&found, 0, target.channels),
            })
        };
        let pairs = records.iter().map(pair).collect::<Result<Vec<_>>>()?;
        let places = records.iter().map(|(name, record)| {
            let (file, number) = self.set.origin(*record);
            let file = file.file_name().unwrap_or_default().to_string_lossy();
            format!("{}: record {number} of {file}", name.split(',').next().unwrap_or(name))
        });
        let text = places.collect::<Vec<_>>().join("; ");
        draw_pairs(&format!("channel 0 of the target{which}"), &text, grid, &pairs).map(Some)
    }

    /// Returns the records with the smallest, the median and the largest error, with their names.
    fn typical(losses: &[f64]) -> [(String, usize); 3] {
        let mut order: Vec<usize> = (0..losses.len()).collect();
        order.sort_by(|a, b| losses[*a].total_cmp(&losses[*b]));
        let last = order.len() - 1;
        [("best", 0), ("median", last / 2), ("worst", last)].map(|(name, at)| {
            let record = order[at];
            (format!("{name}, RMSE {:.3}", losses[record].sqrt()), record)
        })
    }
}

/// The errors of a record by method, and the seconds that each prediction took.
type MeasuredRecord = Vec<(RegressionErrors, Bits)>;

impl Evaluator for RecordEvaluator {
    type Part = Vec<MeasuredRecord>;
    type Sums = RecordSums;

    fn subject(&self) -> Subject {
        let [input, target] = self.set.sides();
        let (split, data) = (self.set.name(), (&*self.manifest, self.set.manifest_hash()));
        let mut subject = subject((METHOD, METRIC), data, split);
        subject.description = format!(
            "{} records of the {split} split: inputs with {input}, targets with {target}",
            self.set.len()
        );
        subject.protocol.extend([
            ("records".into(), self.set.len().into()),
            ("input".into(), json!(input)),
            ("target".into(), json!(target)),
        ]);
        subject
    }

    fn models(&self) -> Vec<Model> {
        vec![self.model.model(Some(self.set.manifest_hash().into()))]
    }

    fn noun(&self) -> &'static str {
        "records"
    }

    fn items(&self) -> u64 {
        self.set.len() as u64
    }

    fn block_end(&self, first: u64) -> u64 {
        first + BATCH
    }

    fn inputs(&self) -> Vec<InputFile> {
        self.set.input_files()
    }

    fn loss_name(&self) -> &'static str {
        "mse"
    }

    fn cluster(&self, item: u64) -> u64 {
        self.groups[item as usize]
    }

    fn shown(&self) -> usize {
        4
    }

    fn measure(&self, block: Range<u64>) -> Result<Block<Vec<MeasuredRecord>>> {
        let [_, target] = self.set.sides();
        let records = block.start as usize..block.end as usize;
        let inputs: Vec<f32> = records.clone().flat_map(|i| self.set.input(i)).copied().collect();
        let began = Instant::now();
        let found = self.model.solve(&inputs, &[])?;
        let seconds = began.elapsed().as_secs_f64() / records.len() as f64;
        let (mut part, mut losses) = (Vec::new(), Vec::new());
        for (i, found) in records.zip(found.chunks_exact(target.len())) {
            let errors = RegressionErrors::of(target.channels, found, self.set.target(i));
            losses.push((errors.overall().squared / target.len() as f64).into());
            let mut own = vec![(errors, Bits(seconds))];
            for (_, baseline) in &self.baselines {
                let began = Instant::now();
                let found = baseline.predict(self.set.input(i), target);
                let seconds = Bits(began.elapsed().as_secs_f64());
                let errors = RegressionErrors::of(target.channels, &found, self.set.target(i));
                own.push((errors, seconds));
            }
            part.push(own);
        }
        Ok(Block { part, losses })
    }

    fn add(&self, sums: &mut RecordSums, part: Vec<MeasuredRecord>) {
        for own in part {
            let baselines = self.baselines.iter().map(|(name, _)| name.as_str());
            for (name, (errors, seconds)) in std::iter::once(METHOD).chain(baselines).zip(&own) {
                sums.add(name, errors, seconds.0);
            }
        }
    }

    fn finish(&self, sums: &RecordSums, losses: &Losses) -> Result<Results> {
        let all = losses.values.len();
        let picture = self.picture(&Self::typical(&losses.values))?;
        let times = json_pretty(&sums.times(all)).map_err(Error::bug)?;
        let picture = picture.map(|png| ("pictures/records.png".into(), png));
        let mut scores = sums.scores(all as u64);
        if let Some(rmse) = scores.methods.get_mut(METHOD).and_then(|own| own.get_mut("rmse")) {
            let interval = losses.mean_of(|record| losses.values[record]).interval;
            *rmse = rmse.clone().with_interval(Some(interval.map(f64::sqrt)));
        }
        let bad = losses.values.iter().filter(|loss| !loss.is_finite()).count();
        Ok(Results {
            scores,
            rows: sums.rows(),
            files: picture.into_iter().chain([("times.json".into(), times.into_bytes())]).collect(),
            failed: not_finite(bad, all, self.noun()),
            ..Results::default()
        })
    }

    fn show(&self, _: &RecordSums, item: u64) -> Result<Shown> {
        let (file, number) = self.set.origin(item as usize);
        let fields = Map::from_iter([
            ("file".into(), file.display().to_string().into()),
            ("record".into(), number.into()),
        ]);
        let picture = self.picture(&[(format!("record {number}"), item as usize)])?;
        Ok(Shown { fields, picture, ..Shown::default() })
    }
}

/// Name of the model's row in the scores.
const METHOD: &str = RegressionTask::SPEC.name;

impl Baseline {
    /// Predicts the target for an input; `side` is the shape of the target.
    fn predict(&self, input: &[f32], side: &ValueShape) -> Vec<f32> {
        match self {
            Self::Mean(mean) => mean.clone(),
            Self::Linear(linear) => linear.predict(input),
            Self::Persistence => last_channels(input, side),
            Self::Blur(width) => blur(last_channels(input, side), side, *width),
        }
    }
}

/// Returns the last channels of an input on the grid of the target.
fn last_channels(input: &[f32], side: &ValueShape) -> Vec<f32> {
    let own = input.len() / (side.len() / side.channels);
    input.chunks_exact(own).flat_map(|point| &point[own - side.channels..]).copied().collect()
}

/// Convolves each axis of a field with a Gaussian of standard deviation `width` in points, truncated at four standard
/// deviations. The field is extended by its edge values, like mode `nearest` of scipy.ndimage.
fn blur(mut field: Vec<f32>, side: &ValueShape, width: f64) -> Vec<f32> {
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

/// Returns the Gaussian width with the smallest error on at most 100 training records; `None` if no blur helps.
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

impl RecordSums {
    fn add(&mut self, name: &str, errors: &RegressionErrors, seconds: f64) {
        match self.0.iter_mut().find(|own| own.name == name) {
            Some(own) => {
                own.errors.merge(errors);
                own.seconds.0 += seconds;
            }
            None => self.0.push(Method {
                name: name.into(),
                errors: errors.clone(),
                seconds: Bits(seconds),
            }),
        }
    }

    /// Returns the metrics of every method. If there are several channels, those of a channel are named
    /// `METRIC[CHANNEL]`.
    fn scores(&self, samples: u64) -> Scores {
        let of_method = |Method { name, errors, .. }: &Method| {
            let all = errors.metrics().into_iter();
            (name.clone(), all.map(|(name, value)| (name, Metric::error(value))).collect())
        };
        Scores { samples, methods: self.0.iter().map(of_method).collect() }
    }

    /// Returns the content of times.json: wall-clock seconds per record, by method.
    fn times(&self, records: usize) -> Value {
        let count = records.max(1) as f64;
        let of_method = |own: &Method| (own.name.clone(), json!(own.seconds.0 / count));
        json!({"seconds_per_record": self.0.iter().map(of_method).collect::<Map<_, _>>()})
    }

    /// Returns the rows of a table, one for each method.
    fn rows(&self) -> Vec<Value> {
        let row = |Method { name, errors, .. }: &Method| {
            let mut row = json!({"method": name});
            for (metric, value) in errors.overall().metrics() {
                if ["rmse", "mae", METRIC, "vrmse"].contains(&metric) {
                    row[metric] = json!(value);
                }
            }
            row
        };
        self.0.iter().map(row).collect()
    }
}
