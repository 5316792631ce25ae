//! The picture of one regime: a typical rollout in space and time, and the errors of all rollouts.

use super::frames::{self, ROW, Row};
use super::{DrawnRollout, errors_by_time, is_reference, of_model, symbol};
use crate::pde::evaluate::protocol::Protocol;
use crate::pde::evaluate::report::of_starts;
use crate::pde::evaluate::scores::Method;
use crate::pde::evaluate::{Evaluation, Regime};
use learn::score::Bits;
use report::axis::{Axis, plain, short};
use report::canvas::{Area, Canvas, png};
use report::colours::{INK, distinct};
use report::panel::{Curve, Panel, heading};
use unix::Result;

const WIDTH: u32 = 1400;
const HEIGHT: u32 = 960;
/// Top of the space-time images, in pixels.
const TOP: f64 = 62.0;

/// Draws the picture of a regime as PNG.
pub fn draw(
    result: &Evaluation,
    regime: &Regime,
    example: &DrawnRollout,
    protocol: &Protocol,
) -> Result<Vec<u8>> {
    let frames = example.frames();
    // One row of images for space-time, one per frame in two dimensions.
    let more = match example.grid.len() {
        2 => ROW * (frames.len() - 1) as f64,
        _ => 0.0,
    };
    png(WIDTH, HEIGHT + more as u32, |canvas| {
        head(canvas, result, regime, example, protocol)?;
        match example.grid[..] {
            [x, y] => {
                frames::draw(canvas, TOP, [x, y], Axis::linear("y / L", 0.0, 1.0), &frames)?;
            }
            _ => draw_space_time(canvas, example)?,
        }
        let third = f64::from(WIDTH) / 3.0 - 8.0;
        let area = |i: usize| Area {
            x: 8.0 + third * i as f64,
            y: 526.0 + more,
            width: third,
            height: 424.0,
        };
        error_over_time(canvas, area(0), regime, protocol)?;
        last_state(canvas, area(1), example)?;
        spectrum(canvas, area(2), regime)
    })
}

/// Draws a single rollout.
pub fn draw_rollout(title: &str, example: &DrawnRollout) -> Result<Vec<u8>> {
    let frames = example.frames();
    let rows = if example.grid.len() == 2 { frames.len() } else { 1 };
    png(WIDTH, (TOP + ROW * rows as f64) as u32, |canvas| {
        heading(canvas, title, "")?;
        match example.grid[..] {
            [x, y] => frames::draw(canvas, TOP, [x, y], Axis::linear("y / L", 0.0, 1.0), &frames),
            _ => draw_space_time(canvas, example),
        }
    })
}

fn head(
    canvas: &Canvas,
    result: &Evaluation,
    regime: &Regime,
    example: &DrawnRollout,
    protocol: &Protocol,
) -> Result<()> {
    let error =
        |model: Method| Some(format!("{} {}", model.name(), short(of_starts(regime, model)?)));
    let errors: Vec<String> = regime.by_start[0].models().into_iter().filter_map(error).collect();
    let parameter = &regime.parameter;
    let title =
        format!("{} = {}   NRMSE: {}", symbol(&parameter.name), parameter.value, errors.join(", "));
    let text = format!(
        "{} steps of Δt = {}, {} rollouts from {} trajectories of the {} split, {} grid points; in space \
         and time: the rollout of median error, {}",
        result.steps,
        plain(protocol.time_step),
        regime.rollouts(),
        regime.trajectories,
        protocol.on,
        protocol.points(),
        short(example.nrmse),
    );
    heading(canvas, &title, &text)
}

/// Draws a one-dimensional rollout as one row of images, with time upwards.
fn draw_space_time(canvas: &Canvas, example: &DrawnRollout) -> Result<()> {
    let (points, states) = (example.truth[0].len(), example.truth.len());
    let by_point = |states: &[Vec<f32>]| -> Vec<f32> {
        (0..points).flat_map(|x| states.iter().map(move |state| state[x])).collect()
    };
    let (truth, prediction) = (by_point(&example.truth), by_point(&example.prediction));
    let row =
        Row { name: example.name, time: None, input: None, truth: &truth, prediction: &prediction };
    let (first, last) = example.span();
    frames::draw(canvas, TOP, [points, states], Axis::linear("time t", first, last), &[row])
}

