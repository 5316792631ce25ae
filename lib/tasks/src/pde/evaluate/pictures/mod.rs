//! Pictures of an evaluation, one for each regime and a summary, and pictures of a trajectory in a file.

mod frames;
mod regime;
mod summary;
pub mod trajectory;

use super::plan::Start;
use super::report::mean_of_starts;
use super::scores::{Method, Scores};
use super::{Evaluation, Frames, Regime, RolloutEvaluator};
use report::axis::Axis;
use report::colours::{Colour, distinct};
use report::{canvas, panel};
use unix::Result;

/// A rollout to draw.
struct DrawnRollout {
    /// Name of the evaluated model.
    name: &'static str,
    /// Times of the states.
    times: Vec<f64>,
    /// Grid points along each axis.
    grid: Vec<usize>,
    /// States [steps + 1][points] of the first channel.
    truth: Vec<Vec<f32>>,
    /// Same layout as `truth`.
    prediction: Vec<Vec<f32>>,
    /// NRMSE of the rollout.
    nrmse: f64,
}

/// Returns whether a model only serves as a reference. References are drawn as rings or dashed lines, since their
/// colours are not unique.
fn is_reference(model: Method) -> bool {
    model.is_baseline() || matches!(model, Method::CandidateMean | Method::Oracle)
}

/// Returns the colour of a model.
fn of_model(model: Method) -> Colour {
    match model {
        Method::Operator | Method::Regression => distinct(0),
        Method::Persistence | Method::Nearest | Method::SearchViews => distinct(1),
        Method::Codec | Method::Search => distinct(2),
        Method::Corrector | Method::CandidateMean => distinct(3),
        Method::Student => distinct(4),
        Method::Views => distinct(5),
        Method::Ensemble | Method::Oracle => distinct(6),
        Method::Mean => [0x99, 0x99, 0x99],
    }
}

/// A picture: file name and contents as PNG.
type Picture = (String, Vec<u8>);

/// Draws all pictures of an evaluation. `done` is called before each regime; if it returns an error, drawing stops.
pub(crate) fn draw(
    result: &Evaluation,
    evaluator: &RolloutEvaluator,
    done: impl Fn() -> Result<()>,
) -> Result<Vec<Picture>> {
    let (mut pictures, protocol) = (Vec::new(), &evaluator.protocol);
    if result.steps > 0 {
        pictures.push(("summary.png".to_string(), summary::draw(result, protocol)?));
    }
    for (number, regime) in result.regimes.iter().enumerate() {
        done()?;
        let example = |quantile: f64| {
            let (at, nrmse) = regime.at_quantile(quantile);
            let start = evaluator.plan.rollouts(&evaluator.plan.regimes[number])[at];
            DrawnRollout::of(start, nrmse, evaluator)
        };
        let png = match protocol.grid[..] {
            _ if result.steps > 0 => regime::draw(result, regime, &example(0.5)?, protocol)?,
            [x, y] => draw_solutions(regime, [x, y], [example(0.5)?, example(1.0)?])?,
            _ => continue,
        };
        let name = format!("{}-{}.png", regime.parameter.name, regime.parameter.value);
        pictures.push((name, png));
    }
    Ok(pictures)
}

/// Draws one rollout: its states in space and time, or the solution of a steady problem.
pub(crate) fn of_rollout(evaluator: &RolloutEvaluator, start: Start) -> Result<Option<Vec<u8>>> {
    let mut example = DrawnRollout::of(start, 0.0, evaluator)?;
    let title = format!("trajectory {} from frame {}", start.trajectory, start.frame);
    match (evaluator.plan.steps, example.grid.len()) {
        (0, 1 | 2) => {
            let (truth, prediction) = (example.truth.remove(0), example.prediction.remove(0));
            let pair = Pair { name: example.name.into(), input: None, truth, prediction };
            draw_pairs(&title, "", &example.grid, &[pair]).map(Some)
        }
        (_, 1 | 2) => regime::draw_rollout(&title, &example).map(Some),
        _ => Ok(None),
    }
}

/// Draws two solutions of steady problems on [x, y], one per row: the solutions with the median and the largest error.
fn draw_solutions(
    regime: &Regime,
    grid: [usize; 2],
    examples: [DrawnRollout; 2],
) -> Result<Vec<u8>> {
    let pairs = examples.into_iter().zip(["median", "largest"]).map(|(example, which)| {
        let DrawnRollout { name, nrmse, mut truth, mut prediction, .. } = example;
        let name = format!("{name}, {which} error {nrmse:.3}");
        let (truth, prediction) = (truth.swap_remove(0), prediction.swap_remove(0));
        Pair { name, input: None, truth, prediction }
    });
    draw_pairs(&regime.parameter.to_string(), "", &grid, &pairs.collect::<Vec<_>>())
}

/// A target and its prediction: one channel at all points.
pub struct Pair {
    /// Title of the pair.
    pub name: String,
    /// The input, drawn if the grid has two axes.
    pub input: Option<Vec<f32>>,
    /// The target.
    pub truth: Vec<f32>,
    /// The prediction.
    pub prediction: Vec<f32>,
}

