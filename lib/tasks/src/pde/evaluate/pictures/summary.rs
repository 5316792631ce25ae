//! The summary picture of all regimes: error growth over time, and errors over whole rollouts.

use super::{errors_by_time, of_model, symbol};
use crate::pde::evaluate::protocol::Protocol;
use crate::pde::evaluate::report::of_starts;
use crate::pde::evaluate::scores::Model;
use crate::pde::evaluate::{Evaluation, Regime};
use report::axis::{Axis, plain, short};
use report::canvas::HPos;
use report::canvas::{Area, Canvas, Letters, Pen, png};
use report::colours::{FAINT, Map};
use report::panel::{Curve, Panel, SMALL, TITLE, heading};
use unix::Result;

const WIDTH: u32 = 1400;
const HEIGHT: u32 = 640;

/// Draws the summary picture as PNG.
pub fn draw(result: &Evaluation, protocol: &Protocol) -> Result<Vec<u8>> {
    png(WIDTH, HEIGHT, |canvas| {
        head(canvas, result, protocol)?;
        over_time(canvas, result, protocol)?;
        by_regime(canvas, result)
    })
}

fn head(canvas: &Canvas, result: &Evaluation, protocol: &Protocol) -> Result<()> {
    let title = format!("NRMSE of {} steps of Δt = {}", result.steps, plain(protocol.time_step));
    let parameters: Vec<String> = (protocol.models.iter())
        .map(|(task, model)| format!("{task} with {} parameters", model.parameters))
        .collect();
    let text = format!(
        "{} rollouts from {} trajectories of the {} split, {} grid points; {}, {} latent features per state",
        protocol.rollouts,
        protocol.trajectories,
        protocol.on,
        protocol.points(),
        parameters.join(", "),
        protocol.latent.map_or(0, |[tokens, dim]| tokens * dim),
    );
    heading(canvas, &title, &text)
}

fn name(regime: &Regime) -> String {
    format!("{} = {}", symbol(&regime.parameter.name), regime.parameter.value)
}

/// Colour by regime, line style by model.
fn over_time(canvas: &Canvas, result: &Evaluation, protocol: &Protocol) -> Result<()> {
    let mut curves = Vec::new();
    let map = Map::sequential();
    for (i, regime) in result.regimes.iter().enumerate() {
        // The light end of the map is hard to see on white.
        let colour = map.at(0.1 + 0.75 * (i as f64 + 0.5) / result.regimes.len() as f64);
        let curve = |name: &str, model: Model, width: f64| {
            let points = errors_by_time(regime, model, protocol.time_step);
            Curve::new(name, colour, width, points)
        };
        match has_operator(result) {
            true => {
                curves.push(curve(&name(regime), Model::Operator, 2.4));
                curves.push(curve("", Model::Views, 1.6));
                curves.push(curve("", Model::Codec, 1.6).dashed(2.0, 3.0));
            }
            false => curves.push(curve(&name(regime), Model::Codec, 2.4)),
        }
        curves.push(curve("", Model::Persistence, 1.6).dashed(8.0, 4.0));
    }
    let values = curves.iter().flat_map(|curve| curve.points.iter().map(|(_, e)| *e));
    let y = Axis::logarithmic("NRMSE", values);
    let x = Axis::linear("time since the start", 0.0, protocol.time_step * protocol.steps as f64);
    let area = Area { x: 8.0, y: 80.0, width: 760.0, height: 550.0 };
    let title = match has_operator(result) {
        true if protocol.views > 1 => {
            "Over time: operator (thick), views (thin), persistence (dashes), codec (dots)"
        }
        true => "Over time: operator (line), persistence (dashes), codec (dots)",
        false => "Over time: codec (line), persistence (dashes)",
    };
    Panel::new(canvas, area, x, y).curves(title, &curves)
}

fn has_operator(result: &Evaluation) -> bool {
    result.regimes.iter().any(|regime| regime.by_start[0].models().contains(&Model::Operator))
}

/// Draws a row per regime with a dot per model.
fn by_regime(canvas: &Canvas, result: &Evaluation) -> Result<()> {
    let nrmse = |regime: &Regime, model: Model| of_starts(regime, model).unwrap_or(f64::NAN);
    let models = result.overall().models();
    let values = result.regimes.iter().flat_map(|r| models.iter().map(|m| nrmse(r, *m)));
    let axis = Axis::logarithmic("NRMSE", values.collect::<Vec<_>>());
    let plot = Area { x: 890.0, y: 118.0, width: 480.0, height: 458.0 };
    canvas.text("Over whole rollouts", (plot.x, 92.0), TITLE)?;
    let taken = legend(canvas, plot, &models)?;
    let plot = Area { y: plot.y + taken, height: plot.height - taken, ..plot };
    let faint = Pen { colour: FAINT, width: 1.0, dash: None };
    let centred = Letters { horizontal: HPos::Center, ..SMALL };
    for (value, text) in axis.ticks() {
        let x = plot.x + plot.width * axis.place(value);
        canvas.line(&[(x, plot.y), (x, plot.y + plot.height)], faint)?;
        canvas.text(&text, (x, plot.y + plot.height + 16.0), centred)?;
    }
    canvas.text("NRMSE", (plot.x + plot.width / 2.0, plot.y + plot.height + 38.0), centred)?;
    let row = plot.height / result.regimes.len() as f64;
    for (i, regime) in result.regimes.iter().enumerate() {
        let y = plot.y + row * (i as f64 + 0.5);
        let leftward = Letters { horizontal: HPos::Right, ..SMALL };
        canvas.text(&name(regime), (plot.x - 12.0, y), leftward)?;
        canvas
            .line(&[(plot.x, y), (plot.x + plot.width, y)], Pen { colour: [0xbb; 3], ..faint })?;
        for model in &models {
            let value = nrmse(regime, *model);
            if value.is_finite() {
                let x = plot.x + plot.width * axis.place(value);
                canvas.dot((x, y), 6.0, of_model(*model))?;
                // Where models are close to each other, their numbers must not overlap.
                let down = match model {
                    Model::Operator | Model::Regression => -18.0,
                    Model::Views => -36.0,
                    Model::Codec | Model::Persistence | Model::Nearest => 18.0,
                    Model::Mean => 36.0,
                    Model::Corrector => -36.0,
                    Model::Student | Model::Ensemble => -54.0,
                    Model::Search | Model::SearchViews | Model::CandidateMean | Model::Oracle => {
                        54.0
                    }
                };
                let letters = Letters { colour: of_model(*model), ..centred };
                if row > 60.0 {
                    canvas.text(&short(value), (x, y + down), letters)?;
                }
            }
        }
    }
    Ok(())
}

/// Names the models from the top of `area` on, in as many lines as they need; returns the height of these lines.
fn legend(canvas: &Canvas, area: Area, models: &[Model]) -> Result<f64> {
    const LINE: f64 = 18.0;
    let (mut x, mut y) = (area.x, area.y);
    for model in models {
        let width = 16.0 + canvas.text_width(model.name(), SMALL)?;
        if x > area.x && x + width > area.x + area.width {
            (x, y) = (area.x, y + LINE);
        }
        canvas.dot((x + 5.0, y), 5.0, of_model(*model))?;
        canvas.text(model.name(), (x + 16.0, y), SMALL)?;
        x += width + LINE;
    }
    Ok(y + 16.0 - area.y)
}