fn error_over_time(
    canvas: &Canvas,
    area: Area,
    regime: &Regime,
    protocol: &Protocol,
) -> Result<()> {
    let curves: Vec<Curve> = regime.by_start[0]
        .models()
        .into_iter()
        .map(|model| {
            let points = errors_by_time(regime, model, protocol.time_step);
            let curve = Curve::new(model.name(), of_model(model), 2.2, points);
            match model {
                Method::Codec => curve.dashed(2.0, 3.0),
                _ if is_reference(model) => curve.dashed(8.0, 4.0),
                _ => curve,
            }
        })
        .collect();
    let values = curves.iter().flat_map(|curve| curve.points.iter().map(|(_, e)| *e));
    let y = Axis::logarithmic("NRMSE", values);
    let x = Axis::linear("time since the start", 0.0, protocol.time_step * protocol.steps as f64);
    Panel::new(canvas, area, x, y).curves("Error over time", &curves)
}

fn last_state(canvas: &Canvas, area: Area, example: &DrawnRollout) -> Result<()> {
    let (Some(first), Some(last), Some(prediction)) =
        (example.truth.first(), example.truth.last(), example.prediction.last())
    else {
        return Ok(());
    };
    let curve = |name: &str, colour, width, values: &[f32]| {
        let n = values.len() as f64;
        let points = values.iter().enumerate().map(|(i, u)| ((i as f64 + 0.5) / n, f64::from(*u)));
        Curve::new(name, colour, width, points)
    };
    let curves = [
        curve(example.name, distinct(0), 2.0, example.line(prediction)).dashed(7.0, 4.0),
        curve("truth", INK, 2.0, example.line(last)),
        curve("start", [0xaa, 0xaa, 0xaa], 1.5, example.line(first)),
    ];
    let all = || curves.iter().flat_map(|curve| curve.points.iter().map(|(_, u)| *u));
    let (low, high) = all().fold((f64::MAX, f64::MIN), |(l, h), u| (l.min(u), h.max(u)));
    let margin = 0.05 * (high - low);
    let y = Axis::linear("u", low - margin, high + margin);
    let title = format!("State at t = {}", plain(example.times.last().copied().unwrap_or(0.0)));
    let x = if example.grid.len() == 2 { "y / L, in the middle of x" } else { "x / L" };
    Panel::new(canvas, area, Axis::linear(x, 0.0, 1.0), y).curves(&title, &curves)
}

fn spectrum(canvas: &Canvas, area: Area, regime: &Regime) -> Result<()> {
    let curve =
        |name: &str, colour, energies: &[f64]| Curve::new(name, colour, 2.0, in_bins(energies));
    let rollouts = regime.rollouts() as f64;
    let mean = |sums: &Vec<Bits>| sums.iter().map(|sum| sum.0 / rollouts).collect::<Vec<_>>();
    let truth = mean(&regime.spectrum);
    let of_model = |(model, sums): &(Method, Vec<Bits>)| {
        curve(model.name(), of_model(*model), &mean(sums)).dashed(7.0, 4.0)
    };
    let mut curves: Vec<Curve> = regime.spectra.iter().map(of_model).collect();
    curves.push(curve("truth", INK, &truth));
    let largest = truth.iter().skip(1).fold(0.0, |m: f64, e| m.max(*e));
    let values = curves.iter().flat_map(|curve| curve.points.iter().map(|(_, energy)| *energy));
    // Smaller energies are rounding noise of f32.
    let y = Axis::logarithmic("mean square of u", values).from(largest * 1e-14);
    let x = Axis::logarithmic("wave number k", [1.0, truth.len() as f64]);
    Panel::new(canvas, area, x, y).curves("Spectrum of the last states", &curves)
}

/// Returns the points for wave numbers from 1 on; energies that are close on a logarithmic axis are averaged.
fn in_bins(energies: &[f64]) -> Vec<(f64, f64)> {
    let mut points = Vec::new();
    let mut start = 1;
    while start < energies.len() {
        let end = (start + 1).max((1.08 * start as f64) as usize).min(energies.len());
        let mean = energies[start..end].iter().sum::<f64>() / (end - start) as f64;
        points.push(((start + end - 1) as f64 / 2.0, mean));
        start = end;
    }
    points
}
