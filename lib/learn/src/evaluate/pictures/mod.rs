//! Pictures of an evaluation: one of each regime, and one of all.

mod axis;
mod canvas;
mod colours;
mod panel;
mod regime;
mod summary;

use super::batch::{Batch, Models};
use super::plan::Plan;
use super::protocol::Protocol;
use super::report::mean_of_starts;
use super::scores::{AllScores, Model};
use super::{Errors, Evaluation, Regime};
use data::split_set::TrajectorySet;
use unix::Result;

/// A rollout as it is shown.
struct Example {
    /// What was judged: `operator` or `codec`.
    name: &'static str,
    /// Times of the states.
    times: Vec<f64>,
    /// [steps + 1][points].
    truth: Vec<Vec<f32>>,
    /// As `truth`.
    prediction: Vec<Vec<f32>>,
    /// Its error.
    nrmse: f64,
}

/// A picture: its file name and its content as PNG.
pub type Picture = (String, Vec<u8>);

/// Draws all pictures of an evaluation of `set`.
pub fn draw(
    result: &Evaluation,
    models: Models,
    set: &TrajectorySet,
    plan: &Plan,
    protocol: &Protocol,
) -> Result<Vec<Picture>> {
    let mut pictures = vec![("summary.png".to_string(), summary::draw(result, protocol)?)];
    for regime in &result.regimes {
        let example = Example::of(regime, models, set, plan)?;
        let name = format!("{}-{}.png", regime.parameter.name, regime.parameter.value);
        pictures.push((name, regime::draw(result, regime, &example, protocol)?));
    }
    Ok(pictures)
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
            truth.push(t.to_vec());
            prediction.push(p.to_vec());
            let frame = plan.frame(start, step);
            let measured = set.t().get(frame).copied();
            times.push(measured.unwrap_or(frame as f64 * set.frame_interval()));
        }
        let name = if batch.has_forecast() { Model::Operator } else { Model::Codec }.name();
        Ok(Self { name, times, truth, prediction, nrmse: errors.nrmse() })
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
