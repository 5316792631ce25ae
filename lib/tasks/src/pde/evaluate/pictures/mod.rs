//! Pictures of an evaluation: one of each regime, and one of all; and of a trajectory of a file.

mod frames;
mod regime;
mod summary;
pub mod trajectory;

use super::batch::{Batch, Models};
use super::plan::Plan;
use super::protocol::Protocol;
use super::report::mean_of_starts;
use super::scores::{AllScores, Model};
use super::{Errors, Evaluation, Regime};
use data::fields::split_set::TrajectorySet;
use report::colours::{Colour, distinct};
use report::{canvas, panel};
use unix::Result;

/// A rollout as it is shown.
struct Example {
    /// What was judged: `operator` or `codec`.
    name: &'static str,
    /// Times of the states.
    times: Vec<f64>,
    /// Points along each axis.
    grid: Vec<usize>,
    /// [steps + 1][points], of the first channel.
    truth: Vec<Vec<f32>>,
    /// As `truth`.
    prediction: Vec<Vec<f32>>,
    /// Its error.
    nrmse: f64,
}

/// The colour of a model.
fn of_model(model: Model) -> Colour {
    match model {
        Model::Operator => distinct(0),
        Model::Persistence => distinct(1),
        Model::Codec => distinct(2),
        Model::Mean => [0x99, 0x99, 0x99],
    }
}

/// A picture: its file name and its content as PNG.
pub type Picture = (String, Vec<u8>);

/// Draws all pictures of an evaluation of `set`; `done` is asked before each regime, and may end it.
pub fn draw(
    result: &Evaluation,
    models: Models,
    set: &TrajectorySet,
    plan: &Plan,
    protocol: &Protocol,
    done: impl Fn() -> Result<()>,
) -> Result<Vec<Picture>> {
    let mut pictures = vec![("summary.png".to_string(), summary::draw(result, protocol)?)];
    for regime in &result.regimes {
        done()?;
        let example = Example::of(regime, models, set, plan)?;
        let name = format!("{}-{}.png", regime.parameter.name, regime.parameter.value);
        pictures.push((name, regime::draw(result, regime, &example, protocol)?));
    }
    Ok(pictures)
}

/// Draws fields [x, y] on two axes, a row for each: what it is, truth, prediction.
pub(crate) fn draw_fields(
    title: &str,
    grid: [usize; 2],
    shown: &[(String, Vec<f32>, Vec<f32>)],
) -> Result<Vec<u8>> {
    let mut rows = Vec::new();
    for (name, truth, prediction) in shown {
        rows.push(frames::Row { name, time: None, truth, prediction });
    }
    canvas::png(1400, (50.0 + frames::ROW * rows.len() as f64) as u32, |canvas| {
        let letters = canvas::Letters { size: 24.0, ..panel::TITLE };
        canvas.text(title, (28.0, 24.0), letters)?;
        frames::draw(canvas, 44.0, grid, &rows)
    })
}

impl Example {
    /// Makes the typical rollout of a regime again.
    fn of(regime: &Regime, models: Models, set: &TrajectorySet, plan: &Plan) -> Result<Self> {
        let start = regime.typical;
        let batch = Batch::run(models, set, plan, &[start])?;
        let (mut truth, mut prediction, mut times) = (Vec::new(), Vec::new(), Vec::new());
        let mut errors = Errors::default();
        for step in 0..=plan.steps {
            let (t, p) = (batch.truth(0, step), batch.prediction(0, step));
            if step > 0 {
                errors.add(p, t);
            }
            let first = |u: &[f32]| u.iter().step_by(models.codec.channels()).copied().collect();
            truth.push(first(t));
            prediction.push(first(p));
            let frame = plan.frame(start, step);
            let measured = set.t().get(frame).copied();
            times.push(measured.unwrap_or(frame as f64 * set.frame_interval()));
        }
        let name = if batch.has_forecast() { Model::Operator } else { Model::Codec }.name();
        let grid = models.codec.grid().to_vec();
        Ok(Self { name, grid, times, truth, prediction, nrmse: errors.nrmse() })
    }

    /// The states in the middle and at the end, of a field on two axes.
    fn frames(&self) -> Vec<frames::Row<'_>> {
        let last = self.times.len().saturating_sub(1);
        let mut steps = vec![last / 2, last];
        steps.dedup();
        let row = |&step: &usize| frames::Row {
            name: self.name,
            time: Some(self.times[step]),
            truth: &self.truth[step],
            prediction: &self.prediction[step],
        };
        steps.iter().map(row).collect()
    }

    /// A line through a state: all of it on one axis, on two that along the second through the middle.
    fn line<'a>(&self, state: &'a [f32]) -> &'a [f32] {
        match self.grid[..] {
            [x, y] => &state[x / 2 * y..][..y],
            _ => state,
        }
    }

    /// The time axis of its image, in which each state is a stripe about its time.
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

/// NRMSE of the states by the time since the start, averaged over start frames; step 0 is left out
/// where it is exact.
fn errors_by_time(regime: &Regime, model: Model, time_step: f64) -> Vec<(f64, f64)> {
    let error = |step: usize| {
        let at = |scores: &AllScores| Some(scores.field.at(model, step)?.errors().nrmse());
        mean_of_starts(regime, at).filter(|error| *error > 0.0)
    };
    let steps = 0..=regime.scores.field.steps();
    steps.filter_map(|step| Some((step as f64 * time_step, error(step)?))).collect()
}

/// The letter of a parameter.
fn symbol(name: &str) -> &str {
    match name {
        "nu" => "ν",
        "beta" => "β",
        other => other,
    }
}

#[cfg(test)]
mod tests;