/// Draws pairs on a grid of one or two axes, one below the other.
pub fn draw_pairs(title: &str, text: &str, grid: &[usize], pairs: &[Pair]) -> Result<Vec<u8>> {
    let height = (50.0 + frames::ROW * pairs.len() as f64) as u32;
    let has_inputs = grid.len() == 2 && pairs.iter().any(|pair| pair.input.is_some());
    let width = if has_inputs { frames::WIDTH + frames::INPUT } else { frames::WIDTH };
    canvas::png(width, height, |canvas| {
        panel::heading(canvas, title, text)?;
        if let [x, y] = *grid {
            let mut rows = Vec::new();
            for Pair { name, input, truth, prediction } in pairs {
                let input = input.as_deref();
                rows.push(frames::Row { name, time: None, input, truth, prediction });
            }
            return frames::draw(canvas, 44.0, [x, y], Axis::linear("y / L", 0.0, 1.0), &rows);
        }
        for (number, Pair { name, truth, prediction, .. }) in pairs.iter().enumerate() {
            let all = truth.iter().chain(prediction).map(|u| f64::from(*u));
            let (low, high) = all.fold((f64::MAX, f64::MIN), |(l, h), u| (l.min(u), h.max(u)));
            let y = 44.0 + frames::ROW * number as f64;
            let area = canvas::Area { x: 8.0, y, width: 1380.0, height: frames::ROW };
            let axes = [Axis::linear("x / L", 0.0, 1.0), Axis::linear("u", low, high)];
            let line = |values: &[f32]| -> Vec<(f64, f64)> {
                let place = |i: usize| (i as f64 + 0.5) / values.len() as f64;
                (0..).zip(values).map(|(i, u)| (place(i), f64::from(*u))).collect()
            };
            let [x, y] = axes;
            let curves = [
                panel::Curve::new("target", distinct(0), 1.6, line(truth)),
                panel::Curve::new("prediction", distinct(1), 1.6, line(prediction)),
            ];
            panel::Panel::new(canvas, area, x, y).curves(name, &curves)?;
        }
        Ok(())
    })
}

impl DrawnRollout {
    /// Recomputes a rollout whose NRMSE is `nrmse`.
    fn of(start: Start, nrmse: f64, evaluator: &RolloutEvaluator) -> Result<Self> {
        let RolloutEvaluator { model, set, plan, .. } = evaluator;
        let batch = evaluator.rollouts(&[start])?;
        let (grid, channels) = model.shape();
        let states = |frames: &Frames| -> Vec<Vec<f32>> {
            let first = |step| frames.at(0, step).iter().step_by(channels).copied().collect();
            (0..=plan.steps).map(first).collect()
        };
        let time = |step| {
            let frame = plan.frame(start, step);
            set.t().get(frame).copied().unwrap_or(frame as f64 * set.frame_interval())
        };
        Ok(Self {
            name: batch.field().models[0].0.name(),
            times: (0..=plan.steps).map(time).collect(),
            grid: grid.to_vec(),
            truth: states(&batch.field().truth),
            prediction: states(batch.prediction()),
            nrmse,
        })
    }

    /// Returns the rows for the states in the middle and at the end, for a field with two axes.
    fn frames(&self) -> Vec<frames::Row<'_>> {
        let last = self.times.len().saturating_sub(1);
        let mut steps = vec![last / 2, last];
        steps.dedup();
        let row = |&step: &usize| frames::Row {
            name: self.name,
            time: Some(self.times[step]),
            input: None,
            truth: &self.truth[step],
            prediction: &self.prediction[step],
        };
        steps.iter().map(row).collect()
    }

    /// Returns a line through a state: all of it on one axis; on two, the line along the second at the middle.
    fn line<'a>(&self, state: &'a [f32]) -> &'a [f32] {
        match self.grid[..] {
            [x, y] => &state[x / 2 * y..][..y],
            _ => state,
        }
    }

    /// Range of the time axis of the space-time image, in which each state is a stripe centred at its time.
    fn span(&self) -> (f64, f64) {
        match self.times[..] {
            [first, second, .., last] => {
                let half = (second - first) / 2.0;
                (first - half, last + half)
            }
            [first, last] => (first - (last - first) / 2.0, last + (last - first) / 2.0),
            _ => (0.0, 1.0),
        }
    }
}

/// Returns the NRMSE of the states by time since the start, averaged over start frames. Steps with zero error are
/// omitted, because the axis is logarithmic.
fn errors_by_time(regime: &Regime, model: Method, time_step: f64) -> Vec<(f64, f64)> {
    let error = |step: usize| {
        let at = |scores: &Scores| Some(scores.field(model)?.get(step)?.nrmse());
        mean_of_starts(regime, at).filter(|error| *error > 0.0)
    };
    let steps = regime.by_start[0].field(model).map_or(0, <[_]>::len);
    (0..steps).filter_map(|step| Some((step as f64 * time_step, error(step)?))).collect()
}

/// Returns the symbol of a parameter.
fn symbol(name: &str) -> &str {
    match name {
        "nu" => "ν",
        "beta" => "β",
        other => other,
    }
}

#[cfg(test)]
mod tests;
